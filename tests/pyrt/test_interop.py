"""Memory that arrays share with NumPy, CuPy and PyTorch: what one side writes the other reads."""

from __future__ import annotations

import ctypes
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

MATRIX = np.arange(35, dtype=np.float32).reshape(5, 7)
DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
TAKES: dict[str, Callable[[Driver, Any], DeviceArray]] = {
    "DLPack": DeviceArray.from_dlpack,
    "interface": DeviceArray.from_interface,
}
GIVES: dict[str, Callable[[DeviceArray], np.ndarray]] = {"DLPack": np.from_dlpack, "interface": np.asarray}

takes = pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
gives = pytest.mark.parametrize("give", GIVES.values(), ids=GIVES)


@pytest.fixture(params=["cpu", pytest.param("emulated", marks=pytest.mark.kernels)])
def host_driver(request: pytest.FixtureRequest) -> Any:
    """A device that uses the host's memory."""
    opened = CpuDriver() if request.param == "cpu" else EmulatedDriver(sanitize=False)
    yield opened
    opened.close()


class FakeGpu(CpuDriver):
    """A device that says that its memory is GPU 3's, and counts how often it is waited for."""

    name = "fake"
    dlpack_device = (2, 3)
    waits = 0

    def synchronize(self) -> None:
        self.waits += 1


class Tensor(ctypes.Structure):
    """DLPack's struct DLTensor, as its header has it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class VersionedTensor(ctypes.Structure):
    """DLPack's struct DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


def pointed_to(capsule: object, name: bytes) -> int:
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    return get(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, name)


def tensor_of(capsule: object) -> Tensor:
    return VersionedTensor.from_address(pointed_to(capsule, b"dltensor_versioned")).tensor


class Producer:
    """Gives what it is told to give, and notes what it is asked with."""

    def __init__(self, device: tuple[int, int], give: Callable[..., object]) -> None:
        self.device, self.give = device, give
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **keywords: Any) -> object:
        self.asked.append(keywords)
        return self.give(**keywords)


def with_interface(**interface: Any) -> Any:
    class Described:
        __cuda_array_interface__ = interface

    return Described()


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


