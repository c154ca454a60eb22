"""Where the training set lies: whole on the device, or streamed to it, some batches at a time."""

from __future__ import annotations

from pyrt.errors import UserError

CHOICES = ("auto", "resident", "stream")

MARGIN = 512 * 1024 * 1024
"""Bytes of device memory to leave free: for modules, graphs, evaluations, and other programs."""

_MOST_SAMPLES = 2**29
"""Of which the places in two epochs' orders, the short last batch with room for a whole one, are still 32-bit
integers."""


def choose(asked: str, needed: int, free: int, samples: int) -> str:
    """``resident`` or ``stream``: for ``auto`` the first where it fits.

    ``needed`` are the bytes that a resident set and all that is still to be allocated take, ``free`` those
    that the device has; ``samples`` are an epoch's. Raises UserError where ``resident`` cannot be.
    """
    if asked == "resident" and samples > _MOST_SAMPLES:
        raise UserError(f"--placement resident: takes up to 2^29 samples an epoch, not {samples}: use stream")
    if asked != "auto":
        return asked
    return "resident" if samples <= _MOST_SAMPLES and needed + MARGIN <= free else "stream"
