"""Refuses settings that make no sense: values beyond their limits, and values that do not go together."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import numpy as np

from nn.input import validation_split
from nn.parallel.plan import FORK_JOIN
from nn.problem.option import flag, require, require_positive, require_whole
from pyrt.errors import UserError, shown
from pyrt.exchange.registry import asynchronous

if TYPE_CHECKING:
    from nn.problem.settings import Settings


def validate(settings: Settings) -> None:
    """Raise UserError, which names the option, for the first value that makes no sense."""
    _validate_numbers(settings)
    _validate_choices(settings)
    require_whole(settings, 1, "keep")
    if not re.fullmatch("[1-9][0-9]{0,14}(ep)?", settings.checkpoint_every):
        raise UserError(
            f"--checkpoint-every {shown(settings.checkpoint_every)}: must be steps, as 500, or epochs, as 2ep"
        )
    with np.errstate(over="ignore"):
        scale = np.dtype(settings.dtype).type(settings.pixel_scale)
    a_number = f"a number that {settings.dtype} can hold"
    require("pixel_scale", settings.pixel_scale, 0 < scale < np.inf, a_number)
    _validate_checkpoints(settings)
    if settings.val_split != validation_split.TAIL and settings.val_fraction == 0:
        raise UserError("--val-split: nothing is held out with --val-fraction 0: leave one of them out")
    _validate_plan(settings)
    _validate_asynchrony(settings)
    if settings.dtype == "float64" and (settings.math != "float32" or settings.gemm in ("mma", "wgmma")):
        raise UserError(
            "--dtype float64: its products are plain ones: leave out --math, --gemm mma and wgmma"
        )


def _validate_numbers(settings: Settings) -> None:
    require_whole(settings, 1, "batch", "samples", "print_every", "check_each", "ranks_per_node")
    require("samples", settings.samples, (settings.samples or 1) < 2**63, "a whole number below 2^63")
    require_whole(settings, 0, "epochs", "seed")
    require_positive(settings, "pixel_scale", "tolerance")
    fraction = settings.val_fraction
    require("val_fraction", fraction, 0 <= fraction < 1, "a number from 0 to below 1")


def _validate_choices(settings: Settings) -> None:
    for field in dataclasses.fields(settings):
        choices, value = field.metadata["choices"], getattr(settings, field.name)
        if choices and value not in (*choices, *field.metadata["unoffered"]):
            require(field.name, value, False, f"one of {', '.join(choices)}")


def _validate_checkpoints(settings: Settings) -> None:
    if settings.checkpoint is None:
        for name in ("resume", "checkpoint_every", "keep", "checkpoint_errors"):
            _require_default(settings, name, "--checkpoint DIR")


def _validate_plan(settings: Settings) -> None:
    if settings.grid is not None and settings.plan != "model":
        raise UserError("--grid: goes with --plan model")
    if settings.grid is not None and not re.fullmatch("[1-9][0-9]{0,6}x[1-9][0-9]{0,6}", settings.grid):
        raise UserError(f"--grid {shown(settings.grid)}: must be groups x shards, as 2x4")
    if settings.plan == FORK_JOIN and (settings.exchange != "auto" or settings.checkpoint is not None):
        raise UserError(f"--plan {FORK_JOIN}: rank 0 alone trains: leave out --exchange and --checkpoint")
    if settings.exchange in asynchronous() and settings.plan != "data":
        raise UserError(
            f"--exchange {settings.exchange}: each rank has all weights: leave out --plan, --grid"
        )


def _validate_asynchrony(settings: Settings) -> None:
    if settings.atomic and settings.exchange != "hogwild":
        raise UserError("--atomic: goes with --exchange hogwild")
    require_whole(settings, 1, "servers")
    if not re.fullmatch("inf|0|[1-9][0-9]{0,8}", settings.staleness):
        raise UserError(f"--staleness {shown(settings.staleness)}: must be steps, 0 or more, or inf")
    if not settings.epoch_barrier and settings.exchange not in asynchronous():
        raise UserError(f"--no-epoch-barrier: goes with --exchange {' or '.join(asynchronous())}")
    if settings.slow_rank is not None:
        settings.slowed  # noqa: B018 (raises)
    require("shards_kept", settings.shards_kept, settings.shards_kept in (1, 2), "1 or 2")
    if settings.shards_kept > settings.servers:
        raise UserError("--shards-kept 2: needs two servers or more: give --servers 2")
    for name in ("servers", "staleness", "shards_kept"):
        if settings.exchange != "server":
            _require_default(settings, name, "--exchange server")


def _require_default(settings: Settings, name: str, other: str) -> None:
    """Raise UserError for a value that somebody has chosen without the ``other`` option."""
    if getattr(settings, name) != getattr(type(settings), name):
        raise UserError(f"{flag(name)}: goes with {other}")