class TestDlpackOfAGpu:
    def test_a_capsule_says_where_the_memory_is(self) -> None:
        gpu = FakeGpu()
        array = DeviceArray.from_host(gpu, MATRIX).columns(2, 5)
        assert array.__dlpack_device__() == (2, 3)
        capsule, old_capsule = array.__dlpack__(stream=1, max_version=(1, 0)), array.__dlpack__(stream=1)
        tensor = tensor_of(capsule)
        assert (tensor.device_type, tensor.device_id) == (2, 3)
        assert tensor.data + tensor.byte_offset == array.pointer
        assert (tensor.ndim, tensor.shape[:2], tensor.strides[:2]) == (2, [5, 3], [7, 1])
        assert (tensor.code, tensor.bits, tensor.lanes) == (2, 32, 1)
        older = Tensor.from_address(pointed_to(old_capsule, b"dltensor"))
        assert (older.data, older.device_type, older.device_id) == (tensor.data, 2, 3)

    @pytest.mark.parametrize(("stream", "waits"), [(None, 1), (1, 1), (2, 1), (1234, 1), (-1, 0)])
    def test_queued_work_is_waited_for(self, stream: int | None, waits: int) -> None:
        gpu = FakeGpu()
        array = DeviceArray.from_host(gpu, MATRIX)
        gpu.waits = 0
        array.__dlpack__(stream=stream)
        assert gpu.waits == waits

    def test_stream_0_is_refused(self) -> None:
        with pytest.raises(BufferError, match="two streams"):
            DeviceArray.from_host(FakeGpu(), MATRIX).__dlpack__(stream=0)

    @pytest.mark.parametrize("newest", [True, False], ids=["new", "old"])
    def test_an_array_is_taken_after_its_stream(self, newest: bool) -> None:
        theirs, ours = FakeGpu(), FakeGpu()
        given = DeviceArray.from_host(theirs, MATRIX).columns(2, 5)

        def old(stream: int) -> object:
            return given.__dlpack__(stream=stream)

        producer = Producer((2, 3), given.__dlpack__ if newest else old)
        array = DeviceArray.from_dlpack(ours, producer)
        assert (array.driver, array.pointer, array.shape, array.ld) == (ours, given.pointer, (5, 3), 7)
        assert [asked["stream"] for asked in producer.asked] == ([1] if newest else [1, 1])
        assert ours.waits == 1
        again = DeviceArray.from_dlpack(FakeGpu(), array)
        assert again.pointer == given.pointer

    def test_the_owner_is_told_of_its_own_device_when_all_is_over(self) -> None:
        """The capsule was lent to NumPy as memory of the host: whoever frees it may look at the device."""
        given = DeviceArray.from_host(FakeGpu(), MATRIX)
        capsule = given.__dlpack__(stream=1, max_version=(1, 0))
        tensor = tensor_of(capsule)
        array = DeviceArray.from_dlpack(FakeGpu(), Producer((2, 3), lambda **keywords: capsule))
        assert (tensor.device_type, tensor.device_id) == (2, 3)
        alive = weakref.ref(given)
        del given
        gc.collect()
        assert alive() is not None and array.pointer == alive().pointer
        del array
        gc.collect()
        assert alive() is None

    def test_another_device_is_refused(self, cpu: CpuDriver) -> None:
        gpu_array = DeviceArray.from_host(FakeGpu(), MATRIX)
        with pytest.raises(
            ValueError, match=r"lies on DLPack's device \(2, 3\), and this cpu device is \(1, 0\)"
        ):
            DeviceArray.from_dlpack(cpu, gpu_array)
        with pytest.raises(ValueError, match=r"numpy.ndarray lies on DLPack's device \(1, 0\).*from_host"):
            DeviceArray.from_dlpack(FakeGpu(), MATRIX.copy())

    def test_elements_that_numpy_has_no_dtype_for_are_refused(self, cpu: CpuDriver) -> None:
        def bfloat16(**keywords: Any) -> object:
            capsule = np.zeros(3, np.uint16).__dlpack__(**keywords)
            tensor_of(capsule).code = 4
            return capsule

        with pytest.raises(ValueError, match="elements of 16 bits that NumPy has no dtype for"):
            DeviceArray.from_dlpack(cpu, Producer((1, 0), bfloat16))

    def test_a_capsule_is_taken_once(self, cpu: CpuDriver) -> None:
        capsule = MATRIX.copy().__dlpack__(max_version=(1, 0))
        producer = Producer((1, 0), lambda **keywords: capsule)
        DeviceArray.from_dlpack(cpu, producer)
        with pytest.raises(BufferError, match="taken already"):
            DeviceArray.from_dlpack(cpu, producer)

    def test_errors_of_the_giver_are_its_own(self, cpu: CpuDriver) -> None:
        def give(**keywords: Any) -> object:
            raise BufferError("this tensor requires a gradient")

        with pytest.raises(BufferError, match="requires a gradient"):
            DeviceArray.from_dlpack(cpu, Producer((1, 0), give))


