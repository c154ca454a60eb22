"""experiments/jobs.py and worker.py: points in jobs, what ends a job, runs of programs."""

import os
import textwrap

import pytest

from experiments import jobs
from experiments.study import FAILED, Setup
from tests.mpi import environment

STUDY = """
    import os
    from pyrt.errors import UserError

    def measure(point, job, folder):
        what = point["what"]
        print("not an answer")
        if what == "refuse":
            with job.agree():
                raise UserError("no such thing here")
        if what == "end" and job.rank == job.size - 1:
            raise RuntimeError("a bug")
        threads = os.environ["OMP_NUM_THREADS"]
        return [{"sum": job.comm.allreduce(job.rank + 1), "blas": threads, "process": os.getpid()}]
"""


@pytest.fixture
def setup(tmp_path, monkeypatch):
    (tmp_path / "a_study.py").write_text(textwrap.dedent(STUDY))
    for name, value in environment({"PYTHONPATH": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    return Setup("small", 0, os.cpu_count() or 1, False, tmp_path)


def measured(points, setup):
    return list(jobs.measured("a_study", points, setup))


def test_points_of_as_many_ranks_share_a_job(setup):
    points = [{"what": "sum", "ranks": 2, "n": n} for n in range(2)] + [{"what": "sum"}]
    (one, (first,)), (_, (second,)), (_, (alone,)) = measured(points, setup)
    assert one == points[0]
    assert [first["sum"], second["sum"], alone["sum"]] == [3, 3, 1]
    assert first["process"] == second["process"] != alone["process"]


def test_a_point_says_how_many_threads_blas_has(setup):
    ((_, (row,)),) = measured([{"what": "sum", "ranks": 1, "threads": 3}], setup)
    assert row["blas"] == "3"


def test_what_is_refused_or_ends_a_job_is_told_and_the_others_go_on(setup):
    words = ["refuse", "sum", "end", "sum"]
    taken = measured([{"what": what, "ranks": 2, "n": n} for n, what in enumerate(words)], setup)
    rows = [rows[0] for _, rows in taken]
    assert [point["n"] for point, _ in taken] == [0, 1, 2, 3]
    assert rows[0] == {FAILED: "no such thing here"}
    assert rows[1]["sum"] == rows[3]["sum"] == 3
    assert "its job ended with" in rows[2][FAILED]
    assert rows[1]["process"] != rows[3]["process"]


def test_train_gives_the_report_or_says_why_there_is_none(setup):
    words = ["--device", "cpu", "--hidden", "4", "--epochs", "1", "--samples", "20", "--batch", "10"]
    report = jobs.train(2, words, setup)
    assert report["environment"]["ranks"] == 2
    assert "start mpirun" in {phase["name"] for phase in report["phases"]}
    failed = jobs.train(1, ["--hidden", "0"], setup)
    assert list(failed) == [FAILED]
    assert "ended with 2: train.py: error: --hidden 0" in failed[FAILED]
    assert jobs.failed_rows(failed) == [failed]
    assert jobs.failed_rows(report) == []


@pytest.mark.long
def test_compress_says_why_there_is_no_report(setup):
    failed = jobs.compress(["nothing.npz", "--out", "light.txt"], setup)
    assert list(failed) == [FAILED]
    assert "nn.compress ended with 2: " in failed[FAILED] and "call it FILE.pyrtz" in failed[FAILED]
