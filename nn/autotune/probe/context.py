"""What is measured: the machine of a job, and things how large on each kind of device."""

from __future__ import annotations

from dataclasses import dataclass

from nn.autotune.listed_step import Task
from pyrt.driver import Driver
from pyrt.exchange.choose import ExchangeChoice
from pyrt.job import Job


@dataclass(frozen=True)
class ProbeContext:
    """What is measured."""

    job: Job
    driver: Driver
    way: ExchangeChoice
    """Of the exchange among all ranks."""
    task: Task
    """Its dtype, gemm and math count; its network and batch do not."""


@dataclass(frozen=True)
class Extent:
    """How large the things are that are measured on a kind of device."""

    products: tuple[int, ...]
    """M, N and K."""
    steps: tuple[tuple[tuple[int, ...], int], ...]
    """Hidden layers and samples of the steps whose operations are timed."""
    moved: tuple[int, ...]
    """Bytes of a matrix, or of gradients."""


EXTENTS = {
    "cuda": Extent(
        (16, 64, 256, 1024, 4096), (((512,), 3000), ((4096, 4096), 4096)), (1 << 16, 1 << 21, 1 << 25)
    ),
    "cpu": Extent((16, 64, 256, 1024), (((1024, 1024), 2048),), (1 << 16, 1 << 20, 1 << 23)),
    "emulated": Extent((8, 16), (((16, 16), 16),), (1 << 10, 1 << 12)),
}
