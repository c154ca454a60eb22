"""The driver protocol on a device with kernels: memory, order of work, launches, compiling and its
cache. Its graphs are in test_driver_graphs.py.

On a GPU where there is one, else on the emulated device.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pyrt.arrays import Arena, DeviceArray, Layout, pinned
from pyrt.cache import is_kept
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.graphs import capture
from pyrt.job import Job
from pyrt.kernels import KERNELS, KernelLibrary, in_order
from pyrt.phases import Phases
from pyrt.streams import Streams
from tests.pyrt.fakes import missing_from_protocol
from tests.pyrt.sharing import use_each_others_memory
from tests.pyrt.sources import LONG, folder_of


def test_it_has_all_that_the_protocol_asks_for(driver: Driver) -> None:
    assert missing_from_protocol(driver) == []
    assert driver.multiprocessors >= 1


class TestMemory:
    @pytest.mark.parametrize("nbytes", [0, 1, 255, 4096])
    def test_it_is_aligned(self, driver: Driver, nbytes: int) -> None:
        pointers = [driver.allocate(nbytes) for _ in range(3)]
        assert len(set(pointers)) == 3
        for pointer in pointers:
            assert pointer % 256 == 0
            driver.free(pointer)

    @pytest.mark.parametrize("name", ["uint8", "uint32", "int32", "int64", "float16", "float32", "float64"])
    @pytest.mark.parametrize("shape", [(1,), (1001,), (37, 53), (0, 7), (5, 7, 3, 2)])
    def test_a_copy_there_and_back_is_the_same(
        self, driver: Driver, shape: tuple[int, ...], name: str
    ) -> None:
        host = (np.random.default_rng(0).random(shape) * 200).astype(name)
        array = DeviceArray.from_host(driver, host)
        np.testing.assert_array_equal(array.to_host(), host)
        driver.free(array.pointer)

    def test_rows_are_copied_by_themselves(self, driver: Driver) -> None:
        array = DeviceArray.from_host(driver, np.zeros((5, 7), "f4"))
        array.rows(1, 3).set(np.ones((2, 7)))
        np.testing.assert_array_equal(array.to_host().sum(axis=1), [0, 7, 7, 0, 0])
        np.testing.assert_array_equal(array.rows(2, 4).to_host().sum(axis=1), [7, 0])

    def test_an_arena_begins_as_zeros(self, driver: Driver) -> None:
        layout = Layout({"W": (100, 13), "b": (13,)}, "f8")
        dirty = DeviceArray.from_host(driver, np.full(layout.size, np.nan))
        driver.free(dirty.pointer)
        assert not Arena(driver, layout).flat.to_host().any()

    def test_pinned_arrays_take_part_in_copies(self, driver: Driver) -> None:
        stream = driver.create_stream()
        up, down = pinned(driver, (300, 5), "f4"), pinned(driver, (300, 5), "f4")
        assert pinned(driver, (0, 4), "f4").shape == (0, 4)
        up[...] = np.arange(1500).reshape(300, 5)
        array = DeviceArray.empty(driver, (300, 5), "f4")
        array.queue_upload(up, stream)
        array.queue_download(down, stream)
        driver.synchronize_stream(stream)
        np.testing.assert_array_equal(down, up)

    def test_too_much_of_it_is_an_error_for_the_user(self, driver: Driver) -> None:
        with pytest.raises(UserError, match=r"1125899907 MB of GPU memory asked, \d+ of \d+ MB free: use a"):
            driver.allocate(1 << 50)

    def test_the_host_cannot_look_into_it(self, driver: Driver) -> None:
        with pytest.raises(RuntimeError, match="copy it to the host"):
            DeviceArray.empty(driver, (3,), "f4").host_view()


class TestOrder:
    def test_a_stream_waits_for_what_an_event_marks(self, driver: Driver, mine: KernelLibrary) -> None:
        streams = Streams(driver)
        x = DeviceArray.from_host(driver, np.zeros(32, "f4"))
        seen = pinned(driver, (32,), "f4")
        event = driver.create_event(timing=False)
        late = mine.kernel("mine", "late").bind((1,), (32,), LONG, x)
        for count in (1, 2):  # an event is used again and again
            late(streams.compute)
            driver.record(event, streams.compute)
            driver.wait(streams.download, event)
            x.queue_download(seen, streams.download)
            driver.synchronize_stream(streams.download)
            assert np.all(seen == count)
            assert driver.is_done(event)

    def test_the_host_waits_for_an_event_or_for_all(self, driver: Driver, mine: KernelLibrary) -> None:
        compute = driver.create_stream()
        x = DeviceArray.from_host(driver, np.zeros(32, "f4"))
        late = mine.kernel("mine", "late").bind((1,), (32,), LONG, x)
        event = driver.create_event(timing=False)
        late(compute)
        driver.record(event, compute)
        driver.synchronize_event(event)
        assert driver.is_done(event)
        late(compute)
        assert np.all(x.to_host() == 2)  # to_host waits for all streams

    def test_elapsed_is_in_seconds(self, driver: Driver, mine: KernelLibrary) -> None:
        compute = driver.create_stream()
        x = DeviceArray.from_host(driver, np.zeros(32, "f4"))
        late = mine.kernel("mine", "late").bind((1,), (32,), LONG, x)
        start, stop = (driver.create_event(timing=True) for _ in range(2))
        before = time.perf_counter()
        driver.record(start, compute)
        late(compute)
        driver.record(stop, compute)
        driver.synchronize_event(stop)
        outside = time.perf_counter() - before
        assert LONG / 10e9 < driver.elapsed(start, stop) < outside + 1e-3

    def test_phases_time_kernels_without_waiting_for_them(self, driver: Driver, mine: KernelLibrary) -> None:
        phases = Phases(time.perf_counter())
        phases.use_device(driver)
        compute = driver.create_stream()
        x = DeviceArray.from_host(driver, np.zeros(32, "f4"))
        late = mine.kernel("mine", "late").bind((1,), (32,), 300_000, x)
        for _ in range(40):
            with phases.phase("late", compute):
                late(compute)
        driver.synchronize()
        (times,) = [times for times in phases.times() if times.name == "late"]
        assert times.calls == 40
        assert 16 <= times.device_calls <= 40
        assert times.device / times.device_calls > 300_000 / 10e9


OVERLAPPING = r"""
// constants: REAL=float
#include "common.cuh"

