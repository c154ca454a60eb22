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
    """Its dtype, gemm, conv and math count; its network and batch do not."""


@dataclass(frozen=True)
class Convolved:
    """Sizes of convolutions; each of the three in ascending order."""

    side: int
    """Rows and columns of an image."""
    samples: tuple[int, ...]
    """Images of a batch."""
    channels: tuple[int, ...]
    """Channels of an image."""
    filters: tuple[int, ...]


@dataclass(frozen=True)
class Extent:
    """How large the things are that are measured on a kind of device."""

    products: tuple[int, ...]
    """M, N and K."""
    convolved: Convolved
    steps: tuple[tuple[str, tuple[int, ...], int], ...]
    """Networks, as ``--net`` has them, the images that they take, and samples of the steps whose operations
    are timed."""
    moved: tuple[int, ...]
    """Bytes of a matrix, or of gradients."""


EXTENTS = {
    "cuda": Extent(
        (16, 64, 256, 1024, 4096),
        Convolved(32, (1, 16, 128), (3, 16, 64, 512), (16, 64, 512)),
        (
            ("dense512,sigmoid,dense10", (784,), 3000),
            ("dense4096,sigmoid,dense4096,sigmoid,dense10", (784,), 4096),
            (
                "conv3x3x64p1,relu,conv3x3x64p1,relu,pool2,conv3x3x64p1,relu,pool2,dense512,sigmoid,dense10",
                (64, 64, 3),
                128,
            ),
        ),
        (1 << 16, 1 << 21, 1 << 25),
    ),
    "cpu": Extent(
        (16, 64, 256, 1024),
        Convolved(16, (4, 32), (1, 8, 64), (8, 64)),
        (
            ("dense1024,sigmoid,dense1024,sigmoid,dense10", (784,), 2048),
            ("conv3x3x16p1,relu,conv3x3x16p1,relu,pool2,dense10", (16, 16, 3), 64),
        ),
        (1 << 16, 1 << 20, 1 << 23),
    ),
    "emulated": Extent(
        (8, 16),
        Convolved(4, (1, 2), (1, 8), (8,)),
        (
            ("dense16,sigmoid,dense16,sigmoid,dense10", (784,), 16),
            ("conv3x3x8p1,relu,pool2,dense10", (4, 4, 3), 2),
        ),
        (1 << 10, 1 << 12),
    ),
}
