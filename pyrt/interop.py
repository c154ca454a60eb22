"""Arrays that others understand: memory given to NumPy, CuPy, PyTorch and their like, and taken; no copy.

By ``__array_interface__`` (NumPy, memory of the host), ``__cuda_array_interface__`` (version 3, as Numba's
documentation has it) and DLPack. `DeviceArray` has the methods.

Who gives waits until all work queued on the device is done; who takes waits for the work of the one who
gives. From then on the program itself must keep the two sides in order.

NumPy makes and reads the capsules of DLPack, and reads the interfaces: for memory of a GPU too, since it
looks at no element; only the device's name is another one meanwhile. So lifetimes are NumPy's care.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pyrt.driver import Driver

if TYPE_CHECKING:
    from pyrt.arrays import DeviceArray

DlpackDevice = tuple[int, int]
"""DLPack's name of a device: the kind of its memory, and its number among those of that kind."""

HOST: DlpackDevice = (1, 0)

_CUDA = 2
_LEGACY_STREAM = 1
"""CUDA's legacy default stream, for DLPack and for the interface."""

_NUMBERS = "biufc"
"""NumPy's kinds of dtypes that arrays may have."""

_DLPACK_NUMBERS = (0, 1, 2, 5, 6)
"""The same as DLPack's codes: int, uint, float, complex, bool."""

_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype, _capsule_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

_BEFORE_TENSOR = {b"dltensor": 0, b"dltensor_versioned": 32}
"""Bytes before the struct DLTensor in what a capsule of that name points to (dlpack.h, version 1)."""


class _Tensor(ctypes.Structure):
    """The begin of DLPack's struct DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class Taken(NamedTuple):
    """Memory of somebody else's as the fields of a `DeviceArray`, the driver aside."""

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype
    ld: int
    owner: object
    """What keeps the memory as long as it lives itself."""


class _WithInterface:
    """Something with an array interface, and who owns the memory."""

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def device_of(driver: Driver) -> DlpackDevice:
    """Return DLPack's name of the device; BufferError where there is no memory behind it."""
    if driver.dlpack_device is None:
        raise BufferError(f"a {driver.name} device has no memory that others could use")
    return driver.dlpack_device


def interface(array: DeviceArray) -> dict[str, Any]:
    """Describe an array in the words that both interfaces share."""
    itemsize = array.dtype.itemsize
    return {
        "version": 3,
        "shape": array.shape,
        "typestr": array.dtype.str,
        "data": (array.pointer, False),
        "strides": None if array.is_contiguous else (array.ld * itemsize, itemsize),
    }


def array_interface(array: DeviceArray) -> dict[str, Any]:
    """Return NumPy's interface, all queued work done; AttributeError for memory that is not the host's."""
    if array.driver.dlpack_device != HOST:
        raise AttributeError("__array_interface__: memory of a GPU: copy it with to_host()")
    array.driver.synchronize()
    return interface(array)


def cuda_array_interface(array: DeviceArray) -> dict[str, Any]:
    """Return CUDA's interface, all queued work done; AttributeError for memory that is no GPU's."""
    device = array.driver.dlpack_device
    if device is None or device[0] != _CUDA:
        raise AttributeError("__cuda_array_interface__: no memory of a GPU")
    array.driver.synchronize()
    described = interface(array)
    pointer = array.pointer if array.size else 0  # as the interface asks
    return {**described, "data": (pointer, False), "stream": None}  # no stream: there is nothing to wait for


def give_dlpack(
    array: DeviceArray,
    stream: int | None,
    max_version: tuple[int, int] | None,
    dl_device: DlpackDevice | None,
    copy: bool | None,
) -> object:
    """Return a capsule of the array; the arguments are those of ``__dlpack__`` in the array API standard.

    Waits for all queued work, but where ``stream`` is -1. Raises BufferError for what would need a copy.
    """
    device = device_of(array.driver)
    if copy or dl_device not in (None, device):
        raise BufferError("an array of pyrt is given where it is, without a copy: copy it with to_host()")
    if stream is not None and device == HOST:
        raise BufferError(f"stream {stream}: memory of the host is given without a stream")
    if stream == 0:
        raise BufferError("stream 0 may mean two streams of CUDA: give 1 (legacy default) or 2 (per thread)")
    if stream != -1:
        array.driver.synchronize()
    seen_by_numpy = np.asarray(_WithInterface(interface(array), array))
    newest: dict[str, Any] = {} if max_version is None else {"max_version": max_version}
    capsule: object = seen_by_numpy.__dlpack__(**newest)
    _tensor(capsule).device[:] = device
    return capsule


def _tensor(capsule: object) -> _Tensor:
    """Return the tensor in a capsule that nobody has taken yet, to be read and changed."""
    name = _capsule_name(capsule)
    if name not in _BEFORE_TENSOR:
        raise BufferError(f"a capsule named {name!r} is none of DLPack's, or has been taken already")
    return _Tensor.from_address(_capsule_pointer(capsule, name) + _BEFORE_TENSOR[name])


