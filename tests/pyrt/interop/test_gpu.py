"""Memory that arrays share by DLPack and by `__cuda_array_interface__`; on a GPU with CuPy and PyTorch."""

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
from tests.pyrt.interop.made import (
    MATRIX,
    FakeGpu,
    Producer,
    Tensor,
    pointed_to,
    takes,
    tensor_of,
    with_interface,
)


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
