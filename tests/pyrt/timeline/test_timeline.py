"""A timeline records what is queued, called and entered between its begin and its end, and nothing else."""

from __future__ import annotations

import time

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.job import Job
from pyrt.kernels import KernelLibrary
from pyrt.phases import Phases
from pyrt.streams import Streams
from pyrt.timeline import COPY, EXCHANGE, FILL, HOST, KERNEL, MEMORY, PHASE, RankRecord, Span, Timeline
from tests.pyrt.sources import folder_of

KERNELS = 'extern "C" __global__ void add(float a, float *x) { x[threadIdx.x] += a; }\n'


class Program:
    """A kernel, copies and phases on a traced driver."""

    def __init__(self, driver: Driver) -> None:
        self.timeline = Timeline()
        self.driver = self.timeline.traced_driver(driver)
        self.streams = Streams(self.driver)
        self.phases = Phases(time.perf_counter())
        self.phases.timeline = self.timeline
        self.x = DeviceArray.from_host(self.driver, np.ones(4, "f4"))
        self.host = np.zeros(4, "f4")

    def copy(self) -> None:
        with self.phases.phase("outer"):
            with self.phases.phase("down"):
                self.driver.copy_to_host(self.host, self.x.pointer, self.streams.download)
            self.driver.copy_to_device(self.x.pointer, self.host, self.streams.upload)
        self.driver.fill(self.x.pointer, 0, 8, self.streams.compute)

    def recorded(self, job: Job) -> RankRecord:
        records = self.timeline.end(job)
        assert records is not None and len(records) == 1
        return records[0]


def by_track(spans: list[Span], track: str) -> list[Span]:
    return [span for span in spans if span.track == track]


def test_kernels_are_recorded_on_their_streams(driver: Driver, job: Job) -> None:
    """In order and in the steps in which they are queued, whenever the device runs them."""
    program = Program(driver)
    library = KernelLibrary(program.driver, [folder_of("mine", KERNELS)])
    add = library.kernel("mine", "add").bind((1,), (4,), 1.0, program.x)
    add(program.streams.compute)
    began = time.perf_counter()
    program.timeline.begin(program.streams, program.phases)
    for program.timeline.step in (3, 4):
        with program.phases.phase("work"):
            add(program.streams.compute)
            add(program.streams.beside)
    elsewhere = program.driver.create_stream()
    add(elsewhere)
    record = program.recorded(job)
    ended = time.perf_counter()
    add(program.streams.compute)
    program.driver.synchronize()
    assert program.x.to_host()[0] == 8
    found = by_track(record.spans, "stream compute")
    assert [(span.kind, span.name, span.step, span.phase) for span in found] == [
        (KERNEL, "add", 3, "work"),
        (KERNEL, "add", 4, "work"),
    ]
    assert len(by_track(record.spans, "stream beside")) == 2
    (other,) = [span for span in record.spans if span.kind == KERNEL and span.phase == "other"]
    assert other.track not in ("stream compute", "stream beside")
    assert found[0].stop <= found[1].start
    error = record.device_clock_error
    for span in record.spans:
        assert began - error <= span.start <= span.stop <= ended + error


def test_a_kernel_of_an_exchange_is_told_from_others(driver: Driver, job: Job) -> None:
    """Tell a kernel's category from the folder of its file, as kernels/comm."""
    program = Program(driver)
    kernel = KernelLibrary(program.driver).kernel("comm/sum_over_ranks", "sum_over_ranks", REAL="float")
    add = kernel.bind((1,), (4,), 2, 2, program.x, program.x.rows(0, 2))
    program.timeline.begin(program.streams, program.phases)
    add(program.streams.compute)
    assert [(span.kind, span.name) for span in program.recorded(job).spans] == [(EXCHANGE, "sum_over_ranks")]
    assert program.x.to_host().tolist() == [2, 2, 1, 1]


@pytest.mark.parametrize("device", ["kernels", "cpu"])
def test_phases_copies_and_fills_are_recorded(device: str, request: pytest.FixtureRequest, job: Job) -> None:
    """On the CPU they take one track: there are no streams."""
    program = Program(request.getfixturevalue("driver" if device == "kernels" else "cpu"))
    program.copy()
    program.timeline.begin(program.streams, program.phases)
    program.timeline.step = 7
    program.copy()
    record = program.recorded(job)
    program.copy()
    down, outer = (span for span in sorted(by_track(record.spans, HOST), key=lambda span: span.stop))
    assert (outer.kind, outer.name, down.name, outer.step) == (PHASE, "outer", "down", 7)
    assert outer.start <= down.start <= down.stop <= outer.stop
    copies = sorted(span for span in record.spans if span.track != HOST)
    if device == "cpu":
        copies.sort(key=lambda span: span.start)
        assert {span.track for span in copies} == {MEMORY}
        copies = [copies[2], copies[0], copies[1]]
    else:
        assert [span.track for span in copies] == ["stream compute", "stream download", "stream upload"]
    assert [(span.kind, span.nbytes, span.phase) for span in copies] == [
        (FILL, 8, "other"),
        (COPY, 16, "down"),
        (COPY, 16, "outer"),
    ]
    assert [span.name for span in copies[1:]] == ["copy device -> host", "copy host -> device"]


def test_all_else_of_the_driver_is_as_it_was(driver: Driver) -> None:
    traced = Program(driver).driver
    assert (traced.name, traced.device_name, traced.ledger) == (
        driver.name,
        driver.device_name,
        driver.ledger,
    )
    pointer = traced.allocate(16)
    traced.free(pointer)
    with pytest.raises(AttributeError):
        traced.nonsense  # type: ignore[attr-defined]  # noqa: B018
