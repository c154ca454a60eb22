"""Which device a rank uses: how GPUs are shared out on a node, and when the CPU serves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from pyrt import devices
from pyrt.devices import assign, open_device
from pyrt.driver.emulated import compile
from pyrt.errors import UserError
from pyrt.job import Job
from tests.mpi import TIMEOUT, environment

FOUR = ["gpu-a", "gpu-b", "gpu-c", "gpu-d"]


class TestAssign:
    def test_ranks_that_see_all_gpus_take_one_each(self) -> None:
        assert assign([FOUR] * 4, share_gpus=False) == [0, 1, 2, 3]
        assert assign([FOUR] * 2, share_gpus=False) == [0, 1]

    def test_ranks_that_slurm_shows_one_gpu_take_that(self) -> None:
        assert assign([[gpu] for gpu in FOUR], share_gpus=False) == [0, 0, 0, 0]

    def test_ranks_may_see_the_same_gpus_in_different_order(self) -> None:
        assert assign([FOUR, FOUR[::-1], FOUR], share_gpus=False) == [0, 0, 1]

    @pytest.mark.parametrize(
        ("visible", "message"),
        [
            ([FOUR] * 5, "5 ranks on a node with 4 GPUs: start 4 or fewer"),
            ([FOUR[:1]] * 2, "2 ranks on a node with 1 GPU: start 1 or fewer"),
            ([["gpu-a"], ["gpu-b"], ["gpu-a"]], "3 ranks on a node with 2 GPUs: "),
        ],
    )
    def test_more_ranks_than_gpus_are_refused_with_both_numbers(
        self, visible: list[list[str]], message: str
    ) -> None:
        with pytest.raises(UserError, match=rf"^{message}.*--share-gpus"):
            assign(visible, share_gpus=False)

    @pytest.mark.parametrize("ranks", [1, 3, 4, 6, 7, 8])
    def test_sharing_spreads_ranks_evenly(self, ranks: int) -> None:
        used = Counter(assign([FOUR] * ranks, share_gpus=True))
        assert sum(used.values()) == ranks
        assert max(used.values()) - min(used[index] for index in range(4)) <= 1

    def test_sharing_one_gpu(self) -> None:
        assert assign([["gpu-a"]] * 3, share_gpus=True) == [0, 0, 0]


class OtherRank:
    """A communicator of two ranks, of which the other always says the same."""

    rank, size = 0, 2

    def __init__(self, says: object) -> None:
        self.says = says

    def allgather(self, mine: object) -> list[object]:
        return [mine, self.says]


class TestOpenDevice:
    def test_cpu_asks_nobody_for_a_gpu(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "usable_gpus", lambda: pytest.fail("asked"))
        device = open_device("cpu", job, share_gpus=False)
        assert device.driver.name == "cpu"
        assert device.why == ""

    @pytest.mark.kernels
    def test_emulated_asks_nobody_for_a_gpu(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "usable_gpus", lambda: pytest.fail("asked"))
        device = open_device("emulated", job, share_gpus=False)
        assert device.driver.name == "emulated"
        assert device.why == "the same kernels on the CPU, slowly: for tests"

    def test_emulated_without_a_compiler_is_an_error(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        compile.compiler.cache_clear()
        with monkeypatch.context() as patch, pytest.raises(UserError, match=r"install g\+\+"):
            patch.setenv("PATH", "")
            patch.delenv("CXX", raising=False)
            open_device("emulated", job, share_gpus=False)

    def test_one_rank_without_a_gpu_sends_all_to_the_cpu(
        self, job: Job, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(devices, "usable_gpus", lambda: (["gpu-a"], ""))
        mixed = replace(job, comm=OtherRank("this process sees no NVIDIA GPU"))
        device = open_device("auto", mixed, share_gpus=False)
        assert device.driver.name == "cpu"
        assert device.why == "this process sees no NVIDIA GPU: training on the CPU with NumPy"
        with pytest.raises(
            UserError, match="--device cuda: this process sees no NVIDIA GPU: use --device cpu"
        ):
            open_device("cuda", mixed, share_gpus=False)

    def test_without_any_gpu_auto_is_the_cpu_and_cuda_is_an_error(self) -> None:
        """In a process that sees no GPU, whether this machine has some or not."""
        code = """
import json
from mpi4py import MPI
from pyrt.devices import open_device
from pyrt.errors import UserError
from pyrt.job import Job
job = Job(MPI.COMM_WORLD, MPI.COMM_WORLD, "an MPI", cores=1.0)
device = open_device("auto", job, False)
try:
    open_device("cuda", job, False)
except UserError as error:
    print(json.dumps([device.driver.name, device.why, str(error)]))
"""
        printed = subprocess.check_output(
            [sys.executable, "-c", code], env=environment({"CUDA_VISIBLE_DEVICES": ""}), timeout=TIMEOUT
        )
        name, why, error = json.loads(printed)
        assert name == "cpu"
        assert why.endswith(": training on the CPU with NumPy")
        assert "GPU" in why or "pycuda" in why
        assert error.startswith("--device cuda: ")
        assert error.endswith(": use --device cpu, or run where there is a GPU")
        assert "\n" not in why + error
