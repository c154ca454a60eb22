"""Memory that arrays share with NumPy: what one side writes the other reads."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.emulated import EmulatedDriver
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.kernels import KernelLibrary, in_order
from tests.pyrt.fakes import LateDriver
from tests.pyrt.interop.made import MATRIX, FakeGpu, takes

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
GIVES: dict[str, Callable[[DeviceArray], np.ndarray]] = {"DLPack": np.from_dlpack, "interface": np.asarray}
gives = pytest.mark.parametrize("give", GIVES.values(), ids=GIVES)


@pytest.fixture(params=["cpu", pytest.param("emulated", marks=pytest.mark.kernels)])
def host_driver(request: pytest.FixtureRequest) -> Any:
    """A device that uses the host's memory."""
    opened = CpuDriver() if request.param == "cpu" else EmulatedDriver(sanitize=False)
    yield opened
    opened.close()


class TestGivenToNumPy:
    @gives
    def test_each_side_reads_what_the_other_writes(
        self, host_driver: Driver, give: Callable[[DeviceArray], np.ndarray]
    ) -> None:
        array = DeviceArray.from_host(host_driver, MATRIX)
        seen = give(array)
        np.testing.assert_array_equal(seen, MATRIX)
        seen[4, 6] = -1
        assert array.to_host()[4, 6] == -1
        array.set(2 * MATRIX)
        np.testing.assert_array_equal(seen, 2 * MATRIX)

    @gives
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(), (13,), (0,), (3, 5), (0, 4), (2, 3, 4)], ids=str)
    def test_every_dtype_and_shape(
        self, cpu: CpuDriver, give: Callable[[DeviceArray], np.ndarray], shape: tuple[int, ...], dtype: str
    ) -> None:
        host = (np.arange(np.prod(shape, dtype=int)) % 2).astype(dtype).reshape(shape)
        seen = give(DeviceArray.from_host(cpu, host))
        assert (seen.dtype, seen.shape) == (host.dtype, shape)
        np.testing.assert_array_equal(seen, host)

    @gives
    def test_some_columns_keep_their_strides(
        self, host_driver: Driver, give: Callable[[DeviceArray], np.ndarray]
    ) -> None:
        array = DeviceArray.from_host(host_driver, MATRIX)
        seen = give(array.rows(1, 5).columns(2, 5))
        assert seen.strides == (28, 4)
        np.testing.assert_array_equal(seen, MATRIX[1:5, 2:5])
        seen[:] = 0
        assert array.to_host().sum() == MATRIX.sum() - MATRIX[1:5, 2:5].sum()

    @gives
    def test_queued_work_is_waited_for(self, give: Callable[[DeviceArray], np.ndarray]) -> None:
        late = LateDriver()
        array = DeviceArray.from_host(late, MATRIX)
        array.queue_upload(MATRIX + 1, late.create_stream())
        assert give(array)[0, 0] == 1

    @gives
    def test_the_driver_lives_as_long_as_what_was_given(
        self, give: Callable[[DeviceArray], np.ndarray]
    ) -> None:
        driver = CpuDriver()  # lets its memory go when it is collected
        alive = weakref.ref(driver)
        seen = give(DeviceArray.from_host(driver, MATRIX))
        del driver
        gc.collect()
        assert alive() is not None
        np.testing.assert_array_equal(seen, MATRIX)
        del seen
        gc.collect()
        assert alive() is None

    def test_a_capsule_that_nobody_takes_keeps_nothing(self, cpu: CpuDriver) -> None:
        array = DeviceArray.from_host(cpu, MATRIX)
        alive = weakref.ref(array)
        capsule = array.__dlpack__()
        del array
        gc.collect()
        assert alive() is not None
        del capsule
        gc.collect()
        assert alive() is None

    def test_memory_of_a_gpu_is_not_numpys(self) -> None:
        array = DeviceArray.from_host(FakeGpu(), MATRIX)
        assert not hasattr(array, "__array_interface__")
        with pytest.raises(TypeError, match=r"copy the array with to_host\(\)"):
            np.asarray(array)

    def test_a_device_without_memory_gives_none(self) -> None:
        array = DeviceArray.empty(NullDriver(DeviceProperties(), "cuda"), (3,), "f4")
        assert not hasattr(array, "__array_interface__")
        assert not hasattr(array, "__cuda_array_interface__")
        for give in (array.__dlpack__, array.__dlpack_device__):
            with pytest.raises(BufferError, match="a cuda device has no memory that others could use"):
                give()

    def test_what_dlpack_asks_for_and_cannot_have(self, cpu: CpuDriver) -> None:
        array = DeviceArray.from_host(cpu, MATRIX)
        assert array.__dlpack_device__() == (1, 0)
        np.testing.assert_array_equal(np.from_dlpack(array, device="cpu", copy=False), MATRIX)
        with pytest.raises(BufferError, match="without a copy"):
            np.from_dlpack(array, copy=True)
        with pytest.raises(BufferError, match="without a copy"):
            array.__dlpack__(dl_device=(2, 0))
        with pytest.raises(BufferError, match="stream 1: memory of the host is given without a stream"):
            array.__dlpack__(stream=1)


