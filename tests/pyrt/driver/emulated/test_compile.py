"""pyrt/driver/emulated/compile.py: which compiler $CXX names; libraries that do not load."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyrt.cache import KernelFolder, make_folder
from pyrt.driver.emulated import compile, runtime
from pyrt.errors import UserError

SOURCE = 'extern "C" __global__ void test(int *x) { x[0] = 1; }'


@pytest.fixture
def cxx(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A compiler has not been looked for; nor is what is found then kept."""
    compile.compiler.cache_clear()
    yield monkeypatch
    compile.compiler.cache_clear()


def wrapper(path: Path, command: str) -> Path:
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
    return path


def test_it_is_a_command_with_options_or_a_path_with_blanks(tmp_path: Path, cxx: pytest.MonkeyPatch) -> None:
    (plain, *_), version = compile.compiler()
    like_ccache = wrapper(tmp_path / "like-ccache", "")
    with_blanks = wrapper(tmp_path / "a compiler", plain)
    for command in (
        f"{like_ccache} {plain}",
        f"{plain} -DTHERE=1",
        str(with_blanks),
        f"'{with_blanks}' -DTHERE=1",
    ):
        compile.compiler.cache_clear()
        cxx.setenv("CXX", command)
        assert compile.compiler()[1] == version
        source = SOURCE.replace("1", "THERE") if "THERE" in command else SOURCE
        assert compile.kernel_library(source, str(tmp_path), False).is_file()
    cxx.setenv("CXX", "  ")
    compile.compiler.cache_clear()
    assert compile.compiler()[0] == [shutil.which("g++") or shutil.which("clang++")]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-compiler -m64", r"\$CXX names no-compiler, which is not there$"),
        ("'", r"\$CXX is ', which is no command \(No closing quotation\): give one, as g\+\+$"),
    ],
)
def test_one_that_cannot_be_is_named(command: str, message: str, cxx: pytest.MonkeyPatch) -> None:
    cxx.setenv("CXX", command)
    with pytest.raises(UserError, match=message):
        compile.compiler()


BROKEN = [
    ("echo broken >&2; exit 3", "says no version: mend it, or name another one in $CXX\nbroken"),
    ("[ $1 = --version ] && exit; echo k.cpp:1: no >&2; exit 1", "does not compile it\nk.cpp:1: no"),
    ("[ $1 = --version ] && exit; kill -9 $$", "was ended (Killed): is there enough memory?"),
    (
        "[ $1 = --version ] && exit; kill -40 $$",
        "was ended (Real-time signal 6): is there enough memory?",
    ),
    ("exit", "says nothing, and makes nothing: name another one in $CXX"),
    (
        "[ $1 = --version ] && exit; printf '\\351\\n' >&2; exit 1",
        "does not compile it\n\N{REPLACEMENT CHARACTER}",
    ),
    (None, "does not run (Exec format error): name another one in $CXX"),
]
"""Compilers as scripts, or no program, and what is said of them."""


