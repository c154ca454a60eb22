"""Which device a rank uses: how GPUs are shared out on a node, and when the CPU serves."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyrt import devices
from pyrt.devices import assign, assign_beside_servers, first_device, open_device, sharing
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.emulated import compile
from pyrt.errors import UserError
from pyrt.job import AgreedError, Job
from tests.mpi import TIMEOUT, environment
from tests.pyrt.fakes import ClockedDriver

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

    @pytest.mark.parametrize(
        ("servers", "seen", "expected"),
        [
            (1, [FOUR] * 4, [0, 1, 2, 3]),  # there is one for each
            (2, [FOUR] * 6, [None, None, 0, 1, 2, 3]),
            (1, [[], ["gpu-a"], ["gpu-b"], ["gpu-c"]], [None, 0, 0, 0]),
            (2, [FOUR[:1]] * 4, [None, None, 0, 0]),
            (2, [[], []], [None, None]),
        ],
    )
    def test_servers_take_the_cpu_where_gpus_are_short(
        self, servers: int, seen: list[list[str]], expected: list[int | None]
    ) -> None:
        ranks = [(gpus, rank < servers) for rank, gpus in enumerate(seen)]
        assert assign_beside_servers(ranks, share_gpus=True) == expected


class Ranks:
    """A communicator of several ranks, of which this one is the first: what they gather is known."""

    rank = 0

    def __init__(self, gathered: Sequence[object]) -> None:
        self.size = len(gathered)
        self.gathered = gathered

    def bcast(self, mine: object) -> object:
        return mine

    def allgather(self, mine: object) -> Sequence[object]:
        return self.gathered


class TestSharing:
    @pytest.mark.parametrize(
        ("gpus", "words"),
        [
            ("a", ""),
            ("abcd", ""),
            ("aaaa", "ranks 0 to 3 share one GPU (a card)"),
            ("aa", "ranks 0 and 1 share one GPU (a card)"),
            ("aba", "ranks 0 and 2 share one GPU (a card)"),
            ("abbb", "ranks 1 to 3 share one GPU (a card)"),
            ("abca", "ranks 0 and 3 share one GPU (a card)"),
            ("abacaba", "6 of 7 ranks share 2 GPUs (a card)"),
            ("abcd" * 16, "ranks 0 to 63 share 4 GPUs (a card)"),
            ("aaBB", "ranks 0 to 3 share 2 GPUs (a card, another card)"),
        ],
    )
    def test_one_short_line_says_who_shares(self, job: Job, gpus: str, words: str) -> None:
        driver = ClockedDriver()
        found = [(gpu, "a card" if gpu.islower() else "another card") for gpu in gpus]
        assert sharing(driver, replace(job, comm=Ranks(found), node=Ranks(found))) == words

    def test_ranks_share_the_cpu_without_a_word(self, job: Job, cpu: CpuDriver) -> None:
        ranks = Ranks([("node 0, cpu", "a processor")] * 2)
        assert sharing(cpu, replace(job, comm=ranks, node=Ranks([0, 0]))) == ""


@pytest.mark.parallel([4])
def test_gpus_of_two_nodes_are_not_one(job: Job) -> None:
    """Though they are called the same there."""
    driver = ClockedDriver()
    driver.device_id, driver.device_name = f"GPU {job.rank % 2}", "a card"
    two_nodes = replace(job, node=job.comm.Split(job.rank // 2))
    assert sharing(driver, two_nodes) == ""
    driver.device_id = "GPU 0"
    assert sharing(driver, two_nodes) == "ranks 0 to 3 share 2 GPUs (a card)"


def test_gpus_are_woken_beside_the_caller_where_they_may_be_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    go, looks = threading.Event(), []
    monkeypatch.setattr(devices, "usable_gpus", lambda: go.wait(60) and looks.append(1))
    before = set(threading.enumerate())
    for choice in devices.CHOICES:
        devices.wake(choice)
    woken = set(threading.enumerate()) - before
    assert not looks
    go.set()
    for thread in woken:
        thread.join()
    assert len(woken) == len(looks) == len({"auto", "cuda"})


class Absent:
    """Finds that pycuda is not installed, but not at once."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pycuda":
            time.sleep(0.05)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_threads_that_look_for_gpus_at_once_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    for name in [name for name in sys.modules if name.split(".")[0] == "pycuda"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "pyrt.driver.cuda", raising=False)
    monkeypatch.delattr("pyrt.driver.cuda", raising=False)
    with ThreadPoolExecutor(4) as pool:
        looks = [pool.submit(devices.usable_gpus) for _ in range(40)]
    assert {look.result()[1] for look in looks} == {"no GPU packages (pycuda, cuda-bindings) are installed"}


