"""Which version of a convolution (the ladder of docs/explain/convolution.md) runs."""

from __future__ import annotations

CONV_VERSIONS = ("direct", "im2col")
"""All versions, from the first to the fastest; every device runs each, in both dtypes."""


def fastest_convolution(architecture: str) -> str:
    """Return the version that is fastest on this architecture."""
    return "direct" if architecture == "emulated" else "im2col"  # on the emulated device, what does least
