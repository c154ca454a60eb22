"""A job starts, agrees on errors, takes signals and ends as one: whole jobs of scripts/jobs.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyrt.job import Job
from pyrt.job.ending import result_of
from tests import few, mpi, spread

JOBS = str(Path(__file__).parents[1] / "scripts" / "jobs.py")
# Keeps the exit code of the rank that it wraps, and outlives the signals that mpirun gives to both.
RECORD = 'trap : INT TERM; "$@"; code=$?; echo $code >>"$CODES"; exit $code'
PATIENCE = 30.0
"""Seconds in which a job that must end has ended; MPI's own ways of ending ranks take up to some 5."""


def start(
    ranks: int, name: str, folder: Path, recording: bool = True, how: str = ""
) -> subprocess.Popen[str]:
    """Start a main of scripts/jobs.py; each rank's exit code becomes a line of ``folder / "codes"``, unless
    mpirun is to see by itself what ends a rank."""
    recorder = ["sh", "-c", RECORD, "sh"] if recording else []
    command = [*recorder, sys.executable, JOBS, name, str(folder), how]
    return mpi.start(ranks, *command, env={"CODES": str(folder / "codes")})


def end(job: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    return mpi.finish(job, PATIENCE)


def exit_codes(folder: Path) -> list[int]:
    """Codes with which ranks ended, the first first; where mpirun kills ranks it may kill their recorders."""
    codes = folder / "codes"
    return [int(line) for line in codes.read_text().split()] if codes.exists() else []


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"


class TestStart:
    def test_each_rank_knows_its_place_and_bounds_blas_before_numpy_loads(self, tmp_path: Path) -> None:
        # MKL_NUM_THREADS is the user's own setting; it is kept.
        unset = ["env", "-u", "OPENBLAS_NUM_THREADS", "-u", "OMP_NUM_THREADS", "MKL_NUM_THREADS=7"]
        done = mpi.mpirun(3, *unset, sys.executable, JOBS, "describe", str(tmp_path))
        assert done.returncode == 0, done.stderr
        ranks = json.loads(done.stdout)
        assert [rank["place"] for rank in ranks] == [[0, 3, 0, 3], [1, 3, 1, 3], [2, 3, 2, 3]]
        for rank in ranks:
            assert rank["joined once"]
            assert not rank["numpy loaded"]
            assert 1 <= rank["threads"] <= rank["cores"]
            assert rank["blas"] == [str(rank["threads"])] * 2 + ["7"]
            assert rank["library"].startswith(("MPICH ", "Open MPI v", "Intel"))
            assert rank["waited"], "wait_for_all did not wait for the last rank"
        if ranks[0]["cores"] == ranks[2]["cores"]:  # else mpirun has bound each rank to cores of its own
            assert ranks[0]["threads"] == max(1, ranks[0]["cores"] // 3) or ranks[0]["cores"] < 3

    def test_importing_job_loads_neither_numpy_nor_mpi(self) -> None:
        code = "import sys, pyrt.job; assert not {'numpy', 'mpi4py.MPI'} & set(sys.modules)"
        subprocess.run([sys.executable, "-c", code], env=mpi.environment(), check=True, timeout=mpi.TIMEOUT)


class TestForeignLauncher:
    """An mpirun of one MPI with the library of another starts N jobs of one rank each."""

    @pytest.mark.parametrize(
        ("size", "rank", "launcher"),
        [
            ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "Open MPI"),
            ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "Slurm"),
        ],
    )
    def test_it_is_named_in_one_line_by_one_of_its_ranks(self, size: str, rank: str, launcher: str) -> None:
        ranks = [
            subprocess.Popen(
                [sys.executable, JOBS, "code_of_its_own"],
                env=mpi.environment({size: "2", rank: str(number)}),
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        errors = [process.communicate(timeout=mpi.TIMEOUT)[1] for process in ranks]
        assert [process.returncode for process in ranks] == [2, 2]
        assert errors[0].startswith(
            f"jobs.py: error: mpirun ({launcher}) started 2 ranks, but the MPI library"
        )
        assert errors[0].count("\n") == 1
        assert errors[1] == ""


class TestEnd:
    @pytest.mark.parametrize(("name", "code"), [("code_of_its_own", 3), ("leaves", 3), ("leaves_quietly", 0)])
    def test_the_value_of_main_or_of_sys_exit_is_the_exit_code(
        self, name: str, code: int, tmp_path: Path
    ) -> None:
        """Of a job that ends in good order: MPI has no word to say."""
        done = end(start(2, name, tmp_path))
        assert done.returncode == code
        assert set(exit_codes(tmp_path)) == {code}
        assert "abort" not in done.stderr.lower()

    @pytest.mark.parametrize(
        ("how", "code", "line"),
        [
            ("sys.exit(3)", 3, ""),
            ("return 3", 3, ""),
            ("sys.exit('words of rank 1')", 1, "words of rank 1\n"),
            (
                "sys.exit()",
                1,
                "jobs.py: error: rank 1 has left by sys.exit(), others have not: let all ranks do",
            ),
        ],
    )
    def test_a_rank_that_leaves_alone_ends_the_others(
        self, how: str, code: int, line: str, tmp_path: Path
    ) -> None:
        """They wait for it inside MPI."""
        done = end(start(2, "one_leaves", tmp_path, how=how))
        assert done.returncode == code
        assert done.stderr.count(line) == 1 or not line
        assert "Traceback" not in done.stderr

    def test_a_rank_that_returns_0_waits_for_the_others(self, tmp_path: Path) -> None:
        done = end(start(2, "one_returns_early", tmp_path))
        assert (done.returncode, done.stdout) == (0, "rank 0 was let finish\n")

    @pytest.mark.parametrize(
        ("value", "code", "printed"),
        [(None, 0, ""), (0, 0, ""), (7, 7, ""), (True, 1, ""), ("words", 1, "words\n"), (1.5, 1, "1.5\n")],
    )
    def test_sys_exit_means_what_it_does_without_a_job(
        self, value: object, code: int, printed: str, job: Job, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def main(job: Job) -> int:
            sys.exit(value)  # type: ignore[arg-type]

        assert result_of(main, job) == (code, True)
        assert capsys.readouterr().err == printed

    @pytest.mark.parametrize(("name", "finder"), [("agreed_error", 1), ("error_of_some", 0)])
    def test_an_agreed_error_is_printed_once_and_ends_all_ranks_with_2(
        self, name: str, finder: int, tmp_path: Path
    ) -> None:
        done = end(start(3, name, tmp_path))
        assert done.returncode == 2
        # Where one has left, Open MPI's mpirun may stop others that are about to.
        assert exit_codes(tmp_path)[0] == 2 and set(exit_codes(tmp_path)) <= {2, 143}
        ours = [line for line in done.stderr.splitlines() if "jobs.py" in line]
        assert ours == [f"jobs.py: error: rank {finder} finds a mistake: correct it"]
        assert "Traceback" not in done.stderr

    def test_an_error_that_one_rank_alone_knows_ends_the_job(self, tmp_path: Path) -> None:
        done = end(start(2, "unagreed_error", tmp_path))
        assert done.returncode != 0
        assert done.stderr.count("jobs.py: error: only rank 1 finds a mistake: correct it\n") == 1
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize("name", ["failure_first", "failure_later"])
    def test_an_exception_on_one_rank_shows_its_traceback_and_ends_the_job(
        self, name: str, tmp_path: Path
    ) -> None:
        done = end(start(3, name, tmp_path))
        assert done.returncode != 0
        assert "jobs.py: rank 1 of 3 failed:\nTraceback" in done.stderr
        assert "ValueError: a bug on one rank" in done.stderr
        assert done.stderr.count("Traceback") == 1

    def test_where_mpi_fails_for_a_killed_rank_the_launcher_tells_of_that(self, tmp_path: Path) -> None:
        done = end(start(2, "mpi_fails_for_a_killed_rank", tmp_path, recording=False))
        assert done.returncode != 0
        assert "Traceback" not in done.stderr

    def test_where_mpi_fails_otherwise_there_is_a_traceback(self, tmp_path: Path) -> None:
        done = end(start(1, "mpi_fails", tmp_path))
        assert done.returncode != 0
        assert "jobs.py: rank 0 of 1 failed:\nTraceback" in done.stderr


def under_way(name: str, folder: Path, recording: bool = True) -> tuple[subprocess.Popen[str], list[int]]:
    """A job of three ranks, and their processes, which have told them."""
    job = start(3, name, folder, recording)
    files = [folder / f"rank-{rank}" for rank in range(3)]
    wait_until(lambda: all(file.exists() for file in files) or job.poll() is not None, "ranks to start")
    assert job.poll() is None, end(job).stderr
    time.sleep(0.2)  # most likely they are inside MPI by now; before it the signal must do the same
    return job, [int(file.read_text()) for file in files]


class TestSignals:
    """All ranks wait inside MPI, where Python runs no signal handler."""

    @pytest.fixture
    def waiting(self, tmp_path: Path) -> tuple[subprocess.Popen[str], list[int]]:
        """A job of three ranks that would wait for ever."""
        return under_way("endless", tmp_path)

    @pytest.mark.parametrize(("number", "rank"), spread([signal.SIGINT, signal.SIGTERM], [0, 1], by=2))
    def test_a_signal_to_one_rank_ends_the_job(
        self, waiting: tuple[subprocess.Popen[str], list[int]], number: int, rank: int, tmp_path: Path
    ) -> None:
        job, pids = waiting
        os.kill(pids[rank], number)
        done = end(job)
        assert done.returncode != 0
        assert 128 + number in (done.returncode, *exit_codes(tmp_path)[:1])
        if rank == 0:
            assert f"jobs.py: stopped by {signal.Signals(number).name}\n" in done.stderr
        assert "Traceback" not in done.stderr
        wait_until(lambda: all(map(is_gone, pids)), "all ranks to end")

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_to_mpirun_ends_the_job(
        self, waiting: tuple[subprocess.Popen[str], list[int]], number: int, tmp_path: Path
    ) -> None:
        job, pids = waiting
        os.kill(job.pid, number)
        done = end(job)
        assert done.returncode != 0
        assert set(exit_codes(tmp_path)) <= {130, 143}  # Open MPI gives ranks SIGTERM whatever it was given
        assert "Traceback" not in done.stderr
        wait_until(lambda: all(map(is_gone, pids)), "all ranks to end")


def test_a_pause_goes_on_behind_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some systems let it interrupt even this call."""

    def interrupted() -> None:
        raise InterruptedError

    nobody: Any = None
    monkeypatch.setattr(os, "sched_yield", interrupted)
    Job(nobody, nobody, "", 1.0).pause()


class TestOneProcess:
    """Without mpirun, which would pass on its exit code."""

    @pytest.mark.parametrize("number", few([signal.SIGTERM], of=[signal.SIGINT, signal.SIGTERM]))
    @pytest.mark.parametrize(
        ("variables", "closing"),
        [
            ({}, ""),
            # What mpirun and Slurm leave behind where somebody unsets it.
            ({"SLURM_PROCID": "", "OMPI_COMM_WORLD_SIZE": "", "OMPI_COMM_WORLD_RANK": "x"}, ""),
            ({}, "2>/dev/full"),
        ],
        ids=["plain", "variables of launchers", "its words find no room"],
    )
    def test_a_signal_ends_it_at_once(
        self, number: int, variables: dict[str, str], closing: str, tmp_path: Path
    ) -> None:
        """While all threads of its BLAS work: MPICH's Abort seldom returns then."""
        process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, JOBS, "endless_alone", str(tmp_path)],
            env=mpi.environment(variables),
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that a failure ends it, too
        )
        wait_until(lambda: (tmp_path / "rank-0").exists() or process.poll() is not None, "the rank to start")
        time.sleep(0.2)  # most likely it multiplies by now
        process.send_signal(number)
        done = mpi.finish(process, PATIENCE)
        said = "" if closing else f"\njobs.py: stopped by {signal.Signals(number).name}\n"
        assert (done.returncode, done.stderr) == (128 + number, said)


class TestOutput:
    def test_a_full_disk_is_one_line(self) -> None:
        done = mpi.mpirun(1, "sh", "-c", f"{sys.executable} {JOBS} prints >/dev/full")
        assert done.returncode == 2
        assert "jobs.py: error: what is printed finds no room ([Errno 28] No space" in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize(("closing", "numbers"), [(">&-", "1"), ("2>&-", "2"), (">&- 2>&- <&-", "012")])
    def test_nobody_need_listen(self, closing: str, numbers: str) -> None:
        """Nor does what is said go into a file that has got the number of what was closed."""
        done = mpi.mpirun(1, "sh", "-c", f"{sys.executable} {JOBS} is_not_listened_to {numbers} {closing}")
        assert (done.returncode, done.stdout.strip(), done.stderr) == (
            0,
            "" if "1" in numbers else "words",
            "",
        )


class TestStartOfMpi:
    """While MPI starts, no thread of Python's may run, and ranks wait for each other."""

    @pytest.mark.parametrize("number", few([signal.SIGTERM], of=[signal.SIGINT, signal.SIGTERM]))
    def test_a_signal_to_one_rank_ends_the_job(self, number: int, tmp_path: Path) -> None:
        job, pids = under_way("started_slowly", tmp_path, recording=False)
        os.kill(pids[1], number)
        done = end(job)
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        wait_until(lambda: all(map(is_gone, pids)), "all ranks to end")

    def test_one_that_asks_to_stop_is_not_forgotten(self, tmp_path: Path) -> None:
        job, pids = under_way("started_slowly", tmp_path)
        os.kill(pids[1], signal.SIGUSR1)
        assert end(job).returncode == 4


class TestDeferredStops:
    """Of a job that can stop by itself."""

    @pytest.mark.parametrize(
        ("number", "rank"), [(signal.SIGINT, 0), (signal.SIGTERM, 1), (signal.SIGUSR1, 2)]
    )
    def test_a_signal_to_one_rank_asks_the_job_to_stop(self, number: int, rank: int, tmp_path: Path) -> None:
        job, pids = under_way("asked_to_stop", tmp_path)
        os.kill(pids[rank], number)
        done = end(job)
        assert done.returncode == 4
        first, *others = exit_codes(tmp_path)
        assert first == 4
        assert {4, 143}.issuperset(others)  # Open MPI ends others where one's code is not 0
        name = signal.Signals(number).name
        assert (f"jobs.py: {name}: stops as soon as all ranks can" in done.stderr) == (rank == 0)

    def test_a_second_interrupt_ends_it_at_once(self, tmp_path: Path) -> None:
        """Not the first one, nor one more of the other signals."""
        job, pids = under_way("deaf", tmp_path)
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            os.kill(pids[0], number)
            time.sleep(0.1)
        assert job.poll() is None
        os.kill(pids[0], signal.SIGINT)
        done = end(job)
        assert 130 in (done.returncode, *exit_codes(tmp_path)[:1])
        assert "jobs.py: stopped by SIGINT\n" in done.stderr
        wait_until(lambda: all(map(is_gone, pids)), "all ranks to end")

    def test_it_may_be_asked_before_it_can(self, tmp_path: Path) -> None:
        assert end(start(2, "asked_early", tmp_path)).returncode == 4
