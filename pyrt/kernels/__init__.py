"""From a ``.cu`` file to a launch: constants, includes, the compile cache, arguments checked once.

A kernel file declares its compile-time constants and their values in a line, or in several where not all
go together, and the architectures that it is for, where it is not for all::

    // constants: REAL=float|double TRANSPOSE_A=0|1
    // architectures: sm_80 sm_90a

and its kernels as ``extern "C" __global__ void name(...)``. Their parameters are read from the source
(pyrt/kernels/signatures.py), so that the arguments of a launch are checked against them and packed once.
docs/reference/kernel_files.md has all that such a file may hold.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from pyrt.arrays import DeviceArray
from pyrt.cache import kernel_folder
from pyrt.driver import Driver, FunctionHandle, ModuleHandle, StreamHandle
from pyrt.errors import UserError
from pyrt.job.signals import undisturbed
from pyrt.kernels.c_types import Argument, Parameter, pack
from pyrt.kernels.signatures import Signature, read_kernels
from pyrt.log import log

_INSTALLED = Path(__file__).resolve().parent / "source"

KERNELS = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).resolve().parents[2] / "kernels"
"""The project's own kernels: in this package where it is installed, beside ``pyrt`` in a checkout."""

REALS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
"""The constant REAL of kernels for a dtype."""

Constants = Mapping[str, str | int]

NO_CONSTANTS: Constants = MappingProxyType({})

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|([A-Z_]\w*)[ \t]*$).*$', re.MULTILINE)
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|endif)\b", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(\*/|\Z)", re.DOTALL)
_FIRST_LINE = re.compile(r'^#line 1 "([^"]+)"$', re.MULTILINE)
_CONSTANTS = re.compile(r"^// constants:(.*)$", re.MULTILINE)
_ARCHITECTURES = re.compile(r"^// architectures:(.*)$", re.MULTILINE)


def flatten(path: Path, directories: Sequence[Path], constants: Constants = NO_CONSTANTS) -> str:
    """Return the source of a kernel file with its ``#include "..."`` files in place, each once.

    ``#include NAME`` stands for the header that the constant of that name gives.

    So nvcc's preprocessor need not run to know whether a compiled version is in the cache. ``#line`` keeps
    every error at its own file and line. An ``#include`` within an ``#if`` or a comment, of a file that is
    not there, is left to the compiler. Raises UserError for any other file that is not there, and for one
    that is not UTF-8.
    """
    return _Flattener(directories, constants).flat(path, False)


class _Flattener:
    """Puts each included file in place, once."""

    def __init__(self, directories: Sequence[Path], constants: Constants) -> None:
        self._directories, self._constants = directories, constants
        self._seen: set[Path] = set()

    def flat(self, path: Path, perhaps: bool) -> str:
        """Flatten one file; ``perhaps``: a compiler may not read it."""
        self._seen.add(path)
        source = _text(path).replace("#pragma once", "")  # each file is taken once anyway

        def included(match: re.Match[str]) -> str:
            may_not_count = perhaps or _may_not_count(source[: match.start()])
            name = match[1] or self._constants.get(match[2])
            if name is None:  # a macro of the file's own
                return match[0]
            try:
                found = find(str(name), [path.parent, *self._directories])
            except UserError:
                if may_not_count:
                    return match[0]
                raise
            text = "" if found in self._seen else self.flat(found, may_not_count)
            next_line = source.count("\n", 0, match.end()) + 2
            return f'{text}\n#line {next_line} "{path}"'

        return f'#line 1 "{path}"\n{_INCLUDE.sub(included, source)}'


def _may_not_count(before: str) -> bool:
    """Tell whether what stands behind this text is within an ``#if`` or a comment."""
    opened = [-1 if directive == "endif" else 1 for directive in _CONDITION.findall(before)]
    comments = list(_COMMENT.finditer(before))
    in_comment = bool(comments) and comments[-1][0].startswith("/*") and not comments[-1][1]
    return sum(opened) > 0 or in_comment


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error}): save it as UTF-8") from None


def file_of(source: str) -> str:
    """Return the kernel file that a whole source was made from: its first line names it."""
    match = _FIRST_LINE.search(source)
    return match[1] if match else "a kernel source"


def find(name: str, directories: Sequence[Path]) -> Path:
    """Find the first file of that name in the directories. Raises UserError if there is none."""
    for directory in directories:
        if (directory / name).is_file():
            return directory / name
    hint = "" if name.endswith(".cu") else ": a header of the compiler's is included as <...>"
    raise UserError(f"no kernel file {name} in {', '.join(map(str, directories))}{hint}")


