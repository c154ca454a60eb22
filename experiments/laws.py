"""Fits Amdahl's and Gustafson's laws to repeated times, with uncertainty; refuses fits that mean nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

QUANTILES = {3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""97.5 % quantiles of Student's t, by the number of repeats; more than ten count as ten."""

LEAST_REPEATS = min(QUANTILES)

WIDEST = 0.1
"""The largest half-width of a share's interval with which it is still worth telling."""

Times = Mapping[int, Sequence[float]]
"""Seconds of each repeat, by number of ranks; one rank is among them."""


@dataclass(frozen=True)
class Fit:
    """A serial share, and half of the width of its 95 % interval; NaN where it has none."""

    share: float
    error: float
    repeats: int
    """The fewest repeats over all numbers of ranks."""

    @property
    def refusal(self) -> str:
        """Return why the share means nothing; an empty text where it means something."""
        low, high = self.share - self.error, self.share + self.error
        if math.isnan(self.share):
            return "there are no times of more ranks than one"
        if self.repeats < LEAST_REPEATS:
            return f"each time was taken {self.repeats} time(s): {LEAST_REPEATS} or more are needed"
        if self.error > WIDEST:
            return (
                f"the times scatter so much that it is known to ± {100 * self.error:.0f} percentage points "
                "only; the machine is too noisy"
            )
        if high < 0:
            return "more ranks gained more than the ideal, and the law has no such case"
        if low > 1:
            return "more ranks took longer than one, and the law has no such case"
        return ""

    def __str__(self) -> str:
        """Say the share, or why there is none."""
        if self.refusal:
            return f"no serial share: {self.refusal}"
        text = f"a serial share of {100 * self.share:.1f} % ± {100 * self.error:.1f} (95 %)"
        return text if self.share > self.error else f"{text}, which may be none"


def amdahl(times: Times) -> Fit:
    """Fit s of T(p) = T(1) (s + (1 - s) / p), Amdahl 1967, by least squares.

    With x = 1 - 1/p and y = T(p) / T(1) - 1/p it says y = s x, so that s = sum(x y) / sum(x x). Of a single
    p it is Karp and Flatt's experimentally determined serial fraction (1990).
    """
    ranks = _more(times)
    ratio = np.array([_mean(times[p]) / _mean(times[1]) for p in ranks])
    return _fit(times, ranks, x=1 - 1 / ranks, y=ratio - 1 / ranks, slope=ratio)


def gustafson(times: Times) -> Fit:
    """Fit s of the scaled speed-up p T(1) / T(p) = p - s (p - 1), Gustafson 1988, by least squares.

    The work grows with the ranks. With x = p - 1 and y = p - p T(1) / T(p) it says y = s x.
    """
    ranks = _more(times)
    scaled = np.array([p * _mean(times[1]) / _mean(times[p]) for p in ranks])
    return _fit(times, ranks, x=ranks - 1, y=ranks - scaled, slope=scaled)


def speed_up(ranks: np.ndarray, share: float) -> np.ndarray:
    """Return Amdahl's speed-up on so many ranks with that serial share."""
    result: np.ndarray = 1 / (share + (1 - share) / ranks)
    return result


def scaled_speed_up(ranks: np.ndarray, share: float) -> np.ndarray:
    """Return Gustafson's scaled speed-up on so many ranks with that serial share."""
    result: np.ndarray = ranks - share * (ranks - 1)
    return result


def _fit(times: Times, ranks: np.ndarray, x: np.ndarray, y: np.ndarray, slope: np.ndarray) -> Fit:
    """Solve y = s x; errors of the times go through y, of which a relative one moves ``slope`` times itself.

    All y share the error of one rank's time.
    """
    repeats = min((len(times[p]) for p in (1, *ranks)), default=0)
    if not len(ranks):
        return Fit(math.nan, math.nan, repeats)
    weights = x * slope / (x @ x)
    own = np.array([_relative_error(times[p]) for p in ranks])
    variance = (weights**2) @ (own**2) + (weights.sum() * _relative_error(times[1])) ** 2
    quantile = QUANTILES[min(max(repeats, LEAST_REPEATS), max(QUANTILES))]
    return Fit(float(x @ y / (x @ x)), quantile * math.sqrt(variance), repeats)


def _more(times: Times) -> np.ndarray:
    """List the numbers of ranks above one."""
    return np.array(sorted(p for p in times if p > 1), float)


def _mean(seconds: Sequence[float]) -> float:
    return float(np.mean(seconds))


def _relative_error(seconds: Sequence[float]) -> float:
    """Return the standard error of the mean over the mean; infinite for a single time."""
    if len(seconds) < 2:
        return math.inf
    return float(np.std(seconds, ddof=1) / math.sqrt(len(seconds)) / np.mean(seconds))
