"""The probe finds out what an MPI does, whatever it does, and keeps the answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pyrt.cache import kernel_folder
from pyrt.driver.cpu import CpuDriver
from pyrt.job import Job
from pyrt.mpi_probe import probe_cache
from pyrt.mpi_probe.libraries import CRASHES, HANGS, IALLREDUCE, SENDRECV, SHARDS, WORKS, WRONG
from tests import mpi

JOBS = str(Path(__file__).parents[1] / "scripts" / "device_jobs.py")


def kept(folder: Path) -> dict[str, str]:
    """The results of the one answer in a cache."""
    (file,) = (folder / "probe").glob("*.json")
    results: dict[str, str] = json.loads(file.read_text())["results"]
    return results


@pytest.mark.kernels
def test_what_works(tmp_path: Path) -> None:
    (tmp_path / "kernels").symlink_to(kernel_folder().path)  # where they are compiled already
    command = [sys.executable, "-m", "pyrt.mpi_probe", "--device", "emulated"]
    done = mpi.mpirun(2, *command, env={"PYRT_CACHE_DIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert kept(tmp_path) == {SENDRECV: WORKS, SHARDS: WORKS, IALLREDUCE: WORKS}
    assert "--exchange device works here" in done.stdout
    assert len(done.stdout.splitlines()) == 8


def test_one_rank_is_a_mistake() -> None:
    done = mpi.mpirun(1, sys.executable, "-m", "pyrt.mpi_probe", "--device", "cpu")
    assert done.returncode == 2
    assert "start two, mpirun -n 2 python -m pyrt.mpi_probe" in done.stderr


@pytest.mark.parametrize(("how", "result"), [("hangs", HANGS), ("crashes", CRASHES)])
def test_what_ends_the_job_is_written_down(how: str, result: str, tmp_path: Path) -> None:
    command = [sys.executable, JOBS, "probe", "--device", "cpu", how]
    done = mpi.mpirun(2, *command, env={"PYRT_CACHE_DIR": str(tmp_path)})
    assert done.returncode != 0
    assert kept(tmp_path) == {SENDRECV: result}
    assert "Traceback" not in done.stderr
    if how == "hangs":
        assert "hangs in Sendrecv on device buffers" in done.stderr
        assert f"{SENDRECV:24s} hangs: 1 s without an end" in done.stdout


def test_wrong_results(tmp_path: Path) -> None:
    command = [sys.executable, JOBS, "probe", "--device", "cpu", "wrong"]
    done = mpi.mpirun(2, *command, env={"PYRT_CACHE_DIR": str(tmp_path)})
    assert done.returncode == 1
    assert kept(tmp_path)[SENDRECV] == WRONG
    assert "--exchange device does not work here" in done.stdout


class TestKept:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("PYRT_CACHE_DIR", str(tmp_path))
        return tmp_path

    def test_for_this_mpi_driver_and_machine(
        self, cpu: CpuDriver, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = probe_cache.key(job, cpu)
        assert probe_cache.read(key) is None
        probe_cache.write(key, {SENDRECV: WORKS})
        assert probe_cache.read(probe_cache.key(job, cpu)) == {SENDRECV: WORKS}
        probe_cache.write(key, {SENDRECV: HANGS})
        assert probe_cache.read(key) == {SENDRECV: HANGS}
        for name in key:
            assert probe_cache.read({**key, name: "another"}) is None

        monkeypatch.setenv("UCX_TLS", "tcp")
        assert probe_cache.read(probe_cache.key(job, cpu)) is None
        monkeypatch.delenv("UCX_TLS")
        cpu.device_name = "another"
        assert probe_cache.read(probe_cache.key(job, cpu)) is None

    @pytest.mark.parametrize("content", ["", "[]", "{}", '{"results": 7}', "\x00"])
    def test_a_file_that_is_not_ours_is_no_answer(self, content: str, cpu: CpuDriver, job: Job) -> None:
        key = probe_cache.key(job, cpu)
        probe_cache.path(key).parent.mkdir()
        probe_cache.path(key).write_text(content)
        assert probe_cache.read(key) is None


def test_answers_that_cannot_be_kept_are_a_mistake() -> None:
    command = [sys.executable, "-m", "pyrt.mpi_probe", "--device", "cpu"]
    done = mpi.mpirun(2, *command, env={"PYRT_CACHE_DIR": "/proc/none"})
    assert done.returncode == 2
    assert "error: /proc/none/probe/" in done.stderr and "set PYRT_CACHE_DIR to a folder" in done.stderr
    assert "Traceback" not in done.stderr
