"""The types of a kernel's parameters: the arguments that each takes, and how they are packed for a launch.

docs/reference/kernel_files.md has the same table for users.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from pyrt.arrays import DeviceArray

Number = int | float | np.number | np.bool_
Argument = DeviceArray | Number | Sequence[Number] | np.ndarray | None

WORDS = frozenset(("bool", "char", "short", "int", "long", "float", "double", "signed", "unsigned", "void"))
"""The words from which C builds its own types."""

BYTES = np.dtype(np.uint8)
"""Elements of the array that a pointer to any other type takes."""

_NUMBERS = {
    "bool": "?",
    "char": "i1",
    "signed char": "i1",
    "unsigned char": "u1",
    "short": "i2",
    "unsigned short": "u2",
    "int": "i4",
    "unsigned": "u4",
    "long": "i8",
    "unsigned long": "u8",
    "long long": "i8",
    "unsigned long long": "u8",
    "half": "f2",
    "__half": "f2",
    "float": "f4",
    "double": "f8",
    "ushort": "u2",
    "uint": "u4",
    "ulong": "u8",
    "size_t": "u8",
    "ptrdiff_t": "i8",
    "intptr_t": "i8",
    "uintptr_t": "u8",
    **{f"{sign}int{8 * size}_t": f"{sign or 'i'}{size}" for sign in ("", "u") for size in (1, 2, 4, 8)},
}
_VECTORS = {
    "char": "i1",
    "uchar": "u1",
    "short": "i2",
    "ushort": "u2",
    "int": "i4",
    "uint": "u4",
    "longlong": "i8",
    "ulonglong": "u8",
    "float": "f4",
    "double": "f8",
}


@dataclass(frozen=True)
class CType:
    """A number, or a vector of 2 to 4 numbers, as ``float4`` is."""

    dtype: np.dtype
    components: int = 1

    @property
    def alignment(self) -> int:
        """In bytes, as in CUDA."""
        return self.dtype.itemsize if self.components == 3 else min(self.dtype.itemsize * self.components, 16)


_TYPES = {
    **{" ".join(sorted(name.split())): CType(np.dtype(code)) for name, code in _NUMBERS.items()},
    **{f"{name}{n}": CType(np.dtype(code), n) for name, code in _VECTORS.items() for n in (2, 3, 4)},
    **{name: CType(np.dtype("f2"), 2) for name in ("half2", "__half2")},
}


def c_type(words: Sequence[str]) -> CType | None:
    """Look up the number or vector that these words name, without qualifiers; None for other types.

    The order of the words does not matter, as in C: ``long unsigned int`` is ``unsigned long``.
    """
    signed = [word for word in words if word != "signed" or "char" in words]
    short = [word for word in signed if word != "int" or len(signed) == 1]
    return _TYPES.get(" ".join(sorted(short)) or "int") if words else None


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: an array in device memory, or a number or vector by value."""

    name: str
    type: CType
    """The type of the value, or of the elements of the array."""
    is_array: bool = False

    @property
    def alignment(self) -> int:
        return 8 if self.is_array else self.type.alignment

    def pack(self, argument: Argument) -> bytes:
        """Pack an argument as a launch takes it. Raises TypeError for one that does not fit."""
        if self.is_array:
            return struct.pack("P", self._address(argument))
        if self.type.components == 1:
            return self._number(argument)
        values = list(argument) if isinstance(argument, (Sequence, np.ndarray)) else []
        if len(values) != self.type.components:
            raise TypeError(f"argument {self.name} is {self.type.components} numbers, not {argument!r}")
        return b"".join(map(self._number, values))

    def _address(self, argument: Argument) -> int:
        if argument is None:
            return 0
        if not isinstance(argument, DeviceArray) or argument.dtype != self.type.dtype:
            kind = argument.dtype if isinstance(argument, DeviceArray) else type(argument).__name__
            raise TypeError(f"argument {self.name} is an array of {self.type.dtype}, not {kind}")
        if argument.pointer % self.type.alignment:
            multiple = f"begins at a multiple of {self.type.alignment} bytes"
            raise TypeError(f"argument {self.name} is an array that {multiple}, which this view does not")
        return argument.pointer

    def _number(self, argument: object) -> bytes:
        """Pack one number. As in C, a real one that is too large for its type becomes infinite."""
        dtype = self.type.dtype
        wanted = {"b": (bool, np.bool_), "f": (Real,)}.get(dtype.kind, (Integral,))
        if isinstance(argument, wanted) and (dtype.kind == "b" or not isinstance(argument, bool)):
            try:
                if dtype.kind != "f":
                    return struct.pack(dtype.char, argument)
                with np.errstate(over="ignore"):
                    return np.array(argument, dtype).tobytes()
            except (struct.error, OverflowError):
                pass
        raise TypeError(f"argument {self.name} is {self._in_words()}, not {argument!r}")

    def _in_words(self) -> str:
        dtype = self.type.dtype
        if dtype.kind == "b":
            return "True or False"
        if dtype.kind == "f":
            return f"a number, {dtype}"
        limits = np.iinfo(dtype)
        return f"a number, whole, from {limits.min} to {limits.max}"


def pack(parameters: Sequence[Parameter], arguments: Sequence[Argument]) -> bytes:
    """Pack all arguments of a launch, each at a multiple of its alignment, as in a C structure.

    Raises TypeError for an argument that does not fit its parameter.
    """
    packed = bytearray()
    for parameter, argument in zip(parameters, arguments, strict=True):
        packed += bytes(-len(packed) % parameter.alignment)
        packed += parameter.pack(argument)
    return bytes(packed)
