"""python3 -m bench, and what its programs share."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import program
from bench.program import WrongResult, start
from pyrt import devices
from pyrt.errors import UserError
from tests.mpi import environment


@pytest.fixture
def ran(monkeypatch):
    """What was run, `mpirun -n RANKS` or nothing and a program; each ends with the exit code of its place."""
    commands = []

    class Done:
        def __init__(self, command):
            *launcher, python, program = command
            assert python == sys.executable
            commands.append(" ".join([*launcher, Path(program).stem]))
            self.returncode = len(commands) - 1

    monkeypatch.setattr(bench.subprocess, "run", Done)
    monkeypatch.setattr(bench.shutil, "which", lambda name: f"/bin/{name}")
    return commands


@pytest.fixture
def gpus(monkeypatch):
    """Makes this a machine of so many GPUs."""

    def make(count):
        monkeypatch.setattr(devices, "usable_gpus", lambda: ([f"gpu-{i}" for i in range(count)], ""))

    return make


def test_one_gpu_runs_what_takes_one_in_order_and_says_what_is_left_out(ran, gpus, capsys):
    gpus(1)
    assert bench.main([]) == 7
    assert ran == ["gemm", "tiles", "kernels", "step", "conv", "nets", "latency", "sparse"]
    left_out = "step, exchange, overlap, plans on several GPUs: left out: there is one\n"
    assert capsys.readouterr().out == left_out


@pytest.mark.parametrize(("count", "ranks"), [(2, 2), (4, 4), (8, 4)])
def test_several_gpus_run_all_in_order_and_answer_the_worst(ran, gpus, capsys, count, ranks):
    gpus(count)
    assert bench.main([]) == 11
    assert ran[:8] == ["gemm", "tiles", "kernels", "step", "conv", "nets", "latency", "sparse"]
    assert ran[8:] == [f"mpirun -n {ranks} {name}" for name in ("step", "exchange", "overlap", "plans")]
    assert capsys.readouterr().out == ""


def test_runs_what_is_named(ran, gpus, capsys):
    gpus(1)
    assert bench.main(["tiles"]) == 0
    assert capsys.readouterr().out == ""
    assert bench.main(["overlap"]) == 0
    assert capsys.readouterr().out == "overlap on several GPUs: left out: there is one\n"
    assert ran == ["tiles"]
    gpus(3)
    bench.main(["overlap", "step"])
    assert ran[1:] == ["step", "mpirun -n 3 overlap", "mpirun -n 3 step"]


def test_without_mpirun(ran, gpus, monkeypatch, capsys):
    gpus(2)
    monkeypatch.setattr(bench.shutil, "which", lambda name: None)
    assert bench.main(["step"]) == 0
    assert ran == ["step"]
    assert capsys.readouterr().out == "step on several GPUs: left out: no mpirun is on PATH\n"


def test_unknown_name(ran):
    with pytest.raises(
        UserError,
        match="no comparison is called speed: there are gemm, tiles, kernels, step, conv, nets, lat",
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


def test_a_reader_that_leaves_ends_the_program_quietly():
    """As ``| head`` does."""
    code = "from bench.program import start; start('bench', lambda arguments: print('words ' * 100_000) or 0)"
    ended = subprocess.run(
        ["sh", "-c", f'{sys.executable} -c "{code}" | head -c 5'],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ended.stdout, ended.stderr) == ("words", "")
