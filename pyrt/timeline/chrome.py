"""A timeline in Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open.

A rank is a process; its host, its MPI calls and its streams are threads. Spans of one thread lie within each
other or apart. Calls of MPI that do not wait may be under way side by side: they are asynchronous events.
The format: "Trace Event Format", Google, 2016. Times are microseconds from the first span on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from pyrt.timeline import HOST, MPI, RankRecord, Span

Event = dict[str, Any]


def trace(records: Sequence[RankRecord]) -> dict[str, Any]:
    """Make the JSON object of a file: all ranks on the clock of rank 0."""
    start = min(
        (span.start + record.host_clock.offset for record in records for span in record.spans), default=0.0
    )
    numbers = count()
    events = [event for record in records for event in _of_rank(record, start, numbers)]
    errors = {
        f"rank {record.rank}": {
            "host_clock_error_us": 1e6 * record.host_clock.error,
            "device_clock_error_us": 1e6 * record.device_clock_error,
        }
        for record in records
    }
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": errors}


def _of_rank(record: RankRecord, start: float, numbers: Iterator[int]) -> Iterator[Event]:
    """Yield the events of a rank, names of its tracks first; ``numbers`` tell asynchronous ones apart."""
    streams = sorted({span.track for span in record.spans} - {HOST, MPI})
    threads = {name: number for number, name in enumerate([HOST, MPI, *streams])}
    name = f"rank {record.rank}, {record.node}, {record.device}"
    yield _about("process_name", record.rank, 0, name=name)
    yield _about("process_sort_index", record.rank, 0, sort_index=record.rank)
    for track, number in threads.items():
        yield _about("thread_name", record.rank, number, name=track)
        yield _about("thread_sort_index", record.rank, number, sort_index=number)
    for span in record.spans:
        begin = _us(span.start + record.host_clock.offset - start)
        common = {"name": span.name, "cat": span.kind, "pid": record.rank, "tid": threads[span.track]}
        about = {"step": span.step, "phase": span.phase}
        if span.nbytes is not None:
            about["bytes"] = span.nbytes
        duration = _us(span.stop - span.start)
        if span.track == MPI:
            number = next(numbers)
            yield {**common, "ph": "b", "id": number, "ts": begin, "args": about}
            yield {**common, "ph": "e", "id": number, "ts": round(begin + duration, 3)}
        else:
            yield {**common, "ph": "X", "ts": begin, "dur": duration, "args": about}


def _us(seconds: float) -> float:
    """Return microseconds, to the nanosecond."""
    return round(1e6 * seconds, 3)


def _about(what: str, process: int, thread: int, **values: Any) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": values}


def spans_of(content: dict[str, Any]) -> list[tuple[int, Span]]:
    """Read a file's spans back, each with its rank, in microseconds from the first one on."""
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in content["traceEvents"]
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    ends = {event["id"]: event["ts"] for event in content["traceEvents"] if event["ph"] == "e"}
    found = []
    for event in content["traceEvents"]:
        if event["ph"] not in "Xb":
            continue
        track, about = names[event["pid"], event["tid"]], event["args"]
        stop = event["ts"] + event["dur"] if event["ph"] == "X" else ends[event["id"]]
        span = Span(
            *(track, event["cat"], event["name"], event["ts"], stop),
            *(about["step"], about["phase"], about.get("bytes")),
        )
        found.append((event["pid"], span))
    return found
