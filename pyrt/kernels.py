"""From a ``.cu`` file to a launch: constants, includes, the compile cache, arguments checked once.

A kernel file declares its compile-time constants and their values in a line, or in several where not all
go together, and the architectures that it is for, where it is not for all::

    // constants: REAL=float|double TRANSPOSE_A=0|1
    // architectures: sm_80 sm_90a

and its kernels as ``extern "C" __global__ void name(...)``. The parameter list is read from the source,
so that the arguments of a launch are checked against it, once, and packed once.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from pyrt.cache import kernel_folder
from pyrt.driver import Driver, FunctionHandle, ModuleHandle, StreamHandle
from pyrt.errors import UserError
from pyrt.job import undisturbed
from pyrt.log import log
from pyrt.memory import DeviceArray

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
"""The project's own kernels."""

Constants = Mapping[str, str | int]
Argument = DeviceArray | int | float | None

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)".*$', re.MULTILINE)
_CONSTANTS = re.compile(r"^// constants:(.*)$", re.MULTILINE)
_ARCHITECTURES = re.compile(r"^// architectures:(.*)$", re.MULTILINE)
_KERNEL = re.compile(r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)')
_WAITS_FIRST = re.compile(r"\s*\{\s*(?:wait_for_kernel_before\(\)|begin_beside_kernel_before\(\w+\));")
_TYPEDEF = re.compile(r"\btypedef\s+(\w+(?: \w+)*)\s+(\w+)\s*;")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_SCALARS = {"int": "i", "float": "f", "double": "d"}
_POINTEES: dict[str, np.dtype] = {
    "unsigned short": np.dtype(np.uint16),
    "int": np.dtype(np.int32),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "unsigned char": np.dtype(np.uint8),
}


def flatten(path: Path, directories: Sequence[Path]) -> str:
    """The source of a kernel file with its ``#include "..."`` files in place, each once.

    nvcc's preprocessor need not run to know whether a compiled version is in the cache. ``#line`` keeps
    every error at its own file and line. Raises UserError for a file that is not there.
    """
    return _flatten(path, directories, set())


def _flatten(path: Path, directories: Sequence[Path], seen: set[Path]) -> str:
    seen.add(path)
    source = path.read_text().replace("#pragma once", "")  # each file is taken once anyway

    def included(match: re.Match[str]) -> str:
        found = find(match[1], [path.parent, *directories])
        text = "" if found in seen else _flatten(found, directories, seen)
        next_line = source.count("\n", 0, match.end()) + 2
        return f'{text}\n#line {next_line} "{path}"'

    return f'#line 1 "{path}"\n{_INCLUDE.sub(included, source)}'


def find(name: str, directories: Sequence[Path]) -> Path:
    """The first file of that name in the directories; UserError where there is none."""
    for directory in directories:
        if (directory / name).is_file():
            return directory / name
    raise UserError(f"no kernel file {name} in {', '.join(map(str, directories))}")


def declared_constants(source: str) -> list[dict[str, list[str]]]:
    """The constants that a kernel file declares, line by line, each with the values it may take."""
    lines = [match[1].split() for match in _CONSTANTS.finditer(source)]
    return [
        {name: values.split("|") for name, values in (item.split("=") for item in line)} for line in lines
    ]


def architectures(source: str) -> list[str] | None:
    """The architectures that a kernel file is for; None: all."""
    match = _ARCHITECTURES.search(source)
    return match[1].split() if match else None


def all_constants(source: str) -> list[dict[str, str]]:
    """Every combination of the declared constants."""
    return [
        dict(zip(line, values, strict=True))
        for line in declared_constants(source) or [{}]
        for values in itertools.product(*line.values())
    ]


