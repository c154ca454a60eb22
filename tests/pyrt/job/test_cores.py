"""pyrt/job/cores.py: the share of the cores of a rank, by affinity and control groups; threads of BLAS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyrt.job import cores
from pyrt.job.cores import BLAS_VARIABLES, Limits, bound_blas, cores_share
from tests import mpi

JOB, ONE, TWO = (1, 1), (1, 2), (1, 3)


def limits(*affinities: set[int]) -> list[Limits]:
    return [Limits(frozenset(affinity), {}) for affinity in affinities]


@pytest.mark.parametrize(
    ("ranks", "shares"),
    [
        pytest.param(limits({0, 1, 2, 3}), [4], id="one rank has all cores"),
        pytest.param(limits({0, 1, 2, 3}, {0, 1, 2, 3}), [2, 2], id="two ranks share all cores"),
        pytest.param(limits(*[{0, 1}] * 4), [0.5] * 4, id="more ranks than cores"),
        pytest.param(limits({0, 1}, {2}), [2, 1], id="bound to cores of their own"),
        pytest.param(limits({0, 1, 2}, {2}), [2.5, 0.5], id="one core in common"),
        pytest.param([Limits(frozenset(range(8)), {JOB: 3.0})], [3], id="a quota"),
        pytest.param([Limits(frozenset(range(8)), {JOB: 3.0})] * 2, [1.5, 1.5], id="two ranks share a quota"),
        pytest.param([Limits(frozenset({0}), {JOB: 3.0})], [1], id="a quota of more than there are"),
        pytest.param(
            [
                Limits(frozenset(range(8)), {JOB: 3.0, ONE: 1.0}),
                Limits(frozenset(range(8)), {JOB: 3.0, TWO: 2.5}),
            ],
            [1, 1.5],
            id="groups of their own in one",
        ),
        pytest.param(
            [Limits(frozenset(range(8)), {ONE: 1.0}), Limits(frozenset(range(8)), {})],
            [1, 4],
            id="one is free",
        ),
    ],
)
def test_cores_and_quotas_are_shared_among_the_ranks_that_have_them(
    ranks: list[Limits], shares: list[float]
) -> None:
    assert [cores_share(ranks, rank) for rank in range(len(ranks))] == pytest.approx(shares)


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Control groups of both versions; this process is in job/step, of which a container may see no more than
    the root."""
    for version in ("v2", "v1"):
        (tmp_path / version / "job" / "step").mkdir(parents=True)
    monkeypatch.setattr(cores, "_ROOTS", (tmp_path / "v2", tmp_path / "v1"))
    read = Path.read_text
    groups = "4:cpu,cpuacct:/job/step/hidden\n5:memory:/\n0::/job/step/hidden\n"
    monkeypatch.setattr(
        Path, "read_text", lambda path: groups if str(path) == "/proc/self/cgroup" else read(path)
    )
    return tmp_path


def test_quotas_of_all_groups_around_this_process_count(roots: Path) -> None:
    (roots / "v2" / "cpu.max").write_text("max 100000\n")
    (roots / "v2" / "job" / "cpu.max").write_text("250000 100000\n")
    (roots / "v2" / "job" / "step" / "cpu.max").write_text("50000 100000\n")
    for folder, quota in ((roots / "v1", 150000), (roots / "v1" / "job", -1)):
        (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (folder / "cpu.cfs_period_us").write_text("50000\n")
    found = Limits.of_this_process()
    assert found.cores == os.sched_getaffinity(0)
    assert sorted(found.quotas.values()) == [0.5, 2.5, 3.0]
    inode = (roots / "v2" / "job").stat().st_ino
    assert [quota for (_, group), quota in found.quotas.items() if group == inode] == [2.5]


@pytest.mark.parametrize("text", ["", "max", "x y", "1 0"])
def test_files_that_are_not_understood_limit_nothing(roots: Path, text: str) -> None:
    (roots / "v2" / "cpu.max").write_text(text)
    assert Limits.of_this_process().quotas == {}


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        ({}, ["3", "3", "3"]),
        ({"MKL_NUM_THREADS": "7"}, ["3", "3", "7"]),
        ({"OMP_NUM_THREADS": "1"}, ["1", "1", "1"]),
        ({"OMP_NUM_THREADS": "4,2", "OPENBLAS_NUM_THREADS": "2"}, ["2", "4,2", "4"]),
        ({"OPENBLAS_NUM_THREADS": "", "OMP_NUM_THREADS": "0", "MKL_NUM_THREADS": "x"}, ["3", "3", "3"]),
    ],
)
def test_the_users_word_on_threads_holds(
    users: dict[str, str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in BLAS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in users.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "numpy")  # as before it is loaded
    bound_blas(3)
    assert [os.environ[name] for name in BLAS_VARIABLES] == expected


def test_blas_says_how_many_threads_it_takes() -> None:
    """What it was told may be more than it takes, and it hears of it once, when NumPy loads it."""
    code = (
        "import os, numpy; os.environ['OMP_NUM_THREADS'] = '3'\n"
        "from pyrt.job.cores import blas_threads; print(blas_threads())"
    )
    environment = mpi.environment({"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert told.stdout == "1\n", told.stderr


@pytest.mark.parametrize(("users", "threads"), [({}, "3"), ({"OPENBLAS_NUM_THREADS": "1"}, "1")])
def test_a_blas_that_is_loaded_takes_them_too(users: dict[str, str], threads: str) -> None:
    code = (
        "import numpy; from pyrt.job.cores import blas_threads, bound_blas\n"
        "bound_blas(3); print(blas_threads())"
    )
    environment = mpi.environment(users)
    for name in set(BLAS_VARIABLES) - set(users):
        environment.pop(name, None)
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert told.stdout == f"{threads}\n", told.stderr


def test_a_blas_that_says_nothing_takes_what_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_THREADS", (("no_function_of_that_name", "nor_of_that"),))
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert cores.blas_threads() == 5
