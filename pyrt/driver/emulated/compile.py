"""From CUDA or C++ source to a shared library for this machine's processor, cached on disk.

The compiler is $CXX, a command that may have options, or PATH's g++ or clang++; no CUDA is needed. A kernel
file goes through as it is, but for its ``__shared__`` declarations: C++ has no storage that belongs to a
block.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from pyrt.cache import is_kept, kernel_folder, make_folder
from pyrt.errors import UserError, out_of_files, shown
from pyrt.kernels.preprocess import COMMENT_OR_LITERAL
from pyrt.kernels.signatures import launchable
from pyrt.log import log

HERE = Path(__file__).resolve().parent
NAMES = HERE / "cuda_names.h"
_HEADERS = HERE / "headers"
"""What a kernel file may include of CUDA's."""
_RUNTIME = sorted(HERE.glob("*.cpp"))
_EXPORTS = HERE / "exports.map"
_LIBRARY = "library.so"

# initial-exec: threadIdx is one load from thread-local storage, not a call. No contraction to fused
# multiply-adds: the same bits on every processor. A call that is the last thing a kernel does must come from
# the kernel's own code: its return address is the line that a report names. In some of DWARF 5's tables of
# lines, addr2line of binutils 2.40 takes one file for another. clang++ would drop accesses to a null pointer
# that it can see, and the checks with them.
_FLAGS = [
    *("-std=c++17", "-g1", "-gdwarf-4", "-fPIC", "-pthread", "-ftls-model=initial-exec"),
    *("-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-fno-stack-protector"),
    *("-fno-optimize-sibling-calls", "-fno-delete-null-pointer-checks"),
]

# Kernels run as fast as with -O2, within a few percent, and are compiled in three quarters of the time.
_RUNTIME_OPTIMISED, _KERNELS_OPTIMISED = "-O2", "-O1"

# A call of the runtime's in front of every load and store (checks.cpp), and of no others.
_CHECKED = ["-fsanitize=thread", "-fsanitize=alignment"]
_CHECKED_GCC = ["--param=tsan-distinguish-volatile=1", "--param=tsan-instrument-func-entry-exit=0"]
_CHECKED_CLANG = [
    *("-mllvm", "-tsan-distinguish-volatile", "-mllvm", "-tsan-instrument-func-entry-exit=0"),
    *("-mllvm", "-tsan-instrument-read-before-write", "-mllvm", "-tsan-instrument-atomics=0"),
]
# The compiler makes such calls of loops and of copies of structures; they come to the runtime too.
_CHECKED_LINK = ["-Wl,--wrap=memcpy,--wrap=memmove,--wrap=memset"]

_ALIGNMENT = r"(?:(?:alignas|__align__)\s*\((?P<alignment>[^)]*)\)\s*)?"
_DYNAMIC = re.compile(  # it begins at a page
    rf"\bextern\s+__shared__\s+{_ALIGNMENT}(?P<type>[^;]*?)\s*\b(?P<name>\w+)\s*\[\s*\]\s*;"
)
_STATIC = re.compile(
    rf"(?:\bstatic\s+)?\b__shared__\s+{_ALIGNMENT}"
    r"(?P<type>[^;,=]*?)\s*\b(?P<name>\w+)\s*(?P<sizes>(?:\[[^;\]]*\]\s*)*);"
)

_OUTER = re.compile(r'(?:\bnamespace\b[^()=]*|\bextern\s*"[^"]*"\s*)$')
"""What stands before a brace inside which it is still no function."""


@cache
def compiler() -> tuple[list[str], str]:
    """Return the command of the C++ compiler, and its version.

    $CXX is a command of a shell, as ``ccache g++`` or ``g++ -m64``, or a path, blanks and all. Raises
    UserError where there is no compiler that works.
    """
    command = _command(os.environ.get("CXX", "").strip())
    return command, _run([*command, "--version"], "says no version: mend it, or name another one in $CXX")


