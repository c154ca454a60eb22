"""Which device a rank uses: the GPU that falls to it on its node, an emulated one, or the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.emulated import EmulatedDriver, compile
from pyrt.errors import UserError
from pyrt.job import AgreedError, Job

CHOICES = ("auto", "cuda", "emulated", "cpu")


@dataclass(frozen=True)
class Device:
    """This rank's open driver, and why it was chosen (empty where the user named it)."""

    driver: Driver
    why: str


def open_device(
    choice: str, job: Job, share_gpus: bool, sanitize: bool = False, order_seed: int | None = None
) -> Device:
    """Open the device of that name or, for ``auto``, ``cuda`` where every rank can and ``cpu`` elsewhere.

    ``sanitize`` and ``order_seed`` are for the emulated device: see `EmulatedDriver`.

    Collective. Raises UserError, on all ranks, for ``cuda`` where a rank has no GPU or no pycuda, for more
    ranks on a node than GPUs unless ``share_gpus``, and for ``emulated`` without a C++ compiler.
    """
    if choice == "cpu":
        return Device(CpuDriver(), "")
    if choice == "emulated":
        with job.together():
            if job.node.rank == 0:  # the others find it in the cache
                compile.runtime_library()
        with job.together():
            driver = EmulatedDriver(sanitize, order_seed)
        return Device(driver, "the same kernels on the CPU, slowly: for tests")
    visible, missing = usable_gpus()
    reasons = [reason for reason in job.comm.allgather(missing) if reason]
    if reasons and choice == "cuda":
        raise AgreedError(f"--device cuda: {reasons[0]}: use --device cpu, or run where there is a GPU")
    if reasons:
        return Device(CpuDriver(), f"{reasons[0]}: training on the CPU with NumPy")
    with job.together():
        index = assign(job.node.allgather(visible), share_gpus)[job.node.rank]
    with job.together():
        gpu = _open_cuda(index)
    return Device(gpu, "" if choice == "cuda" else "a GPU for every rank")


def assign(visible: list[list[str]], share_gpus: bool) -> list[int]:
    """For each rank of a node the index, among the GPUs it sees, of the one it takes.

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


def usable_gpus() -> tuple[list[str], str]:
    """UUIDs of the GPUs this process sees, or the reason why there are none."""
    try:
        from pyrt.driver import cuda
    except ImportError as error:
        if error.name in ("pycuda", "pycuda.driver", "cuda", "cuda.bindings"):
            return [], "no GPU packages (pycuda, cuda-bindings) are installed"
        return [], f"pycuda does not load ({error})"
    try:
        gpus = cuda.visible_gpus()
    except cuda.cuda.Error as error:
        return [], f"no NVIDIA GPU answers ({error})"
    if not gpus:
        return [], "this process sees no NVIDIA GPU"
    if cuda.find_nvcc() is None:
        return [], "nvcc is neither on PATH nor in /usr/local/cuda/bin"
    return gpus, ""


def _open_cuda(index: int) -> Driver:
    from pyrt.driver.cuda import CudaDriver, cuda

    try:
        return CudaDriver(index)
    except cuda.Error as error:
        raise UserError(
            f"GPU {index} cannot be used ({error}): is another program on it? See nvidia-smi"
        ) from None
