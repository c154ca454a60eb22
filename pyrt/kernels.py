"""From a ``.cu`` file to a launch: constants, includes, the compile cache, arguments checked once.

A kernel file declares its compile-time constants and their values in a line, or in several where not all
go together, and the architectures that it is for, where it is not for all::

    // constants: REAL=float|double TRANSPOSE_A=0|1
    // architectures: sm_80 sm_90a

and its kernels as ``extern "C" __global__ void name(...)``. Their parameters are read from the source
(pyrt/kernel_signatures.py), so that the arguments of a launch are checked against them and packed once.
docs/kernel_files.md has all that such a file may hold.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from pyrt.c_types import Argument, Parameter, pack
from pyrt.cache import kernel_folder
from pyrt.driver import Driver, FunctionHandle, ModuleHandle, StreamHandle
from pyrt.errors import UserError
from pyrt.job import undisturbed
from pyrt.kernel_signatures import Signature, read_kernels
from pyrt.log import log

KERNELS = Path(__file__).resolve().parents[1] / "kernels"
"""The project's own kernels."""

REALS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
"""The constant REAL of kernels for a dtype."""

Constants = Mapping[str, str | int]

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)".*$', re.MULTILINE)
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|endif)\b", re.MULTILINE)
_CONSTANTS = re.compile(r"^// constants:(.*)$", re.MULTILINE)
_ARCHITECTURES = re.compile(r"^// architectures:(.*)$", re.MULTILINE)


def flatten(path: Path, directories: Sequence[Path]) -> str:
    """The source of a kernel file with its ``#include "..."`` files in place, each once.

    nvcc's preprocessor need not run to know whether a compiled version is in the cache. ``#line`` keeps
    every error at its own file and line. The compiler decides about an ``#include`` within an ``#if`` or a
    comment where its file is not there. Raises UserError for any other file that is not there, and for one
    that is not UTF-8.
    """
    return _flatten(path, directories, set(), False)


def _flatten(path: Path, directories: Sequence[Path], seen: set[Path], perhaps: bool) -> str:
    """Flatten one file; ``perhaps``: a compiler may not read it."""
    seen.add(path)
    source = _text(path).replace("#pragma once", "")  # each file is taken once anyway

    def included(match: re.Match[str]) -> str:
        may_not_count = perhaps or _may_not_count(source[: match.start()])
        try:
            found = find(match[1], [path.parent, *directories])
        except UserError:
            if may_not_count:
                return match[0]
            raise
        text = "" if found in seen else _flatten(found, directories, seen, may_not_count)
        next_line = source.count("\n", 0, match.end()) + 2
        return f'{text}\n#line {next_line} "{path}"'

    return f'#line 1 "{path}"\n{_INCLUDE.sub(included, source)}'


def _may_not_count(before: str) -> bool:
    """Tell whether what stands behind this text is within an ``#if`` or a comment."""
    opened = [-1 if directive == "endif" else 1 for directive in _CONDITION.findall(before)]
    return sum(opened) > 0 or before.rfind("/*") > before.rfind("*/")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from None


def find(name: str, directories: Sequence[Path]) -> Path:
    """The first file of that name in the directories; UserError where there is none."""
    for directory in directories:
        if (directory / name).is_file():
            return directory / name
    missing = f"no kernel file {name} in {', '.join(map(str, directories))}"
    if KERNELS in directories:
        require_own_kernels(missing)
    hint = "" if name.endswith(".cu") else ": a header of the compiler's is included as <...>"
    raise UserError(missing + hint)


def require_own_kernels(what: str) -> None:
    """Raise UserError, its message begun by ``what``, where the project's own kernels are not installed."""
    if not KERNELS.is_dir():
        raise UserError(
            f"{what}: this installation of pyrt has no kernels: run from a checkout of the project"
        )


def declared_constants(source: str) -> list[dict[str, list[str]]]:
    """The constants that a kernel file declares, line by line, each with the values it may take.

    Raises UserError for a line of another form.
    """
    return [
        {name: values.split("|") for name, values in (_constant(item) for item in match[1].split())}
        for match in _CONSTANTS.finditer(source)
    ]


def _constant(item: str) -> tuple[str, str]:
    match = re.fullmatch(r"([A-Za-z_]\w*)=(\S+)", item)
    if match is None:
        raise UserError(f"`{item}` in a `// constants:` line is not NAME=VALUE or NAME=VALUE|VALUE")
    return match[1], match[2]


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
    """Whether it waits by itself for the kernel before it: see `Signature`."""

    def bind(
        self, grid: tuple[int, ...], block: tuple[int, ...], *arguments: Argument, shared: int = 0
    ) -> Launch:
        """Check and pack the arguments; grid in blocks, block in threads, ``shared`` in bytes.

        Raises TypeError where an argument is not what the kernel's source asks for.
        """
        if len(arguments) != len(self.parameters):
            raise TypeError(f"{self.name} takes {len(self.parameters)} arguments, not {len(arguments)}")
        try:
            packed = pack(self.parameters, arguments)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        launch = self.driver.launcher(
            self.function, _three(grid), _three(block), packed, shared, self.overlaps
        )
        return Launch((self.name,), launch)


def _three(shape: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*shape, 1, 1)[:3]
    return x, y, z


@dataclass(frozen=True)
class _Module:
    handle: ModuleHandle
    kernels: dict[str, Signature]


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
        return with_constants(flatten(self._path(file), self.directories), constants)

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
            raise UserError(f"{self._path(file)}: {error}") from None

    def kernel(self, file: str, name: str, **constants: str | int) -> Kernel:
        """The kernel ``name`` of ``file`` under these constants; loaded once.

        Raises UserError for a kernel that the file does not have, or that cannot be launched.
        """
        key = (file, *sorted(constants.items()))
        if key not in self._modules:
            self._modules[key] = self._load(file, constants)
        module = self._modules[key]
        signature = module.kernels.get(name)
        if signature is None:
            there = ", ".join(module.kernels) or "none"
            raise UserError(f"{self._path(file)} has no kernel {name}; it has {there}")
        if signature.obstacle:
            raise UserError(
                f"{self._path(file)}: the kernel {name} cannot be launched: {signature.obstacle} "
                "(docs/kernel_files.md)"
            )
        function = self.driver.function(module.handle, name)
        return Kernel(self.driver, name, function, signature.parameters, signature.overlaps)

    def _load(self, file: str, constants: Constants) -> _Module:
        source = self.source(file, constants)
        self._compile(file, source)
        return _Module(self.driver.load_module(source, self.cache_dir), read_kernels(source))

    def _path(self, file: str) -> Path:
        return find(f"{file}.cu", self.directories)
