"""Which device a rank uses: the GPU that falls to it on its node, an emulated one, or the CPU."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from threading import Lock, Thread

from pyrt.cache import KernelFolder, kernel_folder, use_kernel_folder
from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.emulated import EmulatedDriver, compile
from pyrt.driver.nvcc import find_nvcc
from pyrt.errors import UserError
from pyrt.job import AgreedError, Job
from pyrt.job.signals import undisturbed

CHOICES = ("auto", "cuda", "emulated", "cpu")

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The variable that says which GPUs a process sees, and in which order."""

_looking = Lock()
"""Held by the thread that looks for GPUs: while an import fails in one, another would be told of a half-made
module, and not of the package that is missing."""


@dataclass(frozen=True)
class Device:
    """This rank's open driver, and why it was chosen (empty where the user named it)."""

    driver: Driver
    why: str
    warnings: tuple[str, ...] = ()
    """Each one line: compiled kernels are not kept, ranks share GPUs."""


def open_device(
    choice: str,
    job: Job,
    share_gpus: bool,
    sanitize: bool = False,
    order_seed: int | None = None,
    servers: int = 0,
) -> Device:
    """Open the device of that name or, for ``auto``, ``cuda`` where every rank can and ``cpu`` elsewhere.

    ``sanitize`` and ``order_seed`` are for the emulated device: see `EmulatedDriver`.

    With ``share_gpus`` ranks share GPUs where a node has more ranks than GPUs, with a warning. The first
    ``servers`` ranks are parameter servers: these take the CPU there, and need no GPU.

    Collective. Raises UserError, on all ranks, for ``cuda`` where a rank has no GPU or no pycuda, for more
    ranks on a node than GPUs without ``share_gpus``, for a `VISIBLE` that names more GPUs than there are, and
    for ``emulated`` without a C++ compiler.
    """
    if choice == "cpu":
        return Device(CpuDriver(), "")
    if choice == "emulated":
        warnings = _share_kernel_folder(job)
        with job.agree():
            if job.node.rank == 0:  # the others find it in the cache
                undisturbed(compile.runtime_library)
        with job.agree():
            driver = EmulatedDriver(sanitize, order_seed)
        return Device(driver, "the same kernels on the CPU, slowly: for tests", warnings)
    visible, missing = usable_gpus()
    mistake = "" if missing else unseen(os.environ.get(VISIBLE), len(visible))
    found = job.comm.allgather((missing, mistake))
    reasons = [reason for reason, _ in found[servers:] if reason]
    if reasons and choice == "cuda":
        raise AgreedError(f"--device cuda: {reasons[0]}: use --device cpu, or run where there is a GPU")
    if reasons:
        return Device(CpuDriver(), f"{reasons[0]}: training on the CPU with NumPy")
    mistakes = [mistake for _, mistake in found if mistake]
    if mistakes:
        raise AgreedError(mistakes[0])
    on_node = job.node.allgather((visible, job.rank < servers))
    with job.agree():
        index = assign_beside_servers(on_node, share_gpus)[job.node.rank]
    warnings = _share_kernel_folder(job)
    with job.agree():
        opened: Driver = CpuDriver() if index is None else _open_cuda(index)
    shared = sharing(opened, job)
    if shared:
        warnings += (f"{shared}: slower than one rank a GPU; --no-share-gpus refuses it",)
    whose = "worker; parameter servers on the CPU" if None in job.comm.allgather(index) else "rank"
    return Device(opened, "" if choice == "cuda" or shared else f"a GPU for every {whose}", warnings)


def first_device() -> Driver:
    """Open the first GPU of this process or, where there is none, the emulated device.

    For programs of one process, without MPI. Raises UserError without a GPU and a C++ compiler.
    """
    gpus, missing = usable_gpus()
    if gpus:
        return _open_cuda(0)
    try:
        return EmulatedDriver()
    except UserError as error:
        raise UserError(f"{missing}, and {error}") from None


def gather_devices(driver: Driver, job: Job) -> list[tuple[str, str]]:
    """Each rank's device: what no other device of the job is called, and the device's name. Collective."""
    node = job.node.bcast(job.rank)
    return job.comm.allgather((f"node {node}, {driver.device_id}", driver.device_name))


def sharing(driver: Driver, job: Job) -> str:
    """Say which ranks share GPUs, as "ranks 0 to 3 share one GPU (NVIDIA H200)"; empty where none do.

    Collective.
    """
    devices = gather_devices(driver, job)
    taken = Counter(device for device in devices if not device[0].endswith(f" {CpuDriver.device_id}"))
    shared = {device: count for device, count in taken.items() if count > 1}
    if not shared:
        return ""
    ranks = [rank for rank, device in enumerate(devices) if device in shared]
    gpus = "one GPU" if len(shared) == 1 else f"{len(shared)} GPUs"
    return (
        f"{_in_words(ranks, job.size)} share {gpus} ({', '.join(dict.fromkeys(name for _, name in shared))})"
    )


def _in_words(ranks: list[int], size: int) -> str:
    """Name two or more ranks of a job of that ``size``, in a few words however many there are."""
    if len(ranks) == 2:
        return f"ranks {ranks[0]} and {ranks[1]}"
    if len(ranks) == ranks[-1] - ranks[0] + 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"{len(ranks)} of {size} ranks"