def with_constants(source: str, constants: Constants) -> str:
    """The source with a value for each declared constant; ValueError for missing or unknown ones."""
    given = {name: str(value) for name, value in constants.items()}
    if given not in all_constants(source):
        raise ValueError(f"constants {given} are not of the declared {declared_constants(source)}")
    return "".join(f"#define {name} {value}\n" for name, value in given.items()) + source


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: a pointer to elements of ``dtype``, or a scalar packed as ``code``.

    A pointer to a structure of the kernel's own is one to its bytes.
    """

    name: str
    code: str
    dtype: np.dtype | None = None


def parse_kernels(source: str, constants: Constants) -> dict[str, list[Parameter]]:
    """The kernels of a source and their parameters, its typedefs and constants resolved."""
    plain = _COMMENT.sub("", source)
    types = {name: meaning for meaning, name in _TYPEDEF.findall(plain)}
    types.update({name: str(value) for name, value in constants.items()})
    return {
        match[1]: [_parameter(text, types) for text in match[2].split(",") if text.strip()]
        for match in _KERNEL.finditer(plain)
    }


def overlapping(source: str) -> set[str]:
    """The kernels of a source whose first line is ``wait_for_kernel_before();`` (kernels/common.cuh), or
    ``begin_beside_kernel_before(..);`` where they wait later.

    They are launched while the kernel before them in the stream still runs.
    """
    plain = _COMMENT.sub("", source)
    return {kernel[1] for kernel in _KERNEL.finditer(plain) if _WAITS_FIRST.match(plain, kernel.end())}


def kernel_names(source: str) -> list[str]:
    """The kernels of a source without comments."""
    return [match[1] for match in _KERNEL.finditer(source)]


def _parameter(text: str, types: Mapping[str, str]) -> Parameter:
    words = re.sub(r"\bconst\b|\b__restrict__\b", "", text).replace("*", " * ").split()
    *kind, name = words
    pointer = "*" in kind
    base = " ".join(word for word in kind if word != "*")
    while base in types:
        base = types[base]
    if pointer:
        return Parameter(name, "P", _POINTEES.get(base, np.dtype(np.uint8)))
    return Parameter(name, _SCALARS[base])


def blocks(size: int, tile: int) -> int:
    """Blocks that cover ``size`` with ``tile`` each; at least one, since no grid may be empty."""
    return max(1, -(-size // tile))


@dataclass(frozen=True)
class Launch:
    """A kernel with its launch shape and arguments, ready to be queued on a stream any number of times.

    Or several of them (`in_order`); ``kernels`` are their names.
    """

    kernels: tuple[str, ...]
    call: Callable[[StreamHandle], None]

    def __call__(self, stream: StreamHandle) -> None:
        self.call(stream)


def in_order(launches: Sequence[Launch]) -> Launch:
    """Several launches as one."""
    if len(launches) == 1:
        return launches[0]
    calls = [launch.call for launch in launches]

    def call(stream: StreamHandle) -> None:
        for one in calls:
            one(stream)

    return Launch(tuple(name for launch in launches for name in launch.kernels), call)


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel."""

    driver: Driver
    name: str
    function: FunctionHandle
    parameters: list[Parameter]
    overlaps: bool = False
    """Whether it waits by itself for the kernel before it: see `overlapping`."""

    def bind(
        self, grid: tuple[int, ...], block: tuple[int, ...], *arguments: Argument, shared: int = 0
    ) -> Launch:
        """Check and pack the arguments; grid in blocks, block in threads, ``shared`` in bytes.

        Raises TypeError where an argument is not what the kernel's source asks for.
        """
        if len(arguments) != len(self.parameters):
            raise TypeError(f"{self.name} takes {len(self.parameters)} arguments, not {len(arguments)}")
        values = [
            self._value(parameter, argument)
            for parameter, argument in zip(self.parameters, arguments, strict=True)
        ]
        # Native alignment is the layout the CUDA driver expects of a packed parameter block.
        packed = struct.pack("".join(parameter.code for parameter in self.parameters), *values)
        shape = _three(grid), _three(block)
        launch = self.driver.launcher(self.function, *shape, packed, shared, self.overlaps)
        return Launch((self.name,), launch)

    def _value(self, parameter: Parameter, argument: Argument) -> int | float:
        where = f"{self.name}: argument {parameter.name}"
        if parameter.dtype is not None:
            if argument is None:
                return 0
            if not isinstance(argument, DeviceArray) or argument.dtype != parameter.dtype:
                kind = argument.dtype if isinstance(argument, DeviceArray) else type(argument).__name__
                raise TypeError(f"{where} is an array of {parameter.dtype}, not {kind}")
            return argument.pointer
        if isinstance(argument, bool) or not isinstance(argument, (int, float)):
            raise TypeError(f"{where} is a number, not {argument!r}")
        if parameter.code == "i" and not (isinstance(argument, int) and -(2**31) <= argument < 2**31):
            raise TypeError(f"{where} is a 32-bit integer, not {argument!r}")
        return argument


