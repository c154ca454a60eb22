"""The settings of a training, with their defaults and help; options of the command line are more."""

# ruff: noqa: RUF009 (option is dataclasses.field, with immutable defaults)

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nn.input import placement, validation_split
from nn.input.augment import Augmentation
from nn.launch.conv.versions import CONV_VERSIONS
from nn.launch.gemm.components import COMPONENTS
from nn.launch.gemm.versions import GEMM_VERSIONS
from nn.parallel.plan import FORK_JOIN
from nn.problem.option import option
from nn.problem.validate_settings import validate
from pyrt.errors import UserError, shown
from pyrt.exchange import SYNCHRONOUS, Asynchrony
from pyrt.exchange.registry import asynchronous, choices

ERRORS = STOP, WARN = ("stop", "warn")
"""What to do when a checkpoint cannot be written."""

DTYPES = ("float32", "float64")

TOLERANCES = {"float32": 1e-4, "float64": 1e-11, "tf32": 5e-3, "bf16": 5e-2}
"""Relative max norm up to which ``--check`` calls parameters equal, by dtype, in float32 by ``--math``."""


@dataclass(frozen=True)
class Settings:
    """How a network is trained. Raises UserError for values that make no sense, each named by its option."""

    batch: int = option(3000, "samples a step, over all ranks", "N")
    epochs: int = option(
        200, "passes over the training samples; 0: score and save the initial parameters", "N"
    )
    dtype: str = option("float32", "type of all arithmetic", choices=DTYPES)
    samples: int | None = option(None, "training samples an epoch, repeated where there are fewer", "N")
    val_fraction: float = option(0.1, "part of the training set held out for validation", "X")
    val_split: str = option(
        validation_split.TAIL,
        "what is held out: the last rows, random ones, or as large a part of each class",
        choices=validation_split.SPLITS,
    )
    shuffle: bool = option(True, "shuffle the training samples every epoch")
    seed: int = option(0, "seed of initial weights, shuffling, --val-split, dropout and --augment", "N")
    augment: str | None = option(
        None,
        "change training images at random, each epoch anew: flip (mirror half of them left-right), shiftN "
        "(move them by up to N pixels), or both: flip,shift2",
        "WORDS",
    )
    pixel_scale: float = option(255.0, "divisor of the pixels (1: raw pixels)", "X")
    gemm: str = option(
        "auto",
        "version of the matrix product, where kernels compute it; auto: the fastest",
        choices=("auto", *GEMM_VERSIONS),
    )
    conv: str = option(
        "auto",
        "version of convolutions, where kernels compute them; auto: the fastest",
        choices=("auto", *CONV_VERSIONS),
    )
    math: str = option(
        "float32",
        "accuracy of products on tensor cores: float32's; operands of 11 to 16 bits (tf32); of 8 (bf16, "
        "with --gemm wgmma alone)",
        choices=tuple(COMPONENTS),
    )
    plan: str = option(
        "data",
        "what ranks split: data (each batch), model (weights by rows and columns), auto (what should be "
        "fastest here, measured once), fork-join (each product of rank 0, to compare with), or a plan's JSON "
        "file",
        "PLAN",
    )
    grid: str | None = option(
        None, "with --plan model: G groups of M ranks that share the weights (default: one group)", "GxM"
    )
    exchange: str = option(
        "auto",
        "how gradients are summed over ranks; auto: the fastest that works here; hogwild and server: not at "
        "all, ranks update parameters that they share, or that --servers hold, and wait for nobody",
        choices=("auto", *choices(), *asynchronous()),
        unoffered=("local",),  # no exchange: for measurements
    )
    atomic: bool = option(False, "with --exchange hogwild: lose no update where ranks make two at once")
    servers: int = option(
        1, "with --exchange server: the first S ranks hold the parameters, all others are workers", "S"
    )
    staleness: str = option(
        "inf",
        "with --exchange server: a worker may be K steps ahead of the slowest; 0: training is synchronous; "
        "inf: it never waits",
        "K",
    )
    shards_kept: int = option(
        1, "with --elastic: each shard of the parameters is on so many servers, 1 or 2; then one may die", "N"
    )
    epoch_barrier: bool = option(
        True,
        "with --exchange hogwild or server: workers wait for each other at the end of an epoch, for its "
        "loss and its validation",
    )
    slow_rank: str | None = option(
        None, "let the steps of rank R take F times as long, to see what that costs the others", "R:F"
    )
    ranks_per_node: int | None = option(
        None, "so many consecutive ranks count as a node, for --exchange peer and hierarchical", "K"
    )
    placement: str = option(
        "auto",
        "place of the training set: resident on the device, or streamed to it; auto: resident where it fits",
        choices=placement.CHOICES,
    )
    graph: bool = option(
        True,
        "replay steps from graphs, else launch kernel by kernel; never with --profile or without kernels",
    )
    profile: bool = option(False, "wait for device and ranks at every phase, to see each phase's own time")
    check_each: int | None = option(
        None,
        "run each operation of the first N steps in NumPy too, on the same inputs; name the first wrong one",
        "N",
    )
    print_every: int | None = option(None, "print the loss every N steps", "N")
    checkpoint: Path | None = option(
        None, "a folder for checkpoints: all that --resume needs to go on as if never stopped", "DIR"
    )
    checkpoint_every: str = option("1ep", "with --checkpoint: steps, or epochs as 2ep, between two", "N[ep]")
    resume: bool = option(False, "with --checkpoint: go on from the newest whole one, if there is one")
    keep: int = option(3, "with --checkpoint: so many of the last ones stay, and the best by validation", "K")
    checkpoint_errors: str = option(
        "stop", "what to do when a checkpoint cannot be written: stop, or warn and go on", choices=ERRORS
    )
    tolerance: float | None = option(
        None,
        "relative max norm that --check allows (default: 1e-4; 1e-11 in float64; 5e-3, 5e-2 with --math "
        "tf32, bf16)",
        "X",
    )

    def __post_init__(self) -> None:
        for name in self._files:
            if isinstance(getattr(self, name), str):  # in Python
                object.__setattr__(self, name, Path(getattr(self, name)))
        if self.augment is not None:
            object.__setattr__(self, "augment", str(Augmentation.read(self.augment)))
        validate(self)

    @property
    def slowed(self) -> tuple[int, float] | None:
        """Return the slow rank and the factor of its steps' time; None without --slow-rank."""
        if self.slow_rank is None:
            return None
        found = re.fullmatch(r"(\d{1,7}):(\d{1,6}(?:\.\d{1,6})?)", self.slow_rank)
        if found is None or float(found[2]) < 1:
            raise UserError(
                f"--slow-rank {shown(self.slow_rank)}: must be a rank, and how many times as long its steps "
                "take, as 3:4.0"
            )
        return int(found[1]), float(found[2])

    @property
    def asynchrony(self) -> Asynchrony:
        """Return the settings of the exchange, if it is asynchronous; else `SYNCHRONOUS`."""
        if self.exchange not in asynchronous():
            return SYNCHRONOUS
        servers = self.servers if self.exchange == "server" else 0
        return Asynchrony(self.atomic, servers, float(self.staleness), self.shards_kept)

    @property
    def _files(self) -> list[str]:
        """The options that name a file or a folder."""
        return [field.name for field in dataclasses.fields(self) if field.type == "Path | None"]

    def steps_between_checkpoints(self, batches: int) -> int:
        """Count the steps between two checkpoints, with so many batches an epoch."""
        count = int(self.checkpoint_every.removesuffix("ep"))
        return count * batches if self.checkpoint_every.endswith("ep") else count

    @property
    def fuses(self) -> bool:
        """Return whether a kernel may do the work of several operations."""
        return not self.profile and self.plan != FORK_JOIN

    @property
    def check_tolerance(self) -> float:
        accuracy = self.math if self.dtype == "float32" else self.dtype
        return self.tolerance if self.tolerance is not None else TOLERANCES[accuracy]

    def as_json(self) -> dict[str, Any]:
        """Return all of them in types that JSON has."""
        return {name: _plain(value) for name, value in dataclasses.asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