def take_dlpack(driver: Driver, x: Any) -> Taken:
    """Take an array of anything with ``__dlpack__`` on this device, its queued work done.

    Raises TypeError without that method, ValueError for an array elsewhere, or that cannot be a DeviceArray.
    """
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"{_kind(x)} has no __dlpack__: give an array of NumPy, CuPy, PyTorch or JAX")
    kind, number = x.__dlpack_device__()
    device = int(kind), int(number)
    if device != device_of(driver):
        raise ValueError(
            f"{_kind(x)} lies on DLPack's device {device}, and this {driver.name} device is "
            f"{driver.dlpack_device}: move it there, or copy it with DeviceArray.from_host"
        )
    lender = _Lender(x, device)
    array = np.from_dlpack(lender)  # type: ignore[arg-type]
    lender.tensor.device[:] = device
    if device != HOST:
        driver.synchronize()  # the legacy stream has the work of the one who gives before it
    return _taken(array, x, array.flags.writeable or not lender.is_versioned)


class _Lender:
    """Hands NumPy the capsule of another array as if it were memory of the host."""

    tensor: _Tensor
    """The tensor that was handed over."""
    is_versioned: bool
    """Whether its capsule can say that the array is read-only; the older ones cannot."""

    def __init__(self, x: Any, device: DlpackDevice) -> None:
        self._x, self._device = x, device

    def __dlpack_device__(self) -> DlpackDevice:
        return HOST

    def __dlpack__(self, **newer: Any) -> object:
        """``newer``: what NumPy says of itself, which those who give may not understand yet."""
        stream = {} if self._device == HOST else {"stream": _LEGACY_STREAM}
        try:
            capsule = self._x.__dlpack__(**stream, **newer)
        except TypeError:
            capsule = self._x.__dlpack__(**stream)
        self.tensor = tensor = _tensor(capsule)
        self.is_versioned = _capsule_name(capsule) == b"dltensor_versioned"
        if tensor.code not in _DLPACK_NUMBERS or tensor.lanes != 1:
            raise ValueError(
                f"{_kind(self._x)} has elements of {tensor.bits} bits that NumPy has no dtype for: "
                "view them as unsigned integers first"
            )
        tensor.device[:] = HOST
        return capsule


def take_interface(driver: Driver, x: Any) -> Taken:
    """Take an array by the interface of this device's memory, the queued work of its stream done.

    CUDA's interface does not say on which GPU the memory is: it must be this driver's. Raises TypeError for
    what has no such interface, ValueError for an array that cannot be a DeviceArray.
    """
    device = device_of(driver)
    name = "__array_interface__" if device == HOST else "__cuda_array_interface__"
    described = getattr(x, name, None)
    if described is None:
        raise TypeError(
            f"{_kind(x)} has no {name}, by which a {driver.name} device takes memory: "
            "copy it with DeviceArray.from_host"
        )
    if device != HOST:
        stream = described.get("stream", _LEGACY_STREAM)  # the first two versions had no word for it
        if stream == 0:
            raise ValueError(f"{_kind(x)} names stream 0, which may mean two streams of CUDA")
        if stream is not None:
            driver.synchronize()
    if described.get("mask") is not None:
        raise ValueError(f"{_kind(x)} has a mask: fill it first")
    array = np.asarray(_WithInterface(described, x))
    return _taken(array, x, array.flags.writeable)


def _taken(array: np.ndarray, x: object, may_write: bool) -> Taken:
    """Take what NumPy has read; ValueError where kernels must not write it, or no DeviceArray is like it."""
    if not may_write:
        raise ValueError(
            f"{_kind(x)} is read-only, and kernels may write: copy it with DeviceArray.from_host"
        )
    dtype, strides = array.dtype, array.strides
    if dtype.kind not in _NUMBERS or not dtype.isnative:
        raise ValueError(f"{_kind(x)} has dtype {dtype}: give numbers in this machine's byte order")
    if not array.flags.aligned:
        raise ValueError(f"{_kind(x)} does not begin at a multiple of its elements' size: copy it first")
    ld = array.shape[-1] if array.shape else 1
    if not array.flags.c_contiguous:
        rows_are_whole = array.ndim == 2 and (array.shape[1] == 1 or strides[1] == dtype.itemsize)
        if not rows_are_whole or strides[0] % dtype.itemsize or strides[0] < ld * dtype.itemsize:
            raise ValueError(
                f"{_kind(x)} has shape {array.shape} and strides {strides} in bytes: give one in row-major "
                "order, or some columns of a matrix"
            )
        ld = strides[0] // dtype.itemsize
    return Taken(array.ctypes.data, array.shape, dtype, ld, array)


def _kind(x: object) -> str:
    """Name the type of an array, for messages."""
    return f"{type(x).__module__}.{type(x).__qualname__}"
