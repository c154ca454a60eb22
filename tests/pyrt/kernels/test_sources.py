"""Sources of kernels: includes put in place, constants, headers that a constant names."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.kernels import (
    KERNELS,
    REALS,
    KernelLibrary,
    all_constants,
    architectures,
    declared_constants,
    find,
    flatten,
    with_constants,
)
from tests import few
from tests.pyrt.fakes import NotingDriver

PROJECT_FILES = sorted(KERNELS.rglob("*.cu"))


def in_project(file: Path) -> str:
    return str(file.relative_to(KERNELS))


def write(folder: Path, **files: str) -> None:
    """Write each text to the file of that name, ``__`` in a name standing for the dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def origins(source: str) -> list[tuple[Path, int, str]]:
    """File and line that a compiler would report for each line of a source with #line, and that line."""
    result = []
    file, number = Path("?"), 0
    for line in source.split("\n"):
        if directive := re.fullmatch(r'#line (\d+) "(.*)"', line):
            file, number = Path(directive[2]), int(directive[1])
        else:
            result.append((file, number, line))
            number += 1
    return result


class TestFlatten:
    def test_the_project_has_kernels(self) -> None:
        assert {"gemm/ladder.cu", "nn/update.cu", "comm/peer.cu"} <= set(map(in_project, PROJECT_FILES))

    @pytest.mark.parametrize("file", PROJECT_FILES, ids=in_project)
    def test_every_line_is_reported_where_it_stands(self, file: Path) -> None:
        # Of some hundred combinations most have the same text: constants that name headers change it.
        combinations = all_constants(file.read_text())
        some = few(combinations[::4], of=combinations)
        sources = {flatten(file, [KERNELS], each): each for each in some}
        for source, constants in sources.items():
            texts: dict[Path, list[str]] = {}
            for path, number, line in origins(source):
                lines = texts.setdefault(path, path.read_text().split("\n"))
                if line.strip():  # else where a line was taken out
                    assert line == lines[number - 1]
            assert {file, KERNELS / "common.cuh"} <= set(texts)
            assert "UPDATE" not in constants or KERNELS / constants["UPDATE"] in texts

    def test_includes_stand_where_they_were_and_each_once(self, tmp_path: Path) -> None:
        write(
            tmp_path,
            a__cu='1 a\n#include "b.cuh"\n  # include "c.cuh"  // again\n4 a\n',
            b__cuh='#pragma once\n2 b\n#include "c.cuh"\n4 b',
            c__cuh="1 c\n",
        )
        lines = [(path.name, n, line) for path, n, line in origins(flatten(tmp_path / "a.cu", [])) if line]
        assert lines == [
            ("a.cu", 1, "1 a"),
            ("b.cuh", 2, "2 b"),
            ("c.cuh", 1, "1 c"),
            ("b.cuh", 4, "4 b"),
            ("a.cu", 4, "4 a"),
        ]

    def test_includes_are_sought_beside_the_file_first(self, tmp_path: Path) -> None:
        write(tmp_path / "mine", a__cu='#include "b.cuh"\n#include "c.cuh"\n', b__cuh="my b")
        write(tmp_path / "theirs", b__cuh="their b", c__cuh="their c")
        source = flatten(tmp_path / "mine" / "a.cu", [tmp_path / "theirs"])
        assert "my b" in source
        assert "their b" not in source
        assert "their c" in source

    def test_system_includes_are_left_to_the_compiler(self, tmp_path: Path) -> None:
        write(tmp_path, a__cu="#include <mma.h>\n")
        assert "#include <mma.h>\n" in flatten(tmp_path / "a.cu", [])

    def test_a_file_that_is_not_there_is_named_with_the_places_searched(self, tmp_path: Path) -> None:
        write(tmp_path, a__cu='#include "absent.cuh"\n')
        with pytest.raises(UserError, match=rf"no kernel file absent\.cuh in .*{re.escape(str(tmp_path))}"):
            flatten(tmp_path / "a.cu", [KERNELS])
        with pytest.raises(UserError, match=r"no kernel file b\.cu in"):
            find("b.cu", [tmp_path])

    def test_a_missing_file_that_may_not_count_is_left_to_the_compiler(self, tmp_path: Path) -> None:
        """Within an #if, a comment, or a file that is included there; not behind them."""
        line = '#include "absent.cuh"\n'
        write(tmp_path, b__cuh=line)
        for begin, end in (("#if 0\n", "#endif\n"), ("#ifdef X\n#else\n", " # endif\n"), ("/*\n", "*/\n")):
            for include in (line, '#include "b.cuh"\n'):
                write(tmp_path, a__cu=begin + include + end)
                assert line in flatten(tmp_path / "a.cu", [])
            write(tmp_path, a__cu=begin + end + line)
            with pytest.raises(UserError, match=r"no kernel file absent\.cuh"):
                flatten(tmp_path / "a.cu", [])

    @pytest.mark.parametrize("before", ["// constants: A=a/*.cuh", "/* // */", "/**/ // /*", "// */ /*"])
    def test_a_line_comment_opens_and_closes_no_other(self, tmp_path: Path, before: str) -> None:
        write(tmp_path, a__cu=f'{before}\n#include "absent.cuh"\n')
        with pytest.raises(UserError, match=r"no kernel file absent\.cuh"):
            flatten(tmp_path / "a.cu", [])

    def test_a_header_of_the_compilers_stands_in_angle_brackets(self, tmp_path: Path) -> None:
        write(tmp_path, a__cu='#include "cuda_fp16.h"\n')
        with pytest.raises(UserError, match=r"no kernel file cuda_fp16\.h in .*included as <\.\.\.>$"):
            flatten(tmp_path / "a.cu", [])

    def test_text_in_another_encoding_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "a.cu").write_bytes("// Größe\n".encode("latin-1"))
        with pytest.raises(UserError, match=r"a\.cu is not UTF-8 text \(.*\): save it as UTF-8$"):
            flatten(tmp_path / "a.cu", [])