def _command(wanted: str) -> list[str]:
    try:
        words = [wanted] if shutil.which(wanted) else shlex.split(wanted)
    except ValueError as error:
        raise UserError(f"$CXX is {shown(wanted)}, which is no command ({error}): give one, as g++") from None
    path = shutil.which(words[0]) if words else shutil.which("g++") or shutil.which("clang++")
    if path is None:
        where = f"$CXX names {shown(words[0])}, which is not there" if words else "install g++ or clang++"
        raise UserError(f"the emulated device needs a C++ compiler: {where}")
    return [path, *words[1:]]


def runtime_library() -> Path:
    """Return the compiled runtime, for all kernels; compile it on first use."""
    text = "".join(path.read_text() for path in (*_RUNTIME, *sorted(HERE.glob("*.h")), _EXPORTS))
    link = [f"-Wl,--version-script={_EXPORTS}"]
    flags = [_RUNTIME_OPTIMISED]
    folder = _folder(text, flags, link, kernel_folder().path)
    if not is_kept(folder):
        log.info("compiling the emulated device (not in the cache yet; some seconds)")
    make_folder(folder, partial(_compile, _RUNTIME, _compiling(flags), _linking(link)))
    return folder / _LIBRARY


def kernel_library(source: str, cache_dir: str, checked: bool) -> Path:
    """Return the compiled form of a whole kernel source, from the cache where it is there.

    ``checked`` says whether its memory accesses can be checked. Raises UserError with the compiler's words.
    """
    text = translate(source)
    flags, link = _kernel_flags(checked)
    folder = _kernel_folder(text, cache_dir, checked)
    if is_kept(folder):
        return folder / _LIBRARY
    flags = [*flags, "-include", _names(checked)]  # not while the kernel's is filled: folders share locks

    def fill(scratch: Path) -> None:
        path = scratch / "kernel.cpp"
        path.write_text(text)
        _compile([path], _compiling(flags), _linking(link), scratch)
        path.unlink()

    make_folder(folder, fill)
    return folder / _LIBRARY


def is_compiled(source: str, cache_dir: str, checked: bool) -> bool:
    """Return whether the cache has `kernel_library`'s result."""
    return is_kept(_kernel_folder(translate(source), cache_dir, checked))


def _kernel_folder(text: str, cache_dir: str, checked: bool) -> Path:
    """Return the path of the compiled form of a translated source."""
    return _folder(f"{text}{NAMES}{_headers()}", *_kernel_flags(checked), Path(cache_dir))


@cache
def _headers() -> str:
    return "".join(header.read_text() for header in (NAMES, *sorted(_HEADERS.iterdir())))


@cache
def _names(checked: bool) -> str:
    """Return the path by which `NAMES` is put in front of kernels.

    g++ takes the compiled form beside it, which saves a small kernel two thirds of its time, or the header
    where it cannot use that.
    """
    if "clang" in compiler()[1]:  # whose compiled headers are given otherwise, and must fit
        return str(NAMES)
    flags, _ = _kernel_flags(checked)
    folder = _folder(f"{NAMES}{_headers()}", flags, [], kernel_folder().path)

    def fill(scratch: Path) -> None:
        header = scratch / NAMES.name
        header.write_text(f'#include "{NAMES}"\n')
        with suppress(UserError):  # which the kernel's own compilation says too
            _run([*_compiling(flags), "-x", "c++-header", str(NAMES), "-o", f"{header}.gch"], "")

    make_folder(folder, fill)
    return str(folder / NAMES.name)


def _kernel_flags(checked: bool) -> tuple[list[str], list[str]]:
    """Return the flags of kernels alone, to compile and to link."""
    flags = [_KERNELS_OPTIMISED, "-I", str(_HEADERS)]
    return (flags + _checked_flags(), _CHECKED_LINK) if checked else (flags, [])


def _checked_flags() -> list[str]:
    _, version = compiler()
    return [*_CHECKED, *(_CHECKED_CLANG if "clang" in version else _CHECKED_GCC)]


