"""An option: a field with its help, its name on the command line, and the errors that name it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyrt.errors import UserError


def option(
    default: Any,
    help: str,
    metavar: str | None = None,
    choices: Sequence[str] = (),
    unoffered: Sequence[str] = (),
) -> Any:
    """Make a field of options; ``unoffered``: choices that Python has and the command line has not."""
    metadata = {"help": help, "metavar": metavar, "choices": choices, "unoffered": unoffered}
    return dataclasses.field(default=default, metadata=metadata)


def at_least(value: int | None, least: int) -> bool:
    """Return whether a number is None, or ``least`` or more."""
    return value is None or value >= least


def is_positive(value: float | None) -> bool:
    """Return whether a number is None, or finite and above 0."""
    return value is None or (math.isfinite(value) and value > 0)


def require(name: str, value: object, holds: bool | np.bool, what: str) -> None:
    """Raise UserError, which names the option, unless it holds."""
    if not holds:
        raise UserError(f"{flag(name)} {value}: must be {what}")


def flag(name: str) -> str:
    """Name the option of a field as the command line has it."""
    return f"--{name.replace('_', '-')}"