class TestConstants:
    SOURCE = "// A kernel.\n// constants: REAL=float|double WIDE=0|1\n\nint x;\n"

    def test_are_declared_in_a_line_of_the_source(self) -> None:
        assert declared_constants(self.SOURCE) == [{"REAL": ["float", "double"], "WIDE": ["0", "1"]}]
        assert declared_constants("int x; // no constants:\n") == []

    @pytest.mark.parametrize("line", ["REAL", "REAL=", "=float", "A=1 REAL:float", "REAL = float"])
    def test_a_line_of_another_form_is_refused(self, line: str) -> None:
        with pytest.raises(
            UserError, match=r"` in a `// constants:` line is not NAME=VALUE or NAME=VALUE\|VALUE"
        ):
            declared_constants(f"// constants: {line}\n")

    def test_all_combinations(self) -> None:
        assert all_constants(self.SOURCE) == [
            {"REAL": "float", "WIDE": "0"},
            {"REAL": "float", "WIDE": "1"},
            {"REAL": "double", "WIDE": "0"},
            {"REAL": "double", "WIDE": "1"},
        ]
        assert all_constants("int x;") == [{}]

    def test_lines_whose_constants_do_not_go_together(self) -> None:
        source = "// constants: A=0|1 B=0\n// constants: A=0 B=1\n"
        wanted = [{"A": "0", "B": "0"}, {"A": "1", "B": "0"}, {"A": "0", "B": "1"}]
        assert all_constants(source) == wanted
        with pytest.raises(ValueError, match="are not of the declared"):
            with_constants(source, {"A": 1, "B": 1})

    def test_architectures(self) -> None:
        assert architectures("// architectures: sm_80 sm_90a\n") == ["sm_80", "sm_90a"]
        assert architectures(self.SOURCE) is None

    def test_are_defined_in_front_of_the_source(self) -> None:
        source = with_constants(self.SOURCE, {"REAL": "double", "WIDE": 1})
        assert source == f"#define REAL double\n#define WIDE 1\n{self.SOURCE}"

    @pytest.mark.parametrize(
        "constants",
        [
            pytest.param({"REAL": "float"}, id="missing"),
            pytest.param({"REAL": "float", "WIDE": 0, "TALL": 1}, id="unknown"),
            pytest.param({"REAL": "half", "WIDE": 0}, id="not of the declared values"),
        ],
    )
    def test_others_than_the_declared_are_refused(self, constants: dict[str, str | int]) -> None:
        with pytest.raises(ValueError, match=r"not of the declared .*REAL"):
            with_constants(self.SOURCE, constants)


