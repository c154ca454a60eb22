"""The models of a step's time that `experiments.roofline` holds against measured ones.

The roofline of Williams, Waterman and Patterson (2009) is FLOP/s = min(P, AI B), with P the flops a second of
the products, AI the flops for each byte and B the bytes a second of what they come from. The course adds the
two times instead, for work that does not overlap: FLOP/s = AI / (AI / P + 1 / B). A hierarchical roofline
has a roof for each way that bytes take: each with an AI of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from experiments import counting
from experiments.study import Setup

if TYPE_CHECKING:
    import pandas as pd

RATES, STEP, STREAMED, TRANSFERS = "rates", "step", "streamed", "transfers"
COUNTED, COUNTERS = "counted", "counters"
"""Rates of the machine; steps as they run by default, and with rows and gradients through host memory;
transfers by themselves; counts of a run, and of the hardware."""

COPIES = (counting.UPLOAD, counting.DOWN, counting.UP)


def course_rate(intensity: float, flops: float, memory: float) -> float:
    """FLOP/s of the course's roofline, from flops a byte, flops a second and bytes a second."""
    return intensity / (intensity / flops + 1 / memory)


def roof(intensity: float, flops: float, memory: float) -> float:
    """FLOP/s that are possible at most."""
    return min(flops, intensity * memory)


def fitted(nbytes: Sequence[float], us: Sequence[float]) -> tuple[float, float]:
    """Microseconds of a transfer of no bytes, and GB/s of a long one: us = latency + bytes / rate, with the
    least squares of relative errors, and no negative latency."""
    import numpy as np

    sizes, times = np.asarray(nbytes, float), np.asarray(us, float)
    both = np.stack([1 / times, sizes / times], axis=1)
    (latency, each), *_ = np.linalg.lstsq(both, np.ones(len(times)), rcond=None)
    if latency < 0 or each <= 0 or len(set(sizes)) == 1:
        latency, each = 0.0, (both[:, 1].sum() / np.square(both[:, 1]).sum())
    return float(latency), float(1e-3 / each)


def product_rates(steps: pd.DataFrame) -> pd.Series:
    """GFLOP/s of the products of each of these steps, by their own time."""
    return steps.product_flops / steps.product_us * 1e-3


class Level(NamedTuple):
    """A way that bytes take, how many a second, and the columns that say how many."""

    name: str
    gb_s: float
    columns: tuple[str, ...]

    def is_used(self, steps: pd.DataFrame) -> bool:
        """Return whether bytes of these steps take this way, and its speed is known."""
        return bool(steps[list(self.columns)].sum().sum() > 0) and math.isfinite(self.gb_s)

    def intensity(self, steps: pd.DataFrame) -> pd.Series:
        """Flops for each byte; infinite where none takes this way."""
        return steps.flops / steps[list(self.columns)].sum(axis=1)


class Known(NamedTuple):
    """What the machine does: its rates, and its transfers by themselves."""

    rates: pd.Series
    transfers: pd.DataFrame
    peak_gflop_s: float
    """The fastest products, alone or in a step (where pixels have fewer components)."""
    on_gpu: bool

    @classmethod
    def of(cls, rows: pd.DataFrame, setup: Setup) -> Known | None:
        """None where the rates are not there."""
        rates, steps = rows[rows.kind == RATES], rows[rows.kind == STEP]
        if not len(rates):
            return None
        peak = max([rates.peak_gflop_s.iloc[0], *product_rates(steps)])
        return cls(rates.iloc[0], rows[rows.kind == TRANSFERS], peak, setup.gpus > 0)

    def fastest(self, *names: str) -> float:
        """GB/s of these transfers; infinite where none was timed."""
        mine = self.transfers[self.transfers.what.isin(names)]
        return float(1e-3 * (mine.bytes / mine.us).max()) if len(mine) else float("inf")

    def link(self, way: str) -> Level:
        """Return an exchange's link: its rate, updates included, if it was measured alone; else MPI's."""
        if way == self.rates.way:
            return Level(f"exchange {way}", self.rates.link_gb_s, ("sent",))
        return Level("MPI", self.fastest(counting.SUM), ("sent",))

    def levels(self, way: str) -> list[Level]:
        """List levels, the nearest first."""
        copies = "PCIe" if self.on_gpu else "copies"
        return [
            Level("memory", self.rates.memory_gb_s, ("traffic",)),
            Level(copies, self.fastest(*COPIES), ("uploaded", "staged")),
            self.link(way),
        ]

    def course_us(self, steps: pd.DataFrame) -> pd.Series:
        """Sum flops and bytes, each over its rate: nothing overlaps, nothing takes time to begin."""
        uploading = Level("", self.fastest(counting.UPLOAD), ("uploaded",))
        us = steps.flops / self.peak_gflop_s * 1e-3
        us += steps.traffic / self.rates.memory_gb_s * 1e-3 + steps.uploaded / uploading.gb_s * 1e-3
        us += steps.staged / self.fastest(counting.DOWN, counting.UP) * 1e-3
        for way, mine in steps[steps.sent > 0].groupby("way"):
            us[mine.index] += mine.sent / self.link(way).gb_s * 1e-3
        return us

    def better_us(self, steps: pd.DataFrame) -> pd.Series:
        """Add to the cost model's time, which plays the list through, uploads of rows that nothing hides."""
        mine = self.transfers[self.transfers.what == counting.UPLOAD]
        if not len(mine):
            return steps.predicted_us
        latency, gb_s = fitted(mine.bytes, mine.us)
        return steps.predicted_us + (latency + steps.uploaded / gb_s * 1e-3).where(steps.uploaded > 0, 0.0)
