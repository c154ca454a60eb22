"""The driver protocol on a machine without a GPU: host memory, every call done when it returns."""

from __future__ import annotations

import os

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from pyrt.job import join
from pyrt.streams import Streams
from tests.pyrt.fakes import missing_from_protocol


def test_it_has_all_that_the_protocol_asks_for() -> None:
    assert missing_from_protocol(CpuDriver()) == []


def test_it_says_what_it_is(cpu: CpuDriver) -> None:
    assert (cpu.name, cpu.architecture, cpu.has_kernels) == ("cpu", "", False)
    assert (cpu.multiprocessors, cpu.shared_memory) == (0, 0)
    assert cpu.device_name.strip() == cpu.device_name != ""


@pytest.mark.parametrize("nbytes", [0, 1, 255, 4096])
def test_memory_is_aligned_and_can_be_written_to_its_end(cpu: CpuDriver, nbytes: int) -> None:
    pointer = cpu.allocate(nbytes)
    other = cpu.allocate(nbytes)
    assert pointer % 256 == other % 256 == 0
    assert pointer != other
    cpu.fill(pointer, 7, nbytes, None)
    cpu.fill(other, 9, nbytes, None)
    assert np.all(cpu.host_view(pointer, (nbytes,), np.dtype("u1")) == 7)
    cpu.free(pointer)
    assert np.all(cpu.host_view(other, (nbytes,), np.dtype("u1")) == 9)
    cpu.free(other)


def test_copies_are_done_when_they_return(cpu: CpuDriver) -> None:
    pointer, stream = cpu.allocate(80), cpu.create_stream()
    source = np.arange(10.0)
    target = np.empty(10)
    cpu.copy_to_device(pointer, source, stream)
    source[:] = -1
    cpu.copy_to_host(target, pointer, stream)
    np.testing.assert_array_equal(target, np.arange(10.0))
    view = cpu.host_view(pointer + 16, (2, 4), np.dtype("f8"))
    np.testing.assert_array_equal(view, np.arange(2.0, 10.0).reshape(2, 4))


def test_pinned_memory_is_of_bytes(cpu: CpuDriver) -> None:
    for nbytes in (0, 12):
        block = cpu.allocate_pinned(nbytes)
        assert (block.shape, block.dtype) == ((nbytes,), np.dtype("u1"))


def test_events_are_passed_at_once_and_in_order(cpu: CpuDriver) -> None:
    streams = Streams(cpu)
    first, second = (cpu.create_event(timing=True) for _ in range(2))
    cpu.record(first, streams.compute)
    cpu.record(second, streams.compute)
    cpu.wait(streams.upload, second)
    assert cpu.is_done(second)
    cpu.synchronize_event(second)
    cpu.synchronize_stream(streams.download)
    cpu.synchronize()
    assert cpu.elapsed(first, second) >= 0
    assert cpu.elapsed(second, first) <= 0


def test_it_may_be_closed_twice(cpu: CpuDriver) -> None:
    cpu.allocate(16)
    cpu.close()
    cpu.close()


def test_it_has_no_graphs(cpu: CpuDriver) -> None:
    calls = (
        lambda: cpu.begin_capture(None),
        lambda: cpu.end_capture(None),
        lambda: cpu.record_in_graph(cpu.create_event(timing=True), None),
    )
    for call in calls:
        with pytest.raises(RuntimeError, match="the cpu device has no graphs"):
            call()


@pytest.mark.parallel([2])
def test_ranks_map_memory_that_one_of_them_exports(cpu: CpuDriver) -> None:
    job, before = join(), len(os.listdir("/proc/self/fd"))
    mine = DeviceArray.exportable(cpu, (1000,), "f4") if job.rank == 0 else None
    handle = job.comm.bcast(mine.export() if mine is not None else None)
    array = mine if mine is not None else DeviceArray.imported(cpu, handle, (1000,), "f4")
    assert array.pointer % 256 == 0
    for rank in range(2):
        if rank == job.rank:
            array.host_view()[rank:] = rank + 1
        job.comm.barrier()
    assert array.host_view().tolist() == [1, *[2] * 999]
    job.comm.barrier()
    (cpu.free if mine is not None else cpu.release_memory)(array.pointer)
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_of_other_processes_is_of_other_processes(cpu: CpuDriver) -> None:
    with pytest.raises(ValueError, match="only what allocate_exportable gave"):
        cpu.export_memory(cpu.allocate(16))
    with pytest.raises(UserError, match="it belongs to this process"):
        cpu.import_memory(cpu.export_memory(cpu.allocate_exportable(16)))


def test_it_runs_no_kernels(cpu: CpuDriver) -> None:
    calls = (
        lambda: cpu.is_compiled("", ""),
        lambda: cpu.compile("", ""),
        lambda: cpu.load_module("", ""),
        lambda: cpu.function(None, "name"),
        lambda: cpu.launcher(None, (1, 1, 1), (1, 1, 1), b"", 0, False),
    )
    for call in calls:
        with pytest.raises(RuntimeError, match="the cpu device runs no kernels"):
            call()