class OtherRank:
    """A communicator of two ranks, of which the other always says the same."""

    rank, size = 0, 2

    def __init__(self, says: object) -> None:
        self.says = says

    def allgather(self, mine: object) -> list[object]:
        return [mine, self.says]


@pytest.mark.parallel([3])
@pytest.mark.parametrize("choice", ["auto", "cuda"])
def test_more_ranks_than_gpus_share_them_with_a_warning_or_are_refused(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, choice: str
) -> None:
    def open_gpu(index: int) -> ClockedDriver:
        driver = ClockedDriver()
        driver.device_id, driver.device_name = f"GPU {index}", "a card"
        return driver

    monkeypatch.setenv("PYRT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "usable_gpus", lambda: (FOUR[:2], ""))
    monkeypatch.setattr(devices, "_open_cuda", open_gpu)
    device = open_device(choice, job, share_gpus=True)
    assert device.warnings == (
        "ranks 0 and 2 share one GPU (a card): slower than one rank a GPU; --no-share-gpus refuses it",
    )
    assert device.why == ""
    with pytest.raises(AgreedError, match="3 ranks on a node with 2 GPUs: start 2 or fewer ranks a node"):
        open_device(choice, job, share_gpus=False)
    monkeypatch.setattr(devices, "usable_gpus", lambda: (FOUR, ""))
    device = open_device(choice, job, share_gpus=True)
    assert (device.warnings, device.why) == ((), "a GPU for every rank" if choice == "auto" else "")


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
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        mixed = replace(job, comm=OtherRank(("this process sees no NVIDIA GPU", "")))
        device = open_device("auto", mixed, share_gpus=False)
        assert device.driver.name == "cpu"
        assert device.why == "this process sees no NVIDIA GPU: training on the CPU with NumPy"
        with pytest.raises(
            UserError, match="--device cuda: this process sees no NVIDIA GPU: use --device cpu"
        ):
            open_device("cuda", mixed, share_gpus=False)

    @pytest.mark.parametrize("choice", ["auto", "cuda"])
    def test_gpus_that_one_rank_has_named_and_does_not_see_are_an_error_on_all(
        self, job: Job, monkeypatch: pytest.MonkeyPatch, choice: str
    ) -> None:
        monkeypatch.setattr(devices, "usable_gpus", lambda: (["gpu-a"], ""))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,7")
        mine = "CUDA_VISIBLE_DEVICES=0,7: has 2 entries, of which CUDA shows 1"
        with pytest.raises(UserError, match=mine):
            open_device(choice, replace(job, comm=OtherRank(("", ""))), share_gpus=False)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        with pytest.raises(UserError, match="of the other rank"):
            open_device(choice, replace(job, comm=OtherRank(("", "of the other rank"))), share_gpus=False)

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


class TestUsableGpus:
    """As pyrt/driver/cuda finds them, which needs a GPU to be imported."""

    @pytest.fixture
    def found(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        """What stands for that module: one GPU, and a compiler."""
        module = SimpleNamespace(visible_gpus=lambda: ["gpu-a"], cuda=SimpleNamespace(Error=RuntimeError))
        monkeypatch.setattr(devices, "find_nvcc", lambda: "nvcc")
        monkeypatch.setitem(sys.modules, "pyrt.driver.cuda", module)
        monkeypatch.setattr("pyrt.driver.cuda", module, raising=False)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        return module

    def test_a_gpu_and_a_compiler(self, found: SimpleNamespace) -> None:
        assert devices.usable_gpus() == (["gpu-a"], "")

    @pytest.mark.usefixtures("found")
    def test_no_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "find_nvcc", lambda: None)
        assert devices.usable_gpus() == ([], "nvcc is neither on PATH nor in /usr/local/cuda/bin")

    def test_no_gpu(self, found: SimpleNamespace) -> None:
        def visible_gpus() -> list[str]:
            raise RuntimeError("cuInit failed")

        found.visible_gpus = visible_gpus
        assert devices.usable_gpus() == ([], "CUDA_VISIBLE_DEVICES=-1 shows no NVIDIA GPU (cuInit failed)")
        found.visible_gpus = list
        assert devices.usable_gpus() == ([], "CUDA_VISIBLE_DEVICES=-1 shows no NVIDIA GPU (there is none)")


MIG = "MIG-6a2f1d2e-6d8a-5c1f-9b58-1f0d7f6b2f11"
UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"


class TestVisibleDevices:
    @pytest.mark.parametrize(
        ("value", "seen"),
        [
            (None, 0),
            (None, 8),
            ("0", 1),
            ("1,0", 2),
            (" 1 , 0", 2),
            ("-1", 0),
            ("1,-1,0", 1),
            (UUID, 1),
            ("GPU-8932f937", 1),
            (f"0,{UUID}", 2),
            (MIG, 1),
            ("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/0", 1),
            (f"{MIG},{MIG[:-1]}2", 2),  # a driver that shows several
        ],
    )
    def test_lists_of_which_all_is_seen(self, value: str | None, seen: int) -> None:
        assert devices.unseen(value, seen) == ""

    @pytest.mark.parametrize(
        ("value", "seen", "why"),
        [
            ("0,,1", 1, "'' names none"),
            ("0,1,", 2, "'' names none"),
            ("0,x,1", 1, "'x' names none"),
            ("0 1,1", 0, "'0 1' names none"),
            ("0,GPU-", 1, "'GPU-' names none"),
            ("0,0", 1, "0 is there twice"),
            (f"{UUID},{UUID}", 1, f"{UUID} is there twice"),
            ("0,9", 1, "`nvidia-smi -L` lists those that there are"),
            (f"{MIG},{MIG[:-1]}2", 1, "a process sees one MIG instance: give each rank one of its own"),
        ],
    )
    def test_lists_whose_end_cuda_passes_over_in_silence(self, value: str, seen: int, why: str) -> None:
        count = value.count(",") + 1
        assert devices.unseen(value, seen) == (
            f"CUDA_VISIBLE_DEVICES={value}: has {count} entries, of which CUDA shows {seen}: {why}"
        )

    @pytest.mark.parametrize(
        ("value", "why"),
        [
            (None, "no NVIDIA GPU answers (cuInit failed)"),
            ("", "CUDA_VISIBLE_DEVICES is empty, which hides all GPUs"),
            (" ", "CUDA_VISIBLE_DEVICES is empty, which hides all GPUs"),
            ("-1", "CUDA_VISIBLE_DEVICES=-1 shows no NVIDIA GPU (cuInit failed)"),
            ("NoDevFiles", "CUDA_VISIBLE_DEVICES=NoDevFiles shows no NVIDIA GPU (cuInit failed)"),
        ],
    )
    def test_where_none_is_seen_the_variable_is_named(self, value: str | None, why: str) -> None:
        assert devices.none_seen(value, "cuInit failed") == why


class TestFirst:
    """The device of a program of one process."""

    def test_it_is_the_first_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "usable_gpus", lambda: (FOUR, ""))
        monkeypatch.setattr(devices, "_open_cuda", lambda index: f"GPU {index}")
        assert first_device() == "GPU 0"

    @pytest.mark.kernels
    def test_it_is_the_emulated_one_where_there_is_no_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "usable_gpus", lambda: ([], "no NVIDIA GPU answers"))
        driver = first_device()
        assert driver.name == "emulated"
        driver.close()

    def test_where_there_is_none_it_says_so_in_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "usable_gpus", lambda: ([], "no NVIDIA GPU answers"))
        monkeypatch.setenv("CXX", "no-such-compiler")
        monkeypatch.setattr(compile, "compiler", compile.compiler.__wrapped__)
        with pytest.raises(
            UserError, match=r"^no NVIDIA GPU answers, and the emulated device needs a C\+\+ comp"
        ):
            first_device()
