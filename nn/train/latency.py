"""How long a trained network takes for a few images: the times of many calls, one after another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nn.train.host_to_host import HostToHost
from pyrt.clock import seconds_of_calls
from pyrt.tables import table

FEW = 32
"""Between one image and as many as there is room for."""


@dataclass(frozen=True)
class Latency:
    """Times of calls for so many images at a time, in seconds.

    From the moment that the pixels lie in page-locked host memory to the moment that the logits do.
    """

    images: int
    calls: int
    """How many were timed."""
    median: float
    p99: float
    """99 of 100 calls take no longer; of fewer than 100 calls: the longest."""
    images_per_second: float
    """Images of all calls over the time of all calls."""

    @classmethod
    def of(cls, images: int, seconds: Sequence[float]) -> Latency:
        """Make it from the seconds of each call."""
        rank = math.ceil(0.99 * len(seconds))
        rate = images * len(seconds) / sum(seconds)
        return cls(images, len(seconds), statistics.median(seconds), sorted(seconds)[rank - 1], rate)


def counts(most: int) -> list[int]:
    """Return the numbers of images at a time that are timed: one, `FEW`, and the most."""
    return sorted({1, min(FEW, most), most})


def measure(inference: HostToHost, images: np.ndarray, numbers: Sequence[int]) -> list[Latency]:
    """Time calls for these numbers of images (n, D) at a time, which are repeated if there are fewer."""
    np.take(images, np.arange(inference.batch), axis=0, out=inference.pixels, mode="wrap")
    return [Latency.of(count, seconds_of_calls(inference.bind(count))) for count in numbers]


def latency_table(rows: Sequence[Latency], width: int | None = None) -> str:
    """Lay out a row for each number of images, in lines of at most ``width`` characters."""
    headers = ["images at a time", "median us", "p99 us", "images/s", "calls"]
    body = [[one.images, one.median * 1e6, one.p99 * 1e6, one.images_per_second, one.calls] for one in rows]
    return table(headers, body, ("d", ".1f", ".1f", ".0f", "d"), ["calls"], width)