class TestCudaArrayInterface:
    def test_it_is_version_3_and_there_is_nothing_left_to_wait_for(self) -> None:
        gpu = FakeGpu()
        array = DeviceArray.from_host(gpu, MATRIX)
        gpu.waits = 0
        expected = {"shape": (5, 7), "typestr": "<f4", "version": 3, "strides": None, "stream": None}
        assert array.__cuda_array_interface__ == {**expected, "data": (array.pointer, False)}
        assert gpu.waits == 1
        part = array.columns(2, 5)
        given = part.__cuda_array_interface__
        assert (given["shape"], given["strides"], given["data"]) == ((5, 3), (28, 4), (part.pointer, False))
        assert array.rows(2, 2).__cuda_array_interface__["data"] == (0, False)  # as the interface asks

    def test_memory_of_the_host_has_none(self, cpu: CpuDriver) -> None:
        assert not hasattr(DeviceArray.from_host(cpu, MATRIX), "__cuda_array_interface__")

    def test_an_array_is_taken_as_it_lies(self) -> None:
        gpu = FakeGpu()
        given = DeviceArray.from_host(FakeGpu(), MATRIX)
        for part, ld in (
            (given, 7),
            (given.columns(2, 5), 7),
            (given.rows(2, 2), 7),
            (given.reshape(35), 35),
        ):
            array = DeviceArray.from_interface(gpu, part)
            assert (array.shape, array.dtype, array.ld, array.driver) == (part.shape, part.dtype, ld, gpu)
            assert not part.size or array.pointer == part.pointer

    @pytest.mark.parametrize(
        ("said", "waits"), [({"stream": None}, 0), ({"stream": 1}, 1), ({"stream": 77}, 1), ({}, 1)]
    )
    def test_its_stream_is_waited_for(self, said: dict[str, int | None], waits: int) -> None:
        gpu = FakeGpu()
        described = with_interface(shape=(3,), typestr="<f4", data=(4096, False), version=3, **said)
        assert DeviceArray.from_interface(gpu, described).pointer == 4096
        assert gpu.waits == waits

    @pytest.mark.parametrize(
        ("said", "why"),
        [
            ({"stream": 0}, "names stream 0"),
            ({"mask": object()}, "has a mask"),
            ({"data": (4096, True)}, "read-only"),
            ({"data": (4097, False)}, "multiple of its elements' size"),
            ({"typestr": ">f4"}, "byte order"),
            ({"strides": (8,)}, "row-major"),
        ],
    )
    def test_what_kernels_cannot_use_is_refused(self, said: dict[str, Any], why: str) -> None:
        good = {"shape": (3,), "typestr": "<f4", "data": (4096, False), "version": 3, "stream": None}
        with pytest.raises(ValueError, match=why):
            DeviceArray.from_interface(FakeGpu(), with_interface(**{**good, **said}))

    def test_memory_of_the_host_is_refused(self) -> None:
        with pytest.raises(TypeError, match=r"numpy.ndarray has no __cuda_array_interface__.*from_host"):
            DeviceArray.from_interface(FakeGpu(), MATRIX)

    def test_the_owner_lives_as_long_as_the_array(self) -> None:
        described = with_interface(shape=(3,), typestr="<f4", data=(4096, False), version=3)
        alive = weakref.ref(described)
        array = DeviceArray.from_interface(FakeGpu(), described)
        del described
        gc.collect()
        assert alive() is not None
        del array
        gc.collect()
        assert alive() is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cupy", "torch"])
class TestOnAGpu:
    """What one library writes on a stream of its own the other reads."""

    @takes
    def test_arrays_of_others(
        self, driver: Driver, name: str, take: Callable[[Driver, Any], DeviceArray]
    ) -> None:
        library = pytest.importorskip(name, reason=f"{name} is not installed")
        theirs = _of(library, MATRIX)
        theirs += 1
        array = take(driver, theirs)
        np.testing.assert_array_equal(array.to_host(), MATRIX + 1)
        array.set(3 * MATRIX)
        np.testing.assert_array_equal(_to_host(theirs), 3 * MATRIX)
        assert take(driver, theirs[:, 2:5]).ld == 7

    @pytest.mark.parametrize("how", ["DLPack", "interface"])
    def test_arrays_of_ours(self, driver: Driver, name: str, how: str) -> None:
        library = pytest.importorskip(name, reason=f"{name} is not installed")
        array = DeviceArray.from_host(driver, MATRIX)
        array.queue_upload(MATRIX + 1, driver.create_stream())
        given = array.columns(2, 5)
        theirs = library.from_dlpack(given) if how == "DLPack" else _by_interface(library, given)
        np.testing.assert_array_equal(_to_host(theirs), MATRIX[:, 2:5] + 1)
        theirs *= 2
        driver.synchronize()
        np.testing.assert_array_equal(array.to_host()[:, 2:5], 2 * (MATRIX[:, 2:5] + 1))


def _of(library: Any, host: np.ndarray) -> Any:
    return library.asarray(host) if library.__name__ == "cupy" else library.from_numpy(host.copy()).cuda()


def _by_interface(library: Any, array: DeviceArray) -> Any:
    return library.asarray(array) if library.__name__ == "cupy" else library.as_tensor(array, device="cuda")


def _to_host(array: Any) -> np.ndarray:
    return array.get() if hasattr(array, "get") else array.cpu().numpy()