def declared_constants(source: str) -> list[dict[str, list[str]]]:
    """List the constants that a kernel file declares, line by line, each with the values it may take.

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
    """List the architectures that a kernel file is for; None: all."""
    match = _ARCHITECTURES.search(source)
    return match[1].split() if match else None


def all_constants(source: str, directories: Sequence[Path] = (KERNELS,)) -> list[dict[str, str]]:
    """List every combination of the declared constants; of a pattern of headers, each that there is."""
    return list(itertools.chain(*constants_by_line(source, directories)))


def constants_by_line(source: str, directories: Sequence[Path] = (KERNELS,)) -> list[list[dict[str, str]]]:
    """List the combinations of each line of declared constants; one empty one where there is no line."""
    return [
        [
            dict(zip(line, values, strict=True))
            for values in itertools.product(*(_expanded(values, directories) for values in line.values()))
        ]
        for line in declared_constants(source) or [{}]
    ]


def _expanded(values: Sequence[str], directories: Sequence[Path]) -> list[str]:
    """List the values, each pattern replaced by the headers it matches."""
    result = []
    for value in values:
        if "*" not in value:
            result.append(value)
            continue
        paths = (path.relative_to(folder) for folder in directories for path in sorted(folder.glob(value)))
        result += map(str, paths)
    return result


def _declares(line: Mapping[str, Sequence[str]], given: Mapping[str, str]) -> bool:
    """Return whether a line of declared constants allows these."""
    return line.keys() == given.keys() and all(
        any(fnmatchcase(given[name], value) for value in values) for name, values in line.items()
    )


def with_constants(source: str, constants: Constants) -> str:
    """Return the source with its constants defined. Raises ValueError for missing or unknown constants."""
    given = {name: str(value) for name, value in constants.items()}
    declared = declared_constants(source)
    if not any(_declares(line, given) for line in declared or [{}]):
        raise ValueError(f"constants {given} are not of the declared {declared}")
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
    owners: tuple[object, ...] = ()
    """What keeps the memory that arrays among the arguments have taken from others."""

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

    owners = tuple(owner for launch in launches for owner in launch.owners)
    return Launch(tuple(name for launch in launches for name in launch.kernels), call, owners)


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
        arrays = [argument for argument in arguments if isinstance(argument, DeviceArray)]
        return Launch((self.name,), launch, tuple(array.owner for array in arrays if array.owner is not None))


def _three(shape: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*shape, 1, 1)[:3]
    return x, y, z


@dataclass(frozen=True)
class _Module:
    handle: ModuleHandle
    kernels: Mapping[str, Signature]


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
        """Return the whole source of ``file`` (a name without ``.cu``) under these constants."""
        return with_constants(flatten(self._path(file), self.directories, constants), constants)

    def compile(self, wanted: Iterable[tuple[str, Constants]]) -> None:
        """Fill the cache with these (file, constants), side by side, each once: see `compile_sources`."""
        self.compile_sources(self.source(file, constants) for file, constants in wanted)

    def compile_sources(self, sources: Iterable[str]) -> None:
        """Fill the cache with these whole sources, side by side, each once. Logs how many are missing.

        To be called on one rank a node before the others load. Raises UserError with nvcc's words.
        """
        wanted = list(dict.fromkeys(sources))
        with ThreadPoolExecutor() as pool:
            kept = pool.map(lambda source: self.driver.is_compiled(source, self.cache_dir), wanted)
            missing = [source for source, is_kept in zip(wanted, kept, strict=True) if not is_kept]
            if missing:
                what = f"{len(missing)} kernel file{'s' if len(missing) > 1 else ''}"
                log.info(
                    f"compiling {what} for {self.driver.architecture} (not in the cache yet; some seconds)"
                )
            list(pool.map(self._compile, missing))

    def _compile(self, source: str) -> None:
        try:
            undisturbed(partial(self.driver.compile, source, self.cache_dir))
        except UserError as error:
            raise UserError(f"{file_of(source)}: {error}") from None

    def kernel(self, file: str, name: str, **constants: str | int) -> Kernel:
        """Return the kernel ``name`` of ``file`` under these constants; load it once.

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
                "(docs/reference/kernel_files.md)"
            )
        function = self.driver.function(module.handle, name)
        return Kernel(self.driver, name, function, signature.parameters, signature.overlaps)

    def _load(self, file: str, constants: Constants) -> _Module:
        source = self.source(file, constants)
        self._compile(source)
        return _Module(self.driver.load_module(source, self.cache_dir), read_kernels(source))

    def _path(self, file: str) -> Path:
        return find(f"{file}.cu", self.directories)
