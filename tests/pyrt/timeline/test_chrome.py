"""The file: Chrome's trace event format, all ranks on the clock of rank 0."""

from __future__ import annotations

import json

from pyrt.timeline import HOST, MPI, RankRecord, Span
from pyrt.timeline.chrome import spans_of, trace
from pyrt.timeline.clocks import HostClock


def record(rank: int, offset: float) -> RankRecord:
    """Two kernels, and two calls of MPI under way at once, from second 10 on by the clock of rank 0."""
    spans = [
        Span(HOST, "phase", "forward", 10.0, 10.5, 1, "forward"),
        Span("stream compute", "kernel", "gemm", 10.25, 10.75, 1, "forward"),
        Span("stream compute", "copy", "copy host -> device", 11.0, 11.25, 2, "step", 4096),
        Span(MPI, "mpi", "Iallreduce", 10.5, 11.5, 2, "MPI_Iallreduce", 64),
        Span(MPI, "mpi", "Iallreduce", 10.75, 11.0, 2, "MPI_Iallreduce", 32),
    ]
    moved = [span._replace(start=span.start - offset, stop=span.stop - offset) for span in spans]
    return RankRecord(rank, "node of rank 0", "cpu", moved, HostClock(offset, 2e-6), 1e-6)


def test_ranks_are_processes_on_one_clock() -> None:
    content = json.loads(json.dumps(trace([record(0, 0.0), record(1, 300.0)])))
    events = content["traceEvents"]
    gemms = [event for event in events if event["name"] == "gemm"]
    assert [(event["pid"], event["ph"], event["ts"], event["dur"]) for event in gemms] == [
        (0, "X", 250_000.0, 500_000.0),
        (1, "X", 250_000.0, 500_000.0),
    ]
    assert content["otherData"]["rank 1"] == {"host_clock_error_us": 2.0, "device_clock_error_us": 1.0}
    named = {
        event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == "thread_name"
    }
    assert named == {"host", "MPI", "stream compute"}


def test_calls_under_way_at_once_are_pairs_of_their_own() -> None:
    events = trace([record(0, 0.0), record(1, 0.0)])["traceEvents"]
    begins = {event["id"]: event for event in events if event["ph"] == "b"}
    ends = {event["id"]: event for event in events if event["ph"] == "e"}
    assert len(begins) == 4 and begins.keys() == ends.keys()
    for number, event in begins.items():
        # The format matches them by category, id and process.
        assert all(event[key] == ends[number][key] for key in ("cat", "name", "pid", "tid"))
    assert sorted(ends[number]["ts"] - begins[number]["ts"] for number in begins) == [25e4] * 2 + [1e6] * 2


def test_what_is_written_can_be_read() -> None:
    found = spans_of(trace([record(0, 0.0), record(2, -7.0)]))
    expected = record(0, 0.0).spans
    for rank in (0, 2):
        mine = [span for number, span in found if number == rank]
        assert [span._replace(start=0, stop=0) for span in mine] == [
            span._replace(start=0, stop=0) for span in expected
        ]
        assert [(span.start, span.stop) for span in mine] == [
            (1e6 * (span.start - 10), 1e6 * (span.stop - 10)) for span in expected
        ]


def test_a_timeline_of_nothing_is_a_file_too() -> None:
    empty = RankRecord(0, "node of rank 0", "cpu", [], HostClock(0.0, 0.0), 0.0)
    assert spans_of(trace([empty])) == []