def _share_kernel_folder(job: Job) -> tuple[str, ...]:
    """Tell all ranks of a node the folder where one of them compiles and the others load. Collective.

    Returns a warning where kernels are not kept on some node.
    """
    with job.agree():
        folder = kernel_folder() if job.node.rank == 0 else None
    shared: KernelFolder = job.node.bcast(folder)
    use_kernel_folder(shared)
    return tuple(why for why in job.comm.allgather(shared.why_not_kept) if why)[:1]


def assign(visible: list[list[str]], share_gpus: bool) -> list[int]:
    """Assign a GPU to each rank of a node: return the index of that GPU among the GPUs the rank sees.

    ``visible[r]`` holds the UUIDs that local rank r sees, in CUDA's order: the same list on every rank,
    or one each where Slurm binds GPUs to tasks. Each rank in turn takes the first of the least taken
    GPUs. Raises UserError where that gives a GPU to two ranks and ``share_gpus`` is false.
    """
    taken: dict[str, int] = {}
    choices = []
    for gpus in visible:
        choice = min(gpus, key=lambda gpu: taken.get(gpu, 0))
        taken[choice] = taken.get(choice, 0) + 1
        choices.append(gpus.index(choice))
    if max(taken.values()) > 1 and not share_gpus:
        seen = len({gpu for gpus in visible for gpu in gpus})
        raise UserError(
            f"{len(visible)} ranks on a node with {seen} GPU{'s' if seen > 1 else ''}: start {seen} "
            "or fewer ranks a node, or let ranks share a GPU with --share-gpus"
        )
    return choices


def assign_beside_servers(ranks: list[tuple[list[str], bool]], share_gpus: bool) -> list[int | None]:
    """Assign a GPU to each rank of a node as `assign` does; None to parameter servers that take the CPU.

    These do so where they see no GPU, or the node has fewer GPUs than ranks. ``ranks`` has for each what it
    sees, and whether it is a server.
    """
    gpus = {gpu for visible, _ in ranks for gpu in visible}
    takes_cpu = [is_server and (not visible or len(gpus) < len(ranks)) for visible, is_server in ranks]
    others = [visible for (visible, _), on_cpu in zip(ranks, takes_cpu, strict=True) if not on_cpu]
    indices = iter(assign(others, share_gpus) if others else [])
    return [None if on_cpu else next(indices) for on_cpu in takes_cpu]


def wake(choice: str) -> None:
    """Have CUDA started by a thread, where `open_device` may need it: that takes tenths of a second, in which
    the caller can do something else."""
    if choice in ("auto", "cuda"):
        Thread(target=usable_gpus, name="wake").start()


def usable_gpus() -> tuple[list[str], str]:
    """UUIDs of the GPUs this process sees, or the reason why there are none."""
    with _looking:
        return _look_for_gpus()


def _look_for_gpus() -> tuple[list[str], str]:
    try:
        from pyrt.driver import cuda
    except ImportError as error:
        if error.name in ("pycuda", "pycuda.driver", "cuda", "cuda.bindings"):
            return [], "no GPU packages (pycuda, cuda-bindings) are installed"
        return [], f"pycuda does not load ({error})"
    try:
        gpus = cuda.visible_gpus()
    except cuda.cuda.Error as error:
        return [], none_seen(os.environ.get(VISIBLE), str(error))
    if not gpus:
        return [], none_seen(os.environ.get(VISIBLE), "there is none")
    if find_nvcc() is None:
        return [], "nvcc is neither on PATH nor in /usr/local/cuda/bin"
    return gpus, ""


def none_seen(value: str | None, error: str) -> str:
    """Why CUDA shows no GPU to a process whose `VISIBLE` is this (None: not set)."""
    if value is None:
        return f"no NVIDIA GPU answers ({error})"
    if not value.strip():
        return f"{VISIBLE} is empty, which hides all GPUs"
    return f"{VISIBLE}={value} shows no NVIDIA GPU ({error})"


def unseen(value: str | None, seen: int) -> str:
    """Say what is wrong if `VISIBLE` names more devices than CUDA shows; else return an empty text.

    CUDA reads the list up to the first entry that it cannot take, and says nothing. An entry -1 is meant to
    end it (CUDA C++ Programming Guide, CUDA Environment Variables).
    """
    names = [name.strip() for name in (value or "").split(",")]
    names = names[: names.index("-1")] if "-1" in names else names
    if value is None or len(names) <= seen:
        return ""
    twice = [name for name in names if names.count(name) > 1]
    odd = [name for name in names if not re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", name)]
    if odd:
        why = f"{odd[0]!r} names none"
    elif twice:
        why = f"{twice[0]} is there twice"
    elif any(name.startswith("MIG-") for name in names):
        why = "a process sees one MIG instance: give each rank one of its own"
    else:
        why = "`nvidia-smi -L` lists those that there are"
    return f"{VISIBLE}={value}: has {len(names)} entries, of which CUDA shows {seen}: {why}"


def _open_cuda(index: int) -> Driver:
    from pyrt.driver.cuda import CudaDriver, cuda

    try:
        return CudaDriver(index)
    except cuda.Error as error:
        raise UserError(
            f"GPU {index} cannot be used ({error}): is another program on it? See nvidia-smi"
        ) from None
