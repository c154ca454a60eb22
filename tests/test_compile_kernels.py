"""tools/compile_kernels.py: its lines come while it compiles; without a compiler."""

from threading import Event

import pytest

from tools import compile_kernels
from tools.compile_kernels import ARCHITECTURES, Compiled, covering, different, jobs_of, main

ARCHITECTURES_DIFFER = "#if __CUDA_ARCH__ >= 800\n#elif __CUDA_ARCH__ < 900\n#endif\n"
SOURCE = f"// constants: REAL=float|double\n{ARCHITECTURES_DIFFER}"


@pytest.fixture
def files(tmp_path):
    """Two files of two variants."""
    made = [tmp_path / "first.cu", tmp_path / "second.cu"]
    for file in made:
        file.write_text(SOURCE)
    return list(map(str, made))


@pytest.fixture
def compiled(monkeypatch):
    """What is compiled, in the place of nvcc: registers and errors may be changed by file."""
    results = {"first.cu": (24, 0, ""), "second.cu": (255, 0, "")}

    def compile_one(file, constants, architecture):
        return Compiled(file, " ".join(map("=".join, constants.items())), architecture, *results[file.name])

    monkeypatch.setattr(compile_kernels, "compile_one", compile_one)
    return results


def test_a_file_has_its_line_while_the_next_one_is_compiled(files, compiled, monkeypatch, capsys):
    told, tell, compile_one = Event(), compile_kernels.tell, compile_kernels.compile_one

    def waits(file, constants, architecture):
        if file.name == "second.cu":
            assert told.wait(60)
        return compile_one(file, constants, architecture)

    def tells(file, results, seconds):
        well = tell(file, results, seconds)
        assert file.name in capsys.readouterr().out.splitlines()[-1]
        told.set()
        return well

    monkeypatch.setattr(compile_kernels, "compile_one", waits)
    monkeypatch.setattr(compile_kernels, "tell", tells)
    assert main(files) == 0
    assert told.is_set()


def test_the_lines_say_what_was_compiled_and_the_first_error_of_each_file(files, compiled, capsys):
    count = 2 * len(ARCHITECTURES)
    compiled["first.cu"] = 24, 0, "y is undefined"
    assert main([*files, files[0]]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"{2 * count} compilations of 2 files, ")
    lines = [line.split() for line in out.splitlines()[2:]]
    assert lines[0][:-1] == ["first.cu", "2", *ARCHITECTURES, "24", "0", str(count), "of", str(count)]
    assert lines[1][:-1] == ["second.cu", "2", *ARCHITECTURES, "255", "0", "-"]
    assert max(map(len, out.splitlines())) <= 80
    assert err.count("kernels: error: first.cu REAL=float sm_90a:\ny is undefined\n") == 1
    assert err.count("error") == 1


def test_registers_that_are_spilled_are_an_error(files, compiled, capsys):
    compiled["second.cu"] = 255, 16, ""
    assert main(files) == 1
    assert "second.cu REAL=float sm_90a:\n16 bytes of registers spilled" in capsys.readouterr().err


@pytest.mark.parametrize(("is_long", "newest"), [(False, 3 + 2), (True, 12 + 2)])
def test_every_value_of_every_constant_is_compiled(tmp_path, monkeypatch, is_long, newest):
    """The newest compiles those of each line, or every combination."""
    monkeypatch.setattr(compile_kernels, "LONG", is_long)
    file = tmp_path / "a.cu"
    lines = "// constants: REAL=float|double N=1|2|3 KIND=a|b\n// constants: REAL=float N=1|2 KIND=a\n"
    file.write_text(f"{lines}{ARCHITECTURES_DIFFER}")
    of = {one: [constants for _, constants, used in jobs_of(file) if used == one] for one in ARCHITECTURES}
    assert [len(of[one]) for one in ARCHITECTURES] == [3, 3, newest]
    for jobs in of.values():
        assert {item for constants in jobs for item in constants.items()} == {
            *(("REAL", "float"), ("REAL", "double"), ("N", "1"), ("N", "2"), ("N", "3")),
            *(("KIND", "a"), ("KIND", "b")),
        }
    assert {one["N"] for one in of["sm_90a"] if (one["REAL"], one["KIND"]) == ("float", "a")} >= {"1", "2"}


def test_older_architectures_take_one_activation(tmp_path):
    file = tmp_path / "a.cu"
    file.write_text(f"// constants: REAL=float|double ACTIVATION=tanh|relu|identity\n{ARCHITECTURES_DIFFER}")
    used = [architecture for *_, architecture in jobs_of(file)]
    assert [used.count(one) for one in ARCHITECTURES] == [2, 2, 3]


def test_a_file_without_constants_is_compiled_once():
    assert covering([{}], set()) == [{}]


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("", ["sm_75"]),
        ("#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900", ["sm_75"]),
        ("#if __CUDA_ARCH__ >= 800", ["sm_75", "sm_80"]),
        ("#if __CUDA_ARCH__ < 800", ["sm_75", "sm_80"]),
        ("#if __CUDA_ARCH__ >= 750", ["sm_75"]),
    ],
)
def test_an_architecture_with_the_same_code_as_an_older_one_is_left_out(source, kept):
    assert different(["sm_75", "sm_80"], source) == kept
    assert different([], source) == []
