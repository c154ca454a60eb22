"""python3 -m bench, and what its programs share."""

import sys
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import program
from bench.program import WrongResult, start
from pyrt import devices
from pyrt.errors import UserError


@pytest.fixture
def ran(monkeypatch):
    """The names of the programs that were run, each of which ends with the exit code of its place."""
    names = []

    class Done:
        def __init__(self, command):
            names.append(command[1].stem)
            self.returncode = len(names) - 1

    monkeypatch.setattr(bench.subprocess, "run", Done)
    monkeypatch.setattr(devices, "usable_gpus", lambda: (["gpu-a"], ""))
    return names


def test_runs_all_in_order_and_answers_the_worst(ran):
    assert bench.main([]) == len(bench.PROGRAMS) - 1
    assert ran == list(bench.PROGRAMS)


def test_runs_what_is_named(ran):
    assert bench.main(["step"]) == 0
    assert ran == ["step"]


def test_unknown_name(ran):
    with pytest.raises(
        UserError, match="no comparison is called speed: there are gemm, tiles, kernels, step"
    ):
        bench.main(["speed"])
    assert ran == []


def test_all_programs_exist():
    folder = Path(bench.__file__).parent
    assert all((folder / f"{name}.py").is_file() for name in bench.PROGRAMS)


def test_without_a_gpu(ran, monkeypatch):
    monkeypatch.setattr(devices, "usable_gpus", lambda: ([], "it was sold"))
    with pytest.raises(UserError, match=r"^needs an NVIDIA GPU: it was sold$"):
        bench.main([])
    assert ran == []


@pytest.mark.parametrize(("error", "code"), [(UserError("no"), 2), (WrongResult("no"), 1)])
def test_errors_are_one_line(error, code, monkeypatch, capsys):
    def main(arguments):
        assert arguments == ["x"]
        raise error

    monkeypatch.setattr(sys, "argv", ["program.py", "x"])
    with pytest.raises(SystemExit) as end:
        start("bench", main)
    assert end.value.code == code
    assert capsys.readouterr().err == "bench: error: no\n"


def test_start_exits_with_the_code(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["program.py"])
    with pytest.raises(SystemExit) as end:
        program.start("bench", lambda arguments: 3 + len(arguments))
    assert end.value.code == 3
