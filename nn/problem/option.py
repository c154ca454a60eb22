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


def require(name: str, value: object, holds: bool | np.bool, what: str) -> None:
    """Raise UserError, which names the option, unless it holds."""
    if not holds:
        raise UserError(f"{flag(name)} {value}: must be {what}")


def require_whole(options: object, least: int, *names: str) -> None:
    """Raise UserError for the first of these options that is a number below ``least``; None passes."""
    for name in names:
        value = getattr(options, name)
        require(name, value, value is None or value >= least, f"a whole number, {least} or more")


def require_positive(options: object, *names: str) -> None:
    """Raise UserError for the first of these options that is a number, but not finite and above 0."""
    for name in names:
        value = getattr(options, name)
        holds = value is None or (math.isfinite(value) and value > 0)
        require(name, value, holds, "a finite number above 0")


def flag(name: str) -> str:
    """Name the option of a field as the command line has it."""
    return f"--{name.replace('_', '-')}"