class TestTakenFromNumPy:
    @takes
    def test_each_side_reads_what_the_other_writes(
        self, host_driver: Driver, take: Callable[[Driver, Any], DeviceArray]
    ) -> None:
        host = MATRIX.copy()
        array = take(host_driver, host)
        assert (array.shape, array.dtype, array.ld) == ((5, 7), np.float32, 7)
        host[4, 6] = -1
        np.testing.assert_array_equal(array.to_host(), host)
        array.rows(1, 2).set(np.zeros((1, 7)))
        assert not host[1].any() and host[2].all()

    @takes
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(), (13,), (0,), (3, 5), (0, 4), (3, 1), (2, 3, 4)], ids=str)
    def test_every_dtype_and_shape(
        self, cpu: CpuDriver, take: Callable[[Driver, Any], DeviceArray], shape: tuple[int, ...], dtype: str
    ) -> None:
        host = (np.arange(np.prod(shape, dtype=int)) % 2).astype(dtype).reshape(shape)
        array = take(cpu, host)
        assert (array.shape, array.dtype, array.ld) == (shape, host.dtype, shape[-1] if shape else 1)
        np.testing.assert_array_equal(array.to_host(), host)
        assert not host.size or array.pointer == host.ctypes.data

    @takes
    @pytest.mark.parametrize(
        ("rows", "columns"), [((0, 5), (2, 5)), ((1, 4), (6, 7)), ((2, 3), (1, 4)), ((0, 5), (3, 3))]
    )
    def test_some_columns_keep_their_leading_dimension(
        self,
        cpu: CpuDriver,
        take: Callable[[Driver, Any], DeviceArray],
        rows: tuple[int, int],
        columns: tuple[int, int],
    ) -> None:
        host = MATRIX.copy()
        part = host[slice(*rows), slice(*columns)]
        array = take(cpu, part)
        assert array.shape == part.shape and (array.ld == 7 or part.size <= part.shape[1])
        np.testing.assert_array_equal(array.host_view(), part)
        array.host_view()[:] = -1
        assert (host < 0).sum() == part.size and (part < 0).all()

    @takes
    @pytest.mark.parametrize(
        ("part", "why"),
        [
            (MATRIX.T, "row-major"),
            (MATRIX[:, ::2], "row-major"),
            (MATRIX[::-1], "row-major"),
            (np.arange(10)[::2], "row-major"),
            (np.zeros((4, 5, 6))[:, 1:3], "row-major"),
            (np.lib.stride_tricks.as_strided(MATRIX.copy(), (3, 4), (0, 4), writeable=True), "row-major"),
            (np.lib.stride_tricks.as_strided(MATRIX.copy(), (3, 4), (8, 4), writeable=True), "row-major"),
        ],
        ids=["transposed", "every second", "backwards", "gaps", "3-D", "repeated", "overlapping"],
    )
    def test_another_order_is_refused(
        self, cpu: CpuDriver, take: Callable[[Driver, Any], DeviceArray], part: np.ndarray, why: str
    ) -> None:
        with pytest.raises(ValueError, match=rf"^numpy.ndarray has shape .* and strides .*{why} order"):
            take(cpu, part)

    @takes
    def test_what_is_read_only_is_refused(
        self, cpu: CpuDriver, take: Callable[[Driver, Any], DeviceArray]
    ) -> None:
        host = MATRIX.copy()
        host.flags.writeable = False
        with pytest.raises(ValueError, match="read-only, and kernels may write"):
            take(cpu, host)

    @pytest.mark.parametrize("dtype", [">f4", "M8[s]", "S4", "f4,i4"])
    def test_what_are_no_numbers_is_refused(self, cpu: CpuDriver, dtype: str) -> None:
        with pytest.raises(ValueError, match=r"has dtype .*: give numbers in this machine's byte order"):
            DeviceArray.from_interface(cpu, np.zeros(3, dtype))

    def test_what_is_not_aligned_is_refused(self, cpu: CpuDriver) -> None:
        odd = np.zeros(17, np.uint8)[1:].view(np.float32)
        with pytest.raises(ValueError, match="multiple of its elements' size"):
            DeviceArray.from_interface(cpu, odd)

    def test_something_else_is_refused(self, cpu: CpuDriver) -> None:
        with pytest.raises(TypeError, match=r"^builtins.list has no __dlpack__"):
            DeviceArray.from_dlpack(cpu, [1, 2])
        with pytest.raises(TypeError, match=r"^builtins.list has no __array_interface__.*from_host"):
            DeviceArray.from_interface(cpu, [1, 2])

    @takes
    def test_the_owner_lives_as_long_as_array_view_or_launch(
        self, driver: Driver, mine: KernelLibrary, take: Callable[[Driver, Any], DeviceArray]
    ) -> None:
        if driver.name != "emulated":
            pytest.skip("needs a device with kernels that uses the host's memory")
        host = np.arange(100, dtype=np.float32)
        alive = weakref.ref(host)
        array = take(driver, host)
        view = array.rows(10, 60).reshape(5, 10).columns(1, 2)
        del host, array
        gc.collect()
        assert alive() is not None
        launch = in_order([mine.kernel("mine", "scale").bind((1,), (64,), 5, 2.0, 1.0, view)] * 2)
        del view
        gc.collect()
        assert alive() is not None
        del launch
        gc.collect()
        assert alive() is None

    def test_kernels_write_the_memory_that_was_taken(self, driver: Driver, mine: KernelLibrary) -> None:
        if driver.name != "emulated" or driver._sanitize:  # type: ignore[attr-defined]
            pytest.skip("needs a device with kernels that uses the host's memory, and no checks of it")
        host, stream = np.arange(10, dtype=np.float32), driver.create_stream()
        array = DeviceArray.from_dlpack(driver, host)
        mine.kernel("mine", "scale").bind((1,), (64,), 10, 2.0, 1.0, array)(stream)
        driver.synchronize_stream(stream)
        np.testing.assert_array_equal(host, 2 * np.arange(10) + 1)
