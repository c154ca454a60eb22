"""Kernels bound to arguments, and the library that loads them once; no GPU needed."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
from pathlib import Path
from threading import Timer

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from pyrt.kernels import (
    KERNELS,
    Kernel,
    KernelLibrary,
    Launch,
    blocks,
    flatten,
    in_order,
    with_constants,
)
from pyrt.kernels.c_types import CType, Parameter
from tests.pyrt.fakes import NotingDriver
from tests.pyrt.kernels.test_sources import write


class TestBind:
    PARAMETERS = (
        Parameter("n", CType(np.dtype("int32"))),
        Parameter("x", CType(np.dtype("float32")), is_array=True),
        Parameter("rate", CType(np.dtype("float64"))),
    )

    @pytest.fixture
    def kernel(self) -> Kernel:
        return Kernel(NotingDriver(), "saxpy", "saxpy", list(self.PARAMETERS))

    @pytest.fixture
    def x(self, cpu: CpuDriver) -> DeviceArray:
        return DeviceArray.empty(cpu, (8,), "f4")

    def test_a_launch_gives_the_driver_shapes_shared_memory_and_stream(
        self, kernel: Kernel, x: DeviceArray
    ) -> None:
        launch = kernel.bind((7,), (32, 4), 8, x, 0.5, shared=1024)
        assert launch.kernels == ("saxpy",)
        assert kernel.driver.launches == []
        launch("a stream")
        launch("another stream")
        (first, stream), (second, other) = kernel.driver.launches
        assert (stream, other) == ("a stream", "another stream")
        assert first == second
        assert (first.function, first.grid, first.block, first.shared) == (
            "saxpy",
            (7, 1, 1),
            (32, 4, 1),
            1024,
        )

    def test_none_is_the_null_pointer(self, kernel: Kernel) -> None:
        kernel.bind((1,), (1,), 8, None, 0.5)(None)
        packed = kernel.driver.launches[0][0].arguments
        assert packed[8:16] == bytes(8)

    def test_whole_numbers_serve_for_real_ones(self, kernel: Kernel, x: DeviceArray) -> None:
        kernel.bind((1,), (1,), 8, x, 2)(None)
        kernel.bind((1,), (1,), 8, x, 2.0)(None)
        (first, _), (second, _) = kernel.driver.launches
        assert first.arguments == second.arguments

    @pytest.mark.parametrize("count", [2**31, -(2**31) - 1, 8.0, True, None, "8", np.zeros(1)])
    def test_nothing_else_is_an_integer(self, kernel: Kernel, x: DeviceArray, count: object) -> None:
        with pytest.raises(TypeError, match="saxpy: argument n is a "):
            kernel.bind((1,), (1,), count, x, 0.5)

    @pytest.mark.parametrize("rate", [True, None, "0.5", np.zeros(2)])
    def test_nothing_but_a_number_is_a_number(self, kernel: Kernel, x: DeviceArray, rate: object) -> None:
        with pytest.raises(TypeError, match="saxpy: argument rate is a number"):
            kernel.bind((1,), (1,), 8, x, rate)

    def test_an_array_is_no_number(self, kernel: Kernel, x: DeviceArray) -> None:
        with pytest.raises(TypeError, match="saxpy: argument n is a number"):
            kernel.bind((1,), (1,), x, x, 0.5)

    @pytest.mark.parametrize("array", [0, 4096, "x", np.zeros(8, np.float32)])
    def test_nothing_but_a_device_array_is_an_array(self, kernel: Kernel, array: object) -> None:
        with pytest.raises(TypeError, match=r"saxpy: argument x is an array of float32, not (int|str|ndarr)"):
            kernel.bind((1,), (1,), 8, array, 0.5)

    def test_an_array_of_another_type_is_refused(self, kernel: Kernel, cpu: CpuDriver) -> None:
        with pytest.raises(TypeError, match="argument x is an array of float32, not float64"):
            kernel.bind((1,), (1,), 8, DeviceArray.empty(cpu, (8,), "f8"), 0.5)

    @pytest.mark.parametrize("arguments", [(), (8, None), (8, None, 0.5, 1)])
    def test_their_number_is_checked(self, kernel: Kernel, arguments: tuple[int | float | None, ...]) -> None:
        with pytest.raises(TypeError, match=f"saxpy takes 3 arguments, not {len(arguments)}"):
            kernel.bind((1,), (1,), *arguments)


class TestLibrary:
    @pytest.fixture
    def notes(self) -> NotingDriver:
        return NotingDriver()

    @pytest.fixture
    def library(self, notes: NotingDriver, tmp_path: Path) -> KernelLibrary:
        """A library with a kernel of the test's beside those of the project."""
        write(
            tmp_path / "mine",
            scale__cu="// constants: REAL=float|double\n"
            '#include "common.cuh"\n'
            'extern "C" __global__ void scale(int n, real *x) {}\n',
        )
        return KernelLibrary(notes, [tmp_path / "mine", KERNELS], str(tmp_path / "cache"))

    def test_a_file_is_loaded_once_for_each_set_of_constants(
        self, library: KernelLibrary, notes: NotingDriver
    ) -> None:
        for _ in range(2):
            for real, dtype in (("float", "float32"), ("double", "float64")):
                kernel = library.kernel("scale", "scale", REAL=real)
                assert [str(parameter.type.dtype) for parameter in kernel.parameters] == ["int32", dtype]
        assert len(notes.loaded) == 2
        assert [source.splitlines()[0] for source in notes.loaded] == [
            "#define REAL float",
            "#define REAL double",
        ]

    def test_all_directories_are_searched(self, library: KernelLibrary) -> None:
        assert library.kernel("nn/head", "softmax_head", REAL="float").name == "softmax_head"

    def test_what_is_compiled_ahead_is_what_is_loaded(
        self, library: KernelLibrary, notes: NotingDriver
    ) -> None:
        library.compile([("scale", {"REAL": "float"}), ("nn/head", {"REAL": "double"})])
        assert notes.loaded == []
        library.kernel("scale", "scale", REAL="float")
        library.kernel("nn/head", "softmax_head", REAL="double")
        assert set(notes.loaded) == set(notes.compiled)

    def test_what_is_missing_is_counted_before_it_is_compiled(
        self, library: KernelLibrary, notes: NotingDriver, caplog: pytest.LogCaptureFixture
    ) -> None:
        wanted = [
            ("scale", {"REAL": "float"}),
            ("nn/head", {"REAL": "double"}),
            ("nn/head", {"REAL": "float"}),
        ]
        library.compile(wanted[:1])
        notes.fails_with = UserError("nvcc does not compile it")
        with caplog.at_level(logging.INFO, "pyrt"):
            library.compile(wanted[:1])
            assert caplog.messages == []
            with pytest.raises(UserError):
                library.compile([*wanted, *wanted])
        assert caplog.messages == ["compiling 2 kernel files for sm_90a (not in the cache yet; some seconds)"]

    def test_an_unknown_kernel_is_answered_with_the_known(self, library: KernelLibrary) -> None:
        with pytest.raises(UserError, match=r"mine/scale\.cu has no kernel scales; it has scale$"):
            library.kernel("scale", "scales", REAL="float")

    def test_a_kernel_that_cannot_be_launched_says_why(self, notes: NotingDriver, tmp_path: Path) -> None:
        write(tmp_path, f__cu="__global__ void f(int n) {}")
        with pytest.raises(UserError, match=r'f\.cu: the kernel f cannot be launched: .*: write extern "C"'):
            KernelLibrary(notes, [tmp_path], str(tmp_path / "cache")).kernel("f", "f")

    def test_unknown_constants_are_refused_before_anything_is_compiled(
        self, library: KernelLibrary, notes: NotingDriver
    ) -> None:
        with pytest.raises(ValueError, match="declared"):
            library.compile([("nn/head", {"REAL": "float"}), ("scale", {"REAL": "half"})])
        assert notes.compiled == []

    @pytest.mark.parametrize("asked", [True, False])
    def test_a_compiler_that_a_signal_has_ended_starts_again(
        self, library: KernelLibrary, notes: NotingDriver, monkeypatch: pytest.MonkeyPatch, asked: bool
    ) -> None:
        def compile_(source: str, cache_dir: str) -> None:
            notes.compiled.append(source)
            if len(notes.compiled) == 1:
                # A thread notes it, some moments after the signal has ended the compiler.
                later = Timer(0.02, monkeypatch.setattr, ("pyrt.job.signals.stop_was_asked", lambda: asked))
                later.start()
                raise UserError("nvcc does not compile it")

        monkeypatch.setattr(notes, "compile", compile_)
        if asked:
            library.compile([("scale", {"REAL": "float"})])
            assert len(notes.compiled) == 2
        else:
            with pytest.raises(UserError, match="nvcc does not compile it"):
                library.compile([("scale", {"REAL": "float"})])

    def test_a_stop_that_was_asked_for_before_ends_no_compiler(
        self, library: KernelLibrary, notes: NotingDriver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pyrt.job.signals.stop_was_asked", lambda: True)
        notes.fails_with = UserError("nvcc does not compile it")
        with pytest.raises(UserError, match="nvcc does not compile it"):
            library.compile([("scale", {"REAL": "float"})])

    @pytest.mark.parametrize("ahead", [True, False])
    def test_what_the_compiler_says_is_given_with_the_file(
        self, library: KernelLibrary, notes: NotingDriver, ahead: bool
    ) -> None:
        notes.fails_with = UserError("nvcc does not compile it\nits words")
        with pytest.raises(UserError, match=r"mine/scale\.cu: nvcc does not compile it\nits words$"):
            if ahead:
                library.compile([("scale", {"REAL": "float"})])
            else:
                library.kernel("scale", "scale", REAL="float")


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH")
def test_nvcc_names_the_file_and_line_of_a_mistake(tmp_path: Path) -> None:
    """In the file itself and in one that it includes, constants in front or not."""
    write(
        tmp_path,
        wrong__cu="// constants: REAL=float|double\n"
        "\n"
        '#include "common.cuh"\n'
        '#include "wrong.cuh"\n'
        'extern "C" __global__ void wrong(real *x)\n'
        "{\n"
        "    x[0] = undefined_in_line_7;\n"
        "}\n",
        wrong__cuh="\n__device__ inline int f() { return undefined_in_line_2; }\n",
    )
    source = with_constants(flatten(tmp_path / "wrong.cu", [KERNELS]), {"REAL": "double"})
    (tmp_path / "kernel.cu").write_text(source)
    done = subprocess.run(
        ["nvcc", "-ptx", "-arch=sm_80", "-o", str(tmp_path / "out"), str(tmp_path / "kernel.cu")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert re.search(r'wrong\.cu\(7\): error: identifier "undefined_in_line_7"', said), said
    assert re.search(r'wrong\.cuh\(2\): error: identifier "undefined_in_line_2"', said), said


@pytest.mark.parametrize(("size", "tile", "count"), [(0, 8, 1), (1, 8, 1), (8, 8, 1), (9, 8, 2), (17, 1, 17)])
def test_blocks_cover_and_no_grid_is_empty(size: int, tile: int, count: int) -> None:
    assert blocks(size, tile) == count


def test_launches_in_order_are_one_launch() -> None:
    seen: list[tuple[str, object]] = []
    launches = [Launch((name,), lambda stream, name=name: seen.append((name, stream))) for name in "abc"]
    together = in_order(launches)
    together("stream")
    assert together.kernels == ("a", "b", "c")
    assert seen == [("a", "stream"), ("b", "stream"), ("c", "stream")]
    assert in_order(launches[:1]) is launches[0]