class TestHeaders:
    """Constants whose values are headers, which the file includes by the constant's name."""

    FILE = """// constants: REAL=float|double RULE=rules/*.cuh|none.cuh
#include RULE
extern "C" __global__ void apply(const Rule *rule, real *x) { *x = rule->of(*x); }
"""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A kernel with three headers, and one that does not fit the pattern."""
        folder = tmp_path / "mine"
        write(folder, apply__cu=self.FILE, none__cuh="typedef REAL real;\nstruct Rule { real of(real x); };")
        write(folder / "rules", half__cuh=self._rule("x / 2"), double__cuh=self._rule("x * 2"), other__h="")
        return folder

    @staticmethod
    def _rule(result: str) -> str:
        return (
            "typedef REAL real;\n"
            f"struct Rule {{ int n; __device__ real of(real x) const {{ return {result} + n; }} }};\n"
        )

    def test_a_pattern_stands_for_each_header_that_the_folders_have(self, folder: Path) -> None:
        headers = [line["RULE"] for line in all_constants(self.FILE, [folder]) if line["REAL"] == "float"]
        assert headers == ["rules/double.cuh", "rules/half.cuh", "none.cuh"]
        write(folder.parent / "theirs" / "rules", third__cuh="")
        both = [folder, folder.parent / "theirs"]
        assert {"REAL": "double", "RULE": "rules/third.cuh"} in all_constants(self.FILE, both)
        assert len(all_constants(self.FILE, both)) == 2 * 4
        assert all_constants("// constants: RULE=rules/*.cuh\n", [folder / "rules"]) == []

    def test_the_project_has_a_rule_for_each_optimiser(self) -> None:
        headers = {line["UPDATE"] for line in all_constants((KERNELS / "nn" / "update.cu").read_text())}
        assert {"nn/updates/sgd.cuh", "nn/updates/adam.cuh"} <= headers

    @pytest.mark.parametrize("header", ["rules/half.cuh", "rules/of_somebody_else.cuh", "none.cuh"])
    def test_what_fits_the_pattern_is_taken(self, header: str) -> None:
        source = with_constants(self.FILE, {"REAL": "float", "RULE": header})
        assert source == f"#define REAL float\n#define RULE {header}\n{self.FILE}"

    @pytest.mark.parametrize("header", ["rules/half.h", "half.cuh", "mine/rules/half.cuh", "rules/*", ""])
    def test_others_are_refused(self, header: str) -> None:
        with pytest.raises(ValueError, match=r"not of the declared .*rules/\*\.cuh"):
            with_constants(self.FILE, {"REAL": "float", "RULE": header})

    def test_the_header_stands_where_its_name_was(self, folder: Path) -> None:
        constants = {"REAL": "float", "RULE": "rules/half.cuh"}
        found = origins(flatten(folder / "apply.cu", [folder], constants))
        lines = [(path.name, number) for path, number, line in found if line]
        assert lines == [("apply.cu", 1), ("half.cuh", 1), ("half.cuh", 2), ("apply.cu", 3)]

    def test_it_is_taken_once_and_sought_as_any_other(self, folder: Path) -> None:
        """Beside the file first, then in the folders; a header may include others."""
        write(folder, apply__cu='  # include  RULE\n#include RULE\n#include "none.cuh"\n', none__cuh="twice?")
        write(
            folder / "rules", half__cuh='#include "beside.cuh"\n#include "none.cuh"\n', beside__cuh="beside"
        )
        text = flatten(folder / "apply.cu", [folder], {"RULE": "rules/half.cuh"})
        assert [line for line in text.split("\n") if line and line[0] != "#"] == ["beside", "twice?"]

    def test_a_header_that_is_not_there_is_named(self, folder: Path) -> None:
        with pytest.raises(UserError, match=r"no kernel file rules/third\.cuh in"):
            flatten(folder / "apply.cu", [folder], {"RULE": "rules/third.cuh"})

    def test_a_name_that_is_no_constant_is_left_to_the_compiler(self, folder: Path) -> None:
        assert "\n#include RULE\n" in flatten(folder / "apply.cu", [folder], {"REAL": "float"})

    def test_each_header_makes_a_module_of_its_own(self, folder: Path) -> None:
        notes = NotingDriver()
        library = KernelLibrary(notes, [folder], str(folder / "cache"))
        for _ in range(2):
            for header in ("rules/half.cuh", "rules/double.cuh"):
                kernel = library.kernel("apply", "apply", REAL="float", RULE=header)
                dtypes = [str(parameter.type.dtype) for parameter in kernel.parameters]
                assert dtypes == ["uint8", "float32"]  # real is what the header says
        assert [("x / 2" in source, "x * 2" in source) for source in notes.loaded] == [
            (True, False),
            (False, True),
        ]

    def test_what_a_kernel_does_its_header_says(self, driver: Driver, folder: Path, dtype: np.dtype) -> None:
        library = KernelLibrary(driver, [folder], str(folder / "cache"))
        stream = driver.create_stream()
        rule = DeviceArray.from_host(driver, np.array([1], np.int32).view(np.uint8))
        seen = []
        for header in ("rules/half.cuh", "rules/double.cuh"):
            x = DeviceArray.from_host(driver, np.full(1, 5, dtype))
            kernel = library.kernel("apply", "apply", REAL=REALS[dtype], RULE=header)
            kernel.bind((1,), (1,), rule, x)(stream)
            driver.synchronize_stream(stream)
            seen.append(x.to_host().item())
        assert seen == [3.5, 11]
