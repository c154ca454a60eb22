"""The options of a run with their defaults, limits and help. `nn/command_line.py` reads them."""

# ruff: noqa: RUF009 (_option is dataclasses.field, with immutable defaults)

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nn import held_out, placement
from nn.data.dataset import MOST_CLASSES
from nn.gemm_versions import GEMM_VERSIONS
from nn.network import ACTIVATIONS, HEADS
from nn.tensor_cores import TERMS
from pyrt import devices, exchange
from pyrt.errors import UserError, shown

ERRORS = STOP, WARN = ("stop", "warn")
"""What to do when a checkpoint cannot be written."""

DTYPES = ("float32", "float64")

WRITTEN = ("save", "json", "predictions", "save_plan")
"""The options whose file the run writes; any one of them may be standard output (nn/files.py)."""

TOLERANCES = {"float32": 1e-4, "float64": 1e-11, "tf32": 5e-3, "bf16": 5e-2}
"""Relative max norm up to which ``--check`` calls parameters equal, by dtype, in float32 by ``--math``."""


def _option(
    default: Any,
    help: str,
    metavar: str | None = None,
    choices: Sequence[str] = (),
    unoffered: Sequence[str] = (),
) -> Any:
    """``unoffered``: choices that Python has and the command line has not."""
    metadata = {"help": help, "metavar": metavar, "choices": choices, "unoffered": unoffered}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Options:
    """One run. Raises UserError for values that make no sense, each named by its option."""

    hidden: tuple[int, ...] = _option((512,), "units of the hidden layers, as 512 or 512,256", "N[,N...]")
    activation: str = _option("sigmoid", "activation of the hidden layers", choices=ACTIVATIONS)
    head: str = _option(
        "softmax", "output layer: softmax, or sigmoid for each class; both with cross-entropy", choices=HEADS
    )
    reg: float = _option(1e-4, "L2 regularisation of the weights", "X")
    batch: int = _option(3000, "samples a step, over all ranks", "N")
    epochs: int = _option(
        200, "passes over the training samples; 0: score and save the initial parameters", "N"
    )
    lr: float = _option(0.07, "learning rate", "X")
    momentum: float = _option(0.9, "momentum of gradient descent", "X")
    dtype: str = _option("float32", "type of all arithmetic", choices=DTYPES)
    device: str = _option(
        "auto", "where to compute; auto: cuda where every rank has a GPU, else cpu", choices=devices.CHOICES
    )
    sanitize: bool = _option(False, "on the emulated device: check accesses, races, barriers and copies")
    order_seed: int | None = _option(
        None, "on the emulated device: shuffle the order of threads, blocks and streams", "N"
    )
    share_gpus: bool = _option(True, "let ranks share a GPU, slowly, where a node has more ranks than GPUs")
    data: str = _option(
        "embedded",
        "data set: embedded, mnist (downloaded once), a folder of IDX files, an .npz file",
        "SOURCE",
    )
    samples: int | None = _option(None, "training samples an epoch, repeated where there are fewer", "N")
    classes: int | None = _option(
        None, "number of classes, where it is more than the largest training label + 1", "N"
    )
    val_fraction: float = _option(0.1, "part of the training set held out for validation", "X")
    val_split: str = _option(
        held_out.TAIL,
        "what is held out: the last rows, random ones, or as large a part of each class",
        choices=held_out.SPLITS,
    )
    shuffle: bool = _option(True, "shuffle the training samples every epoch")
    seed: int = _option(0, "seed of initial weights, shuffling and --val-split", "N")
    pixel_scale: float = _option(255.0, "divisor of the pixels (1: raw pixels)", "X")
    init: Path | None = _option(None, "initial parameters W1, b1, ... from an .npz file", "FILE")
    save: Path | None = _option(None, "write the trained parameters to an .npz file", "FILE")
    evaluate: bool = _option(False, "train nothing: score the test set with the parameters of --init")
    checkpoint: Path | None = _option(
        None, "a folder for checkpoints: all that --resume needs to go on as if never stopped", "DIR"
    )
    checkpoint_every: str = _option("1ep", "with --checkpoint: steps, or epochs as 2ep, between two", "N[ep]")
    resume: bool = _option(False, "with --checkpoint: go on from the newest whole one, if there is one")
    keep: int = _option(
        3, "with --checkpoint: so many of the last ones stay, and the best by validation", "K"
    )
    checkpoint_errors: str = _option(
        "stop", "what to do when a checkpoint cannot be written: stop, or warn and go on", choices=ERRORS
    )
    predictions: Path | None = _option(
        None, "with --evaluate: write the predicted labels, one a line", "FILE"
    )
    check: bool = _option(False, "train the NumPy reference too and compare the parameters")
    tolerance: float | None = _option(
        None,
        "relative max norm that --check allows (default: 1e-4; 1e-11 in float64; 5e-3, 5e-2 with --math "
        "tf32, bf16)",
        "X",
    )
    gemm: str = _option(
        "auto",
        "version of the matrix product, where kernels compute it; auto: the fastest",
        choices=("auto", *GEMM_VERSIONS),
    )
    math: str = _option(
        "float32",
        "accuracy of products on tensor cores: float32's; operands of 11 to 16 bits (tf32); of 8 (bf16, "
        "with --gemm wgmma alone)",
        choices=tuple(TERMS),
    )
    plan: str = _option(
        "data",
        "what ranks split: data (each batch), model (weights by rows and columns), auto (what should be "
        "fastest here, measured once), or a plan's JSON file",
        "PLAN",
    )
    grid: str | None = _option(
        None, "with --plan model: G groups of M ranks that share the weights (default: one group)", "GxM"
    )
    save_plan: Path | None = _option(None, "write the plan to a JSON file, for --plan FILE", "FILE")
    exchange: str = _option(
        "auto",
        "how gradients are summed over ranks; auto: the fastest that works here",
        choices=("auto", *exchange.CHOICES),
        unoffered=("local",),  # no exchange: for measurements
    )
    ranks_per_node: int | None = _option(
        None, "so many consecutive ranks count as a node, for --exchange peer and hierarchical", "K"
    )
    placement: str = _option(
        "auto",
        "place of the training set: resident on the device, or streamed to it; auto: resident where it fits",
        choices=placement.CHOICES,
    )
    graph: bool = _option(
        True,
        "replay steps from graphs, else launch kernel by kernel; never with --profile or without kernels",
    )
    memory: bool = _option(
        False,
        "train nothing: print the memory that the run needs, of the device and page-locked host memory, "
        "layer by layer; an error if it does not fit",
    )
    print_every: int | None = _option(None, "print the loss every N steps", "N")
    quiet: bool = _option(False, "print warnings, errors and the last line alone")
    profile: bool = _option(False, "wait for device and ranks at every phase, to see each phase's own time")
    json: Path | None = _option(
        None, "write all that is printed, and more, to a JSON file (-: standard output)", "FILE"
    )

    def __post_init__(self) -> None:
        if not self.hidden:
            raise UserError("--hidden: give the units of at least one hidden layer, as 512 or 512,256")
        for size in self.hidden:
            _require("hidden", size, size >= 1, "layers of 1 unit or more")
        for name in ("batch", "samples", "classes", "print_every", "ranks_per_node"):
            _require(
                name, getattr(self, name), _at_least(getattr(self, name), 1), "a whole number, 1 or more"
            )
        _require("classes", self.classes, (self.classes or 1) <= MOST_CLASSES, f"at most {MOST_CLASSES}")
        _require("samples", self.samples, (self.samples or 1) < 2**63, "a whole number below 2^63")
        for name in ("epochs", "seed", "order_seed"):
            _require(
                name, getattr(self, name), _at_least(getattr(self, name), 0), "a whole number, 0 or more"
            )
        for name in ("lr", "pixel_scale", "tolerance"):
            _require(name, getattr(self, name), _is_positive(getattr(self, name)), "a finite number above 0")
        _require("reg", self.reg, math.isfinite(self.reg) and self.reg >= 0, "a finite number, 0 or more")
        for name in ("momentum", "val_fraction"):
            _require(name, getattr(self, name), 0 <= getattr(self, name) < 1, "a number from 0 to below 1")
        for field in dataclasses.fields(self):
            choices, value = field.metadata["choices"], getattr(self, field.name)
            if choices and value not in (*choices, *field.metadata["unoffered"]):
                _require(field.name, value, False, f"one of {', '.join(choices)}")
        _require("keep", self.keep, self.keep >= 1, "a whole number, 1 or more")
        if not re.fullmatch("[1-9][0-9]{0,14}(ep)?", self.checkpoint_every):
            raise UserError(
                f"--checkpoint-every {shown(self.checkpoint_every)}: must be steps, as 500, or epochs, as 2ep"
            )
        self._check_combinations()

    def _check_combinations(self) -> None:
        with np.errstate(over="ignore"):
            scale = np.dtype(self.dtype).type(self.pixel_scale)
        _require("pixel_scale", self.pixel_scale, 0 < scale < np.inf, f"a number that {self.dtype} can hold")
        if self.evaluate and self.init is None:
            raise UserError("--evaluate: give the parameters to evaluate with --init FILE.npz")
        if self.evaluate and (self.save or self.check):
            raise UserError("--evaluate trains nothing: leave out --save and --check")
        if self.checkpoint is None:
            for name in ("resume", "checkpoint_every", "keep", "checkpoint_errors"):
                if getattr(self, name) != getattr(Options, name):
                    raise UserError(f"{flag(name)}: goes with --checkpoint DIR")
        if self.evaluate and self.checkpoint:
            raise UserError(
                "--evaluate trains nothing: leave out --checkpoint; --init takes a checkpoint's file"
            )
        if self.predictions and not self.evaluate:
            raise UserError("--predictions: goes with --evaluate and --init FILE.npz")
        files = self.written.values()
        if len(set(map(os.path.realpath, files))) < len(files):
            raise UserError(f"{', '.join(map(flag, WRITTEN))}: name a file of its own for each")
        if self.val_split != held_out.TAIL and self.val_fraction == 0:
            raise UserError("--val-split: nothing is held out with --val-fraction 0: leave one of them out")
        if self.grid is not None and self.plan != "model":
            raise UserError("--grid: goes with --plan model")
        if self.grid is not None and not re.fullmatch("[1-9][0-9]{0,6}x[1-9][0-9]{0,6}", self.grid):
            raise UserError(f"--grid {shown(self.grid)}: must be groups x shards, as 2x4")
        if (self.sanitize or self.order_seed is not None) and self.device != "emulated":
            raise UserError("--sanitize, --order-seed: go with --device emulated")
        if self.dtype == "float64" and (self.math != "float32" or self.gemm in ("mma", "wgmma")):
            raise UserError(
                "--dtype float64: its products are plain ones: leave out --math, --gemm mma and wgmma"
            )
        if self.tolerance is not None and not self.check:
            raise UserError("--tolerance: goes with --check")

    def steps_between_checkpoints(self, batches: int) -> int:
        """With so many batches an epoch."""
        count = int(self.checkpoint_every.removesuffix("ep"))
        return count * batches if self.checkpoint_every.endswith("ep") else count

    @property
    def written(self) -> dict[str, Path]:
        """The files that the run is to write, by option."""
        return {name: getattr(self, name) for name in WRITTEN if getattr(self, name) is not None}

    @property
    def check_tolerance(self) -> float:
        accuracy = self.math if self.dtype == "float32" else self.dtype
        return self.tolerance if self.tolerance is not None else TOLERANCES[accuracy]

    @property
    def common(self) -> dict[str, str]:
        """What all ranks must have been given, by option. Of files, which rank 0 alone reads and writes,
        whether they are: each rank may know one by a name of its own."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        files = {field.name for field in dataclasses.fields(self) if field.type == "Path | None"}
        return {
            flag(name): str(value if name not in files else "given" if value is not None else "not given")
            for name, value in values.items()
            if name != "data"
        }

    def as_json(self) -> dict[str, Any]:
        """All options in types that JSON has."""
        return {name: _plain(value) for name, value in dataclasses.asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _at_least(value: int | None, least: int) -> bool:
    return value is None or value >= least


def _is_positive(value: float | None) -> bool:
    return value is None or (math.isfinite(value) and value > 0)


def _require(name: str, value: object, holds: bool | np.bool, what: str) -> None:
    if not holds:
        raise UserError(f"{flag(name)} {value}: must be {what}")


def flag(name: str) -> str:
    """Name the option of a field as the command line has it."""
    return f"--{name.replace('_', '-')}"
