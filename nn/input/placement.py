"""Where the training set lies: whole on the device, or streamed to it, some batches at a time."""

from __future__ import annotations

from pyrt.driver import Driver
from pyrt.errors import UserError

CHOICES = ("auto", "resident", "stream")

MARGIN = 512 * 1024 * 1024
"""Bytes of device memory to leave free: for modules, graphs, and other programs."""

_MOST_SAMPLES = 2**29
"""Of which the places in two epochs' orders, the short last batch with room for a whole one, are still 32-bit
integers."""


def may_be_resident(asked: str, driver: Driver, samples: int) -> bool:
    """Return whether the training set, of so many samples an epoch, may be resident if there is memory.

    Raises UserError if ``asked`` is ``resident`` and that cannot be.
    """
    if not driver.has_kernels:
        if asked == "resident":
            raise UserError("--placement resident: there is no device but the CPU: use auto or stream")
        return False
    if asked == "resident" and samples > _MOST_SAMPLES:
        raise UserError(f"--placement resident: takes up to 2^29 samples an epoch, not {samples}: use stream")
    return asked != "stream" and samples <= _MOST_SAMPLES


def fits(needed: int, free: int) -> bool:
    """Return whether ``auto`` takes a resident set, with which a run needs so many of the free bytes."""
    return needed + MARGIN <= free