def _three(shape: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*shape, 1, 1)[:3]
    return x, y, z


@dataclass(frozen=True)
class _Module:
    handle: ModuleHandle
    parameters: dict[str, list[Parameter]]
    overlapping: set[str]


class KernelLibrary:
    """The kernels in some directories, compiled for one device and cached on disk.

    The cache depends on everything that the result depends on: source with includes and constants,
    architecture, compiler. Any number of jobs may use it at the same time.
    """

    def __init__(
        self, driver: Driver, directories: Sequence[Path] = (KERNELS,), cache_dir: str | None = None
    ) -> None:
        self.driver = driver
        self.directories = list(directories)
        self.cache_dir = cache_dir or str(kernel_folder().path)
        self._modules: dict[tuple[object, ...], _Module] = {}

    def source(self, file: str, constants: Constants) -> str:
        """The whole source of ``file`` (a name without ``.cu``) under these constants."""
        path = find(f"{file}.cu", self.directories)
        return with_constants(flatten(path, self.directories), constants)

    def compile(self, wanted: Iterable[tuple[str, Constants]]) -> None:
        """Fill the cache with these (file, constants), side by side, each once. Logs how many are missing.

        To be called on one rank a node before the others load. Raises UserError with nvcc's words.
        """
        jobs = list(dict.fromkeys((file, self.source(file, constants)) for file, constants in wanted))
        with ThreadPoolExecutor() as pool:
            kept = pool.map(lambda job: self.driver.is_compiled(job[1], self.cache_dir), jobs)
            missing = [job for job, is_kept in zip(jobs, kept, strict=True) if not is_kept]
            if missing:
                what = f"{len(missing)} kernel file{'s' if len(missing) > 1 else ''}"
                log.info(
                    f"compiling {what} for {self.driver.architecture} (not in the cache yet; some seconds)"
                )
            list(pool.map(lambda job: self._compile(*job), missing))

    def _compile(self, file: str, source: str) -> None:
        try:
            undisturbed(partial(self.driver.compile, source, self.cache_dir))
        except UserError as error:
            raise UserError(f"{find(f'{file}.cu', self.directories)}: {error}") from None

    def kernel(self, file: str, name: str, **constants: str | int) -> Kernel:
        """The kernel ``name`` of ``file`` under these constants; loaded once."""
        key = (file, *sorted(constants.items()))
        if key not in self._modules:
            self._modules[key] = self._load(file, constants)
        module = self._modules[key]
        if name not in module.parameters:
            raise KeyError(f"{file}.cu has no kernel {name}; it has {', '.join(module.parameters)}")
        function = self.driver.function(module.handle, name)
        return Kernel(self.driver, name, function, module.parameters[name], name in module.overlapping)

    def _load(self, file: str, constants: Constants) -> _Module:
        source = self.source(file, constants)
        self._compile(file, source)
        handle = self.driver.load_module(source, self.cache_dir)
        return _Module(handle, parse_kernels(source, constants), overlapping(source))