def broken_compiler(folder: Path, script: str | None) -> Path:
    compiler = folder / "g++"
    compiler.write_text("no program" if script is None else f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    return compiler


@pytest.mark.parametrize(("script", "words"), BROKEN)
def test_a_broken_one_is_told_by_its_words(
    tmp_path: Path, script: str | None, words: str, cxx: pytest.MonkeyPatch
) -> None:
    """So it is in a whole job, on all ranks: tests/test_faults.py."""
    compiler = broken_compiler(tmp_path, script)
    cxx.setenv("CXX", str(compiler))
    with pytest.raises(UserError) as caught:
        compile.kernel_library(SOURCE, str(tmp_path / "cache"), False)
    assert str(caught.value).startswith(f"{compiler} {words}")


def test_a_library_that_does_not_load_is_one_line_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a C compiler, or one in a folder from which nothing may run."""
    library = tmp_path / "library.so"
    library.write_text("no library")
    with pytest.raises(
        UserError, match=r"^\S+/library\.so: .+: name another C\+\+ compiler in \$CXX, as g\+\+"
    ):
        runtime._load(library, ctypes.DEFAULT_MODE)
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(
        UserError, match=r"^\S+/library\.so: .+ \(noexec\): set PYRT_CACHE_DIR to a folder of"
    ):
        runtime._load(library, ctypes.DEFAULT_MODE)


def test_the_runtime_shows_nothing_of_the_cpp_library() -> None:
    """It is loaded for all to see; libraries that are loaded later must not take C++'s from it."""
    library = compile.runtime_library()
    printed = subprocess.check_output(["nm", "-D", "--defined-only", library], text=True)
    names = [line.split()[-1] for line in printed.splitlines()]
    ours = ("emulated_", "_ZN8emulated", "__tsan_", "__ubsan_", "__wrap_")
    assert names and [name for name in names if not name.startswith(ours)] == []


USE = "tile[threadIdx.x] = 1; x[0] = tile[0];"


@pytest.mark.parametrize(
    ("declaration", "around"),
    [
        ("extern __shared__ float tile[];", "{}"),
        ("extern __shared__ __align__(16) int tile[];", 'extern "C" {{ {} }}'),
        ("__shared__ int tile[4];", "namespace {{ inline int one() {{ return 1; }} {} }}"),
        (
            "static __shared__ int tile[4];",
            "namespace a::b {{ struct S {{ int x; }}; {} }} using namespace a::b;",
        ),
    ],
)
def test_a_shared_variable_outside_all_functions_is_refused_with_what_to_write(
    declaration: str, around: str
) -> None:
    """It would be looked for as the library is loaded, when no block runs: the process would end."""
    kernel = f'extern "C" __global__ void test(int *x) {{ {USE} }}'
    words = rf"^declare each __shared__ variable inside the kernel that uses it: .*{re.escape(declaration)}"
    with pytest.raises(UserError, match=words):
        compile.translate(f"// a '}}'\n{around.format(declaration)}\n{kernel}")


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "namespace a {{ {} }}",
        "const int table[] = {{1, 2}}; {}",
        "#define LOG \"}}\"\nstruct S {{ int x = '{{'; }};\n{}",
        "template <class T> struct Of {{ __device__ void go() {{ __shared__ T one; one = T(); }} }};\n{}",
    ],
)
def test_one_inside_a_function_is_not_refused(around: str) -> None:
    kernel = f'extern "C" __global__ void test(int *x) {{ if (x) {{ extern __shared__ int tile[]; {USE} }} }}'
    assert "emulated_dynamic_shared" in compile.translate(around.format(kernel))


@pytest.mark.parametrize("checked", [False, True])
def test_names_are_compiled_once_for_all_kernels(tmp_path: Path, checked: bool) -> None:
    """With the flags of kernels, or g++ would read them again and not say so."""
    if "clang" in compile.compiler()[1]:
        pytest.skip("g++ alone takes the compiled form of a header that is included")
    names = compile._names(checked)
    assert Path(f"{names}.gch").is_file()
    (tmp_path / "kernel.cpp").write_text("")
    flags = [*compile._compiling(compile._kernel_flags(checked)[0]), "-Werror", "-Winvalid-pch"]
    compile._run([*flags, "-include", names, "-fsyntax-only", str(tmp_path / "kernel.cpp")], "fails")


def test_no_folder_is_filled_while_another_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders share locks: a process may wait for itself."""
    filled: list[Path] = []

    def noting(folder: Path, fill: Callable[[Path], object]) -> None:
        def fill_alone(scratch: Path) -> None:
            before = len(filled)
            fill(scratch)
            assert len(filled) == before
            filled.append(folder)

        make_folder(folder, fill_alone)

    monkeypatch.setattr(compile, "make_folder", noting)
    monkeypatch.setattr(compile, "kernel_folder", lambda: KernelFolder(tmp_path, ""))
    monkeypatch.setattr(compile, "_names", compile._names.__wrapped__)
    for _ in range(2):
        assert compile.kernel_library(SOURCE, str(tmp_path), checked=False).is_file()
    assert len(filled) == (1 if "clang" in compile.compiler()[1] else 2)