// Doubles, late; a thread each.
extern "C" __global__ void double_late(int cycles, real *x)
{
    wait_for_previous_kernel();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const real before = x[i];
    for (const long long start = clock64(); clock64() - start < cycles * (i % 7);)
        ;
    x[i] = 2 * before;
}

// Adds what the others had before.
extern "C" __global__ void add_reversed(int size, real *x, const real *y)
{
    wait_for_previous_kernel();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] += y[size - 1 - i];
}
"""


@pytest.mark.parametrize("graph", [False, True])
def test_kernels_that_overlap_see_what_the_one_before_wrote(driver: Driver, graph: bool) -> None:
    library = KernelLibrary(driver, [folder_of("mine", OVERLAPPING), KERNELS])
    size, stream = 4 * 64, driver.create_stream()
    start = np.arange(2.0 * size, dtype="f4").reshape(2, size)
    x, y = (DeviceArray.from_host(driver, row) for row in start)
    launches = [
        library.kernel("mine", "double_late", REAL="float").bind((4,), (64,), 20_000, x),
        library.kernel("mine", "add_reversed", REAL="float").bind((4,), (64,), size, y, x),
        library.kernel("mine", "double_late", REAL="float").bind((4,), (64,), 20_000, y),
        library.kernel("mine", "add_reversed", REAL="float").bind((4,), (64,), size, x, y),
    ]
    step = in_order(launches).call
    if graph:
        with capture(driver, stream) as captured:
            step(stream)
        step = captured
    for _ in range(4):
        step(stream)
    a, b = start.astype("f8")
    for _ in range(4):
        a *= 2
        b += a[::-1]
        b *= 2
        a += b[::-1]
    np.testing.assert_allclose(x.to_host(), a, rtol=1e-6)
    np.testing.assert_allclose(y.to_host(), b, rtol=1e-6)


class TestLaunch:
    def test_arguments_of_every_kind_arrive(self, driver: Driver, mine: KernelLibrary) -> None:
        out = DeviceArray.from_host(driver, np.zeros(6))
        d = DeviceArray.from_host(driver, np.array([77], np.int32))
        kernel = mine.kernel("mine", "arguments")
        kernel.bind((1,), (1,), -5, 1 / 3, 0.25, d, None, 2**31 - 1, out)(driver.create_stream())
        np.testing.assert_array_equal(out.to_host(), [-5, 1 / 3, 0.25, 77, 0, 2**31 - 1])

    def test_grid_block_and_shared_memory_arrive(self, driver: Driver, mine: KernelLibrary) -> None:
        out = DeviceArray.from_host(driver, np.zeros(6, np.int32))
        launch = mine.kernel("mine", "shape").bind((5, 2, 3), (32, 4), out, shared=1024)
        launch(driver.create_stream())
        np.testing.assert_array_equal(out.to_host(), [5, 2, 3, 32, 4, 1])

    def test_a_block_may_have_all_the_shared_memory_there_is(
        self, driver: Driver, mine: KernelLibrary
    ) -> None:
        """On every GPU that is more than the 48 KiB which come without asking."""
        assert driver.shared_memory > 48 << 10
        most = driver.shared_memory // 4
        stream = driver.create_stream()
        kernel = mine.kernel("mine", "reverse")
        out = DeviceArray.empty(driver, (most,), "i4")
        launches = {n: kernel.bind((1,), (256,), n, out, shared=4 * n) for n in (most, 5, most // 2)}
        for n in (5, most, most // 2):
            launches[n](stream)
            np.testing.assert_array_equal(out.to_host()[:n], np.arange(n)[::-1])


@pytest.mark.parallel([2])
def test_ranks_use_each_others_memory(driver: Driver, job: Job) -> None:
    use_each_others_memory(driver, job)


class TestSharing:
    def test_it_gives_whole_allocations_alone(self, driver: Driver) -> None:
        x = DeviceArray.from_host(driver, np.ones((4, 8), "f4"))
        with pytest.raises(ValueError, match="whole allocations"):
            x.rows(1, 4).export()
        assert x.export() == x.rows(0, 2).export()
        assert np.all(x.to_host() == 1)

    def test_it_does_not_take_its_own(self, driver: Driver) -> None:
        x = DeviceArray.from_host(driver, np.ones(8, "f4"))
        with pytest.raises(UserError, match="cannot"):
            driver.import_memory(x.export())


def compiled(cache: Path) -> Iterator[Path]:
    """The folders of compiled kernels, not the locks of those who make them."""
    return (path for path in cache.iterdir() if path.is_dir())


class TestCache:
    def launch(self, library: KernelLibrary) -> None:
        x = DeviceArray.from_host(library.driver, np.zeros(32, "f4"))
        library.kernel("mine", "late").bind((1,), (32,), 0, x)(library.driver.create_stream())
        assert np.all(x.to_host() == 1)

    def test_what_is_in_the_cache_needs_no_compiler(
        self, driver: Driver, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache = str(tmp_path / "cache")
        KernelLibrary(driver, [folder], cache).compile([("mine", {})])
        monkeypatch.setenv("PATH", str(tmp_path))
        self.launch(KernelLibrary(driver, [folder], cache))

    def test_it_says_whether_it_has_a_source_whole(
        self, driver: Driver, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """So that a run tells when it has to compile, and only then."""
        cache, said = tmp_path / "cache", f"compiling 1 kernel file for {driver.architecture} (not in "
        library = KernelLibrary(driver, [folder], str(cache))
        source = library.source("mine", {})
        with caplog.at_level(logging.INFO, "pyrt"):
            for times in (1, 2):
                assert not driver.is_compiled(source, str(cache))
                library.compile([("mine", {})])
                assert driver.is_compiled(source, str(cache))
                library.compile([("mine", {})])
                assert [message.startswith(said) for message in caplog.messages] == [True] * times
                for file in next(compiled(cache)).iterdir():
                    file.write_bytes(file.read_bytes()[:-1])

    def test_another_source_is_compiled(self, driver: Driver, tmp_path: Path) -> None:
        for number in (1, 2, 1):
            (tmp_path / "mine.cu").write_text(
                f'extern "C" __global__ void give(int *out) {{ out[0] = {number}; }}'
            )
            out = DeviceArray.from_host(driver, np.zeros(1, np.int32))
            library = KernelLibrary(driver, [tmp_path], str(tmp_path / "cache"))
            library.kernel("mine", "give").bind((1,), (1,), out)(driver.create_stream())
            assert out.to_host() == [number]
        assert len(list(compiled(tmp_path / "cache"))) == 2

    def test_jobs_that_compile_at_once_share_one_result(
        self, driver: Driver, folder: Path, tmp_path: Path
    ) -> None:
        cache = tmp_path / "cache"
        libraries = [KernelLibrary(driver, [folder], str(cache)) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda library: library.compile([("mine", {})]), libraries))
        assert len(list(compiled(cache))) == 1
        self.launch(libraries[0])

    def test_what_a_killed_job_left_behind_is_not_used(
        self, driver: Driver, folder: Path, tmp_path: Path
    ) -> None:
        """Its unfinished folder holds half of every file of the finished one."""
        cache = tmp_path / "cache"
        KernelLibrary(driver, [folder], str(cache)).compile([("mine", {})])
        (finished,) = compiled(cache)
        finished.rename(cache / "compiling-killed")
        for file in (cache / "compiling-killed").iterdir():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        self.launch(KernelLibrary(driver, [folder], str(cache)))
        assert finished.is_dir()

    @pytest.mark.parametrize("name", ["", "file"])
    def test_what_others_can_write_is_not_loaded(
        self, driver: Driver, folder: Path, tmp_path: Path, name: str
    ) -> None:
        KernelLibrary(driver, [folder], str(tmp_path / "cache")).compile([("mine", {})])
        (kept,) = compiled(tmp_path / "cache")
        (kept if not name else next(kept.iterdir())).chmod(0o777)
        assert not is_kept(kept)
        self.launch(KernelLibrary(driver, [folder], str(tmp_path / "cache")))
        assert is_kept(kept)

    def test_the_compilers_words_name_file_and_line_and_nothing_is_kept(
        self, driver: Driver, tmp_path: Path
    ) -> None:
        (tmp_path / "wrong.cu").write_text('\n\nextern "C" __global__ void wrong(int *x)\n{ x[0] = y; }\n')
        library = KernelLibrary(driver, [tmp_path], str(tmp_path / "cache"))
        with pytest.raises(UserError, match=r"wrong\.cu[(:]4\b.*: error: .*\by\b"):
            library.kernel("wrong", "wrong")
        assert list(compiled(tmp_path / "cache")) == []
