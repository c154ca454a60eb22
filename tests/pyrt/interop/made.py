"""What stands for a GPU, and for others that give arrays, in tests of shared memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver

MATRIX = np.arange(35, dtype=np.float32).reshape(5, 7)
TAKES: dict[str, Callable[[Driver, Any], DeviceArray]] = {
    "DLPack": DeviceArray.from_dlpack,
    "interface": DeviceArray.from_interface,
}
takes = pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)


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