@cache
def translate(source: str) -> str:
    """C++ of a CUDA source, line by line: shared variables found in the block's storage, and for each kernel
    a function ``emulated_call_<name>`` that takes its arguments packed.
    """
    source = COMMENT_OR_LITERAL.sub(_without_comment, source)
    _require_within_functions(source)
    source = _DYNAMIC.sub(
        r"\g<type> *const \g<name> = static_cast<\g<type> *>(emulated_dynamic_shared());", source
    )
    source = _STATIC.sub(_shared_variable, source)
    if "__shared__" in source:
        line = source[source.index("__shared__") :].split("\n")[0]
        raise UserError(f"give each __shared__ variable a declaration of its own, with no value: {line}")
    calls = [
        f'extern "C" void emulated_call_{name}(const char *packed) {{ emulated::call({name}, packed); }}'
        for name in launchable(source)
    ]
    return "\n".join([source, *calls, ""])


def _require_within_functions(source: str) -> None:
    """Raise UserError where a ``__shared__`` variable is declared outside all functions.

    Blocks are found by the running one; outside, the translated line would run as the library is loaded.
    """
    source = COMMENT_OR_LITERAL.sub(lambda literal: literal[0][0] + literal[0][-1], source)
    within, begin = [False], 0  # for each brace that is open, whether a function or a type is around
    for match in re.finditer(r"[{};]|\b__shared__\b", source):
        if match[0] == "__shared__" and not within[-1]:
            line = source[source.rfind("\n", 0, match.start()) + 1 :].split("\n")[0].strip()
            raise UserError(f"declare each __shared__ variable inside the kernel that uses it: {line}")
        if match[0] == "{":
            within.append(within[-1] or not _OUTER.search(source[begin : match.start()]))
        elif match[0] == "}" and len(within) > 1:
            within.pop()
        begin = match.end()


def _without_comment(match: re.Match[str]) -> str:
    """Keep a string; replace a comment by its line breaks, so that what follows keeps its line."""
    return match[0] if not match[0].startswith("/") else "\n" * match[0].count("\n") or " "


def _shared_variable(match: re.Match[str]) -> str:
    kind = f"{match['type']} {match['sizes']}".strip()
    alignment = f", {match['alignment']}" if match["alignment"] else ""
    return f"auto &{match['name']} = emulated::shared_variable<{kind}{alignment}>([] {{}});"


def _folder(key: str, flags: list[str], link: list[str], cache: Path) -> Path:
    """Name a folder by all that a library depends on: ``key``, flags, compiler."""
    depends = "\0".join([key, compiler()[1], *_compiling(flags), *_linking(link)])
    return cache / hashlib.sha256(depends.encode()).hexdigest()[:32]


def _compiling(flags: list[str]) -> list[str]:
    return [*compiler()[0], *_FLAGS, *flags]


def _linking(flags: list[str]) -> list[str]:
    return [*compiler()[0], "-shared", "-pthread", *flags]


def _compile(files: list[Path], compiling: list[str], linking: list[str], folder: Path) -> None:
    """Compile and link into a folder."""
    objects = [folder / f"{file.stem}.o" for file in files]
    for file, target in zip(files, objects, strict=True):
        _run([*compiling, "-c", str(file), "-o", str(target)], "does not compile it")
    # -fsanitize is for compiling only: here it would bring the compiler's own runtime in.
    _run([*linking, *map(str, objects), "-o", str(folder / _LIBRARY)], "does not link it")
    if not (folder / _LIBRARY).is_file():
        raise UserError(f"{linking[0]} says nothing, and makes nothing: name another one in $CXX")
    for each in objects:
        each.unlink()


def _run(command: list[str], failure: str) -> str:
    """Run the compiler; return what it prints. Raises UserError that begins with ``failure``."""
    try:
        # Ctrl-C is for the ranks alone: they may finish what they began, or end by themselves.
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", process_group=0)
    except OSError as error:
        raise UserError(
            out_of_files(error) or f"{command[0]} does not run ({error.strerror}): name another one in $CXX"
        ) from None
    if done.returncode < 0:
        signal_ = signal.strsignal(-done.returncode)
        raise UserError(f"{command[0]} was ended ({signal_}): is there enough memory?\n{done.stderr}".strip())
    if done.returncode:
        raise UserError(f"{command[0]} {failure}\n{done.stderr}".strip())
    return done.stdout
