"""Shared weights of a layer: k-means of its weights in one dimension (Han et al. 2016, section 3).

Lloyd's algorithm. On sorted weights a cluster is a range, whose borders lie halfway between two centroids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nn.files.coding.shared_weights import MOST_CLUSTERS

STARTS = ("linear", "density", "random")
"""Starts of the centroids (section 3.2): evenly between the smallest and the largest weight; at even steps
of the distribution; at weights drawn at random (Forgy)."""

ROUNDS = 10_000
"""Rounds at most. A layer of millions of weights and 256 clusters stands still after some thousand."""


def cluster(
    values: np.ndarray, clusters: int, start: str = "linear", seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Cluster weights (n,) float32 in at most ``clusters`` clusters, 1 to 65536.

    Returns the codebook (k,) float32, ascending, and the code of each weight (n,) uint16. Of no more distinct
    weights than clusters the codebook has each, exactly. Else k is ``clusters``: an empty one is dropped, and
    the one with the largest sum of squared distances split. The same arguments give the same result.
    ``seed`` is that of the random start. Raises ValueError for weights that are not finite, or not float32.
    """
    if values.dtype != np.float32 or values.ndim != 1 or not np.isfinite(values).all():
        raise ValueError(f"weights of {values.dtype} {values.shape}: want finite float32 (n,)")
    if not 1 <= clusters <= MOST_CLUSTERS:
        raise ValueError(f"{clusters} clusters: 1 to {MOST_CLUSTERS} are possible")
    distinct, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(distinct) <= clusters:
        return distinct, which.astype(np.uint16)
    weights = _Weights.of(distinct, counts)
    centroids, borders = _lloyd(weights, _start(weights, clusters, start, seed))
    sizes = np.diff(borders, append=len(distinct))
    code_of_distinct = np.repeat(np.arange(len(borders), dtype=np.uint16), sizes)
    return centroids.astype(np.float32), code_of_distinct[which]


@dataclass(frozen=True)
class _Weights:
    """The distinct weights, ascending, and how often each occurs."""

    values: np.ndarray
    """float64."""
    counts: np.ndarray
    sums: np.ndarray
    """Value times count."""
    before: np.ndarray
    """(n + 1,): the number of weights before each one, and of all."""
    sums_before: np.ndarray
    """(n + 1,): their sum."""

    @classmethod
    def of(cls, distinct: np.ndarray, counts: np.ndarray) -> _Weights:
        values = distinct.astype(np.float64)
        sums = values * counts
        before, sums_before = (np.concatenate(([0], np.cumsum(part))) for part in (counts, sums))
        return cls(values, counts, sums, before, sums_before)


def _start(weights: _Weights, clusters: int, start: str, seed: int) -> np.ndarray:
    """Return the first centroids (clusters,), float64, ascending."""
    values = weights.values
    if start == "linear":
        return np.linspace(values[0], values[-1], clusters)
    if start == "density":
        steps = (np.arange(clusters) + 0.5) / clusters * weights.before[-1]
        return values[np.searchsorted(weights.before[1:], steps, "right")]
    if start == "random":
        shares = weights.counts / weights.before[-1]
        return np.sort(np.random.default_rng(seed).choice(values, clusters, replace=False, p=shares))
    raise ValueError(f"start {start}: none of {', '.join(STARTS)}")


def _lloyd(weights: _Weights, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Move the centroids to the means of their clusters until these stand still, or for `ROUNDS` rounds.

    First by quick means, of which many rounds are cheap, then by exact ones, of which few are left.
    Returns the centroids (k,), ascending, and the first weight of each cluster (k,); none is empty.
    """
    clusters = len(centroids)
    borders = _borders(weights, centroids)
    for means in (_quick_means, _means):
        for _ in range(ROUNDS):
            centroids = means(weights, borders)
            if len(centroids) < clusters:
                centroids = _split(weights, centroids, borders, clusters - len(centroids))
            before, borders = borders, _borders(weights, centroids)
            if np.array_equal(before, borders):
                break
    return _means(weights, borders), borders


def _borders(weights: _Weights, centroids: np.ndarray) -> np.ndarray:
    """Return the first weight of each cluster that is not empty.

    A weight halfway between two centroids belongs to the lower one.
    """
    halfway = (centroids[1:] + centroids[:-1]) / 2
    borders = np.concatenate(([0], np.searchsorted(weights.values, halfway, "right")))
    return borders[np.diff(borders, append=len(weights.values)) > 0]


def _split(weights: _Weights, centroids: np.ndarray, borders: np.ndarray, count: int) -> np.ndarray:
    """Split up to ``count`` of the most costly clusters: return the centroids, two in the place of each.

    They lie halfway between its centroid and its two ends.
    """
    sizes = np.diff(borders, append=len(weights.values))
    squares = (weights.values - np.repeat(centroids, sizes)) ** 2 * weights.counts
    worst = np.argsort(-np.add.reduceat(squares, borders), kind="stable")[:count]
    worst = worst[sizes[worst] > 1]
    ends = weights.values[borders[worst]], weights.values[borders[worst] + sizes[worst] - 1]
    halves = [(end + centroids[worst]) / 2 for end in ends]
    return np.sort(np.concatenate((np.delete(centroids, worst), *halves)))


def _quick_means(weights: _Weights, borders: np.ndarray) -> np.ndarray:
    """Return nearly the mean of each cluster, within it: the difference of two sums from the first weight on.

    The sums lose small weights beside huge ones.
    """
    sums = np.diff(weights.sums_before[borders], append=weights.sums_before[-1])
    last = np.append(borders[1:], len(weights.values)) - 1
    return np.clip(sums / _counts(weights, borders), weights.values[borders], weights.values[last])


def _means(weights: _Weights, borders: np.ndarray) -> np.ndarray:
    """Return the mean of each cluster, each added up by itself."""
    return np.add.reduceat(weights.sums, borders) / _counts(weights, borders)


def _counts(weights: _Weights, borders: np.ndarray) -> np.ndarray:
    """Return the number of weights in each cluster."""
    return np.diff(weights.before[borders], append=weights.before[-1])
