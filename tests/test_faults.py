"""Whole jobs to which something happens: they go on to the same bits, or end on all ranks, and say why."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import pytest

from tests import few, mpi
from tests.mpi import ROOT
from tests.pyrt.driver.emulated.test_compile import BROKEN, broken_compiler
from tests.pyrt.job.test_job import is_gone, wait_until
from tests.test_killed import LIMIT, RECORD, Training

SMALL = [
    *("--data", "synthetic:28x28x1:10:330", "--hidden", "8", "--batch", "50"),
    *("--samples", "200", "--val-fraction", "0"),
]
"""Four short steps an epoch, and few test images."""

FAULTY = str(Path(__file__).parent / "scripts" / "faulty.py")


class Way(NamedTuple):
    """A job of some steps, and the rank that something happens to."""

    ranks: int
    rank: int
    arguments: str

    @property
    def command(self) -> list[str]:
        return [*SMALL, *self.arguments.split()]


LONG = pytest.mark.long

WAYS = [
    Way(2, 0, "--device cpu --epochs 200 --exchange root"),
    Way(2, 1, "--device cpu --epochs 200 --exchange blocking"),
    Way(2, 1, "--device cpu --epochs 200 --exchange host"),
    Way(2, 1, "--device cpu --epochs 200 --exchange device"),
    Way(2, 1, "--device cpu --epochs 100 --plan model --exchange device"),
    Way(2, 1, "--device emulated --epochs 5 --exchange peer"),
    Way(4, 3, "--device emulated --epochs 3 --ranks-per-node 2 --exchange hierarchical"),
]
MORE_WAYS = [
    Way(3, 2, "--device cpu --epochs 200 --exchange root"),
    Way(3, 0, "--device emulated --epochs 20 --exchange host"),
    Way(3, 2, "--device emulated --epochs 20 --exchange device"),
    Way(3, 1, "--device emulated --epochs 10 --plan model --exchange host"),
    Way(3, 1, "--device emulated --epochs 10 --plan model --exchange peer"),
]


def ids(way: Way) -> str:
    return f"{way.rank} of {way.ranks} {way.arguments}"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[list[Training]]:
    """Jobs that a test has started: none of their processes is left behind."""
    started: list[Training] = []
    yield started
    for training in started:
        training.clean_up()


def weights(path: Path) -> dict[str, bytes]:
    with np.load(path) as file:
        return {name: file[name].tobytes() for name in file.files if name != "run"}


class TestStopped:
    """SIGSTOP and SIGCONT, as a debugger, a batch system or a busy machine does."""

    undisturbed: ClassVar[dict[tuple[int, str], dict[str, bytes]]] = {}

    @pytest.mark.long
    @pytest.mark.kernels
    @pytest.mark.parametrize("way", few([WAYS[5]], of=WAYS), ids=ids)
    def test_a_stopped_rank_changes_no_bit(self, running: list[Training], tmp_path: Path, way: Way) -> None:
        self.stop(running, tmp_path, way, 1.5)

    @LONG
    @pytest.mark.kernels
    @pytest.mark.parametrize("way", [*WAYS, *MORE_WAYS], ids=ids)
    def test_nor_where_it_is_stopped_for_long(
        self, running: list[Training], tmp_path: Path, way: Way
    ) -> None:
        self.stop(running, tmp_path, way, 30.0)

    def stop(self, running: list[Training], folder: Path, way: Way, seconds: float) -> None:
        save = folder / "weights.npz"
        training = Training(folder, way.ranks, *way.command, "--print-every", "3", "--save", str(save))
        running.append(training)
        os.kill(training.pids[way.rank], signal.SIGSTOP)
        time.sleep(seconds)
        assert training.job.poll() is None
        assert not any(map(is_gone, training.pids))
        os.kill(training.pids[way.rank], signal.SIGCONT)
        done = training.end(mpi.TIMEOUT)
        assert done.returncode == 0, done.stderr
        assert "\nstep " in done.stdout  # it was stopped while it trained
        assert weights(save) == self.expected(way, folder / "undisturbed.npz")

    def expected(self, way: Way, save: Path) -> dict[str, bytes]:
        """Of a job to which nothing happens; two ranks add up to the same bits in every exchange."""
        key = way.ranks, way.arguments.split(" --exchange")[0] if way.ranks == 2 else way.arguments
        if key not in self.undisturbed:
            done = mpi.mpirun(way.ranks, sys.executable, "train.py", *way.command, "--save", str(save))
            assert done.returncode == 0, done.stderr
            self.undisturbed[key] = weights(save)
        return self.undisturbed[key]


class TestKilled:
    """At any time; while it trains, in every exchange: tests/test_killed.py."""

    @pytest.mark.parametrize("seed", few([0], of=range(2)))
    def test_a_rank_killed_at_any_time_ends_the_job(self, tmp_path: Path, seed: int) -> None:
        self.kill(tmp_path, seed, Way(3, 2 * seed, "--device cpu"))

    @LONG
    @pytest.mark.kernels
    @pytest.mark.parametrize("way", [*WAYS, *MORE_WAYS], ids=ids)
    def test_in_every_exchange(self, tmp_path: Path, way: Way) -> None:
        for seed in range(10):
            (tmp_path / str(seed)).mkdir()
            self.kill(tmp_path / str(seed), seed, way._replace(rank=seed % way.ranks))

    def kill(self, folder: Path, seed: int, way: Way) -> None:
        """From the start of its Python on, which is some tenths of a second before that of MPI."""
        endless = [*way.command, "--epochs", "1000000"]
        start = ["sh", "-c", RECORD, "sh", sys.executable, "train.py", *endless]
        job = mpi.start(way.ranks, *start, env={"RANKS": str(folder)})
        files = [folder / str(rank) for rank in range(way.ranks)]
        wait_until(lambda: all(file.exists() and file.read_text() for file in files), "all ranks to start")
        pids = [int(file.read_text()) for file in files]
        time.sleep(random.Random(seed).uniform(0, 3))
        os.kill(pids[way.rank], signal.SIGKILL)
        killed = time.monotonic()
        done = mpi.finish(job, LIMIT)
        wait_until(lambda: all(map(is_gone, pids)), "all ranks to end")
        assert time.monotonic() - killed < LIMIT
        assert done.returncode != 0
        assert "Traceback" not in done.stderr


BUGS = [
    Way(2, 1, "--device cpu --exchange device | device exchange 9"),
    Way(2, 1, "--device cpu --exchange device --plan model | move 9"),
    Way(2, 1, "--device emulated --exchange peer | peer capture 1"),
    Way(2, 0, "--device emulated --exchange peer --placement stream | helper 5"),
    Way(2, 0, "--device cpu --checkpoint FOLDER --checkpoint-every 5 | writer 3"),
]
MORE_BUGS = [
    Way(2, 0, "--device cpu --checkpoint FOLDER --checkpoint-every 5 | between steps 40"),
    Way(3, 1, "--device cpu --exchange host | between steps 40"),
    Way(3, 1, "--device cpu --exchange host | host exchange 9"),
    Way(3, 1, "--device emulated --exchange peer | between steps 9"),
    Way(3, 1, "--device emulated --exchange peer --plan model | between steps 9"),
    Way(4, 2, "--device emulated --exchange hierarchical --ranks-per-node 2 | hierarchical exchange 9"),
]
"""Behind the bar: where the bug is, and at which call."""


@pytest.mark.kernels
@pytest.mark.parametrize("way", few([BUGS[0], BUGS[2]], of=[*BUGS, *MORE_BUGS]), ids=ids)
def test_an_exception_on_one_rank_ends_the_job(tmp_path: Path, way: Way) -> None:
    """While helpers gather rows, kernels wait for other ranks, a checkpoint is written: none holds it up."""
    arguments, bug = way.arguments.replace("FOLDER", str(tmp_path)).split(" | ")
    place, count = bug.rsplit(" ", 1)
    command = [FAULTY, place, str(way.rank), count, *SMALL, *arguments.split(), "--epochs", "1000000"]
    job = mpi.start(way.ranks, sys.executable, *command)
    done = mpi.finish(job, 2 * LIMIT)
    assert done.returncode != 0
    assert done.stderr.count("Traceback") == 1
    assert f"faulty.py: rank {way.rank} of {way.ranks} failed:\nTraceback" in done.stderr
    assert "ValueError: a bug on one rank" in done.stderr


class TestOthers:
    """Ranks that are not alike are told apart before they train: one line, and all end with 2."""

    def start(self, *commands: str) -> str:
        """The error of a job of several commands, each of so many ranks."""
        parts = [part for command in commands for part in (":", "-n", *command.split())][2:]
        done = mpi.mpirun(int(parts[0]), *parts[1:])
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        (line,) = [line for line in done.stderr.splitlines() if "train.py: error: " in line]
        return line.split("error: ")[1]

    def test_options(self) -> None:
        train = f"{sys.executable} train.py --device cpu --hidden 8"
        error = self.start(f"1 {train}", f"2 {train} --lr 0.5")
        assert error.startswith(
            "ranks 1, 2 are not as rank 0: --lr is 0.5 on rank 1, 0.07 on rank 0: give all "
        )

    @pytest.mark.long
    def test_code(self, tmp_path: Path) -> None:
        for name in ("pyrt", "nn", "kernels"):
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "train.py", tmp_path)
        with open(tmp_path / "kernels" / "nn" / "head.cu", "a") as file:
            file.write("\n")
        command = "train.py --device cpu --hidden 8"
        paths = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
        error = self.start(
            f"2 {sys.executable} {command}",
            f"1 env PYTHONPATH={paths} {sys.executable} {tmp_path}/{command}",
        )
        assert re.match(
            "rank [12] is not as rank 0: kernels/nn/head.cu is ", error
        )  # as an mpirun numbers them
        assert error.endswith(" on rank 0: install the same version on all nodes")


@pytest.mark.parametrize(("script", "words"), few(BROKEN[2:3], of=BROKEN))
def test_a_broken_compiler_ends_all_ranks(tmp_path: Path, script: str | None, words: str) -> None:
    """One rank compiles, the others wait for it."""
    compiler = broken_compiler(tmp_path, script)
    environment = {"CXX": str(compiler), "PYRT_CACHE_DIR": str(tmp_path)}
    done = mpi.mpirun(3, sys.executable, "train.py", *SMALL, "--device", "emulated", env=environment)
    assert done.returncode == 2
    assert f"train.py: error: {compiler} {words}\n" in done.stderr
    assert "Traceback" not in done.stderr


@LONG
@pytest.mark.kernels
@pytest.mark.parametrize("place", ["/proc/none", "open"])
def test_a_cache_that_is_no_place_for_code_costs_time_and_nothing_else(tmp_path: Path, place: str) -> None:
    """It cannot be written, or others can write it: the ranks share a folder that is gone afterwards."""
    for name in ("open", "temporary"):
        (tmp_path / name).mkdir()
    (tmp_path / "open").chmod(0o777)
    environment = {"PYRT_CACHE_DIR": str(tmp_path / place), "TMPDIR": str(tmp_path / "temporary")}
    command = [sys.executable, "train.py", *SMALL, "--device", "emulated", "--epochs", "1", "--check"]
    done = mpi.mpirun(2, *command, env=environment, timeout=10 * mpi.TIMEOUT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("warning: compiled kernels are not kept: ") == 1
    assert not [*(tmp_path / "open").iterdir(), *(tmp_path / "temporary").glob("pyrt-*")]
