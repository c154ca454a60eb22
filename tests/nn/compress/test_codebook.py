"""nn/compress/codebook.py: shared weights by k-means, against the optimal clusters of dynamic programming."""

import numpy as np
import pytest

from nn.compress import codebook
from nn.compress.codebook import STARTS, cluster
from tests import few, spread


def draws(kind, size, seed=0):
    rng = np.random.default_rng(seed)
    drawn = {
        "normal": rng.normal(size=size),
        "bimodal": rng.normal(size=size) * 0.3 + rng.choice([-1, 1], size),
        "pruned": (0.5 + rng.exponential(size=size)) * rng.choice([-1, 1], size),
        "uniform": rng.uniform(-1, 1, size),
        "heavy": rng.standard_t(2, size),
    }[kind]
    return drawn.astype(np.float32)


def cost(values, found, codes):
    """The sum of squared distances."""
    return float(((values.astype(np.float64) - found.astype(np.float64)[codes]) ** 2).sum())


def least_cost(values, clusters):
    """The least sum of squared distances to the means of so many ranges of sorted values (float64)."""
    values = np.sort(values.astype(np.float64))
    sums, squares = (np.concatenate(([0.0], np.cumsum(part))) for part in (values, values**2))
    first, last = np.meshgrid(np.arange(len(values)), np.arange(1, len(values) + 1), indexing="ij")
    counts = np.maximum(last - first, 1)
    of_range = squares[last] - squares[first] - (sums[last] - sums[first]) ** 2 / counts
    of_range[first >= last] = np.inf
    best = of_range[0]
    for _ in range(clusters - 1):
        best = np.minimum(best, (best[:-1, np.newaxis] + of_range[1:]).min(axis=0))
    return float(best[-1])


@pytest.mark.parametrize(
    ("kind", "clusters", "start"),
    spread(["normal", "bimodal", "pruned", "uniform", "heavy"], [1, 2, 5, 16, 31], STARTS, by=3),
)
def test_the_cost_is_near_the_least_possible(kind, clusters, start):
    """Never below it, but for rounding; from a linear start at most 1.7 times."""
    values = draws(kind, 300)
    found, codes = cluster(values, clusters, start)
    least = least_cost(values, clusters)
    assert cost(values, found, codes) >= least * (1 - 1e-6)
    if start == "linear":
        assert cost(values, found, codes) <= 1.7 * least


@pytest.mark.parametrize(
    ("kind", "clusters", "start"),
    spread(["normal", "bimodal", "heavy"], few([1, 15, 256], of=[1, 2, 15, 63, 256]), STARTS, by=3),
)
def test_the_result_is_a_fixed_point(kind, clusters, start):
    """Each centroid is the mean of its weights, to the rounding of float32; each weight has the nearest."""
    values = draws(kind, 20_000)
    found, codes = cluster(values, clusters, start)
    assert (found.dtype, codes.dtype, found.shape) == (np.float32, np.uint16, (clusters,))
    assert (np.diff(found) > 0).all()
    sums = np.bincount(codes, values.astype(np.float64), clusters)
    means = sums / np.bincount(codes, minlength=clusters)
    np.testing.assert_allclose(found, means, rtol=2**-23, atol=1e-12)
    distances = abs(values.astype(np.float64)[:, np.newaxis] - means)
    of_codes = np.take_along_axis(distances, codes[:, np.newaxis].astype(np.int64), 1)[:, 0]
    np.testing.assert_allclose(of_codes, distances.min(axis=1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("clusters", [3, 4, 65536])
def test_few_distinct_weights_are_the_codebook(clusters, start):
    values = np.array([2, -1, 2, 2**-149, -1, 2, 2**-149], np.float32)
    found, codes = cluster(values, clusters, start)
    assert found.tolist() == [-1, 2**-149, 2]
    assert found[codes].tobytes() == values.tobytes()


@pytest.mark.parametrize("clusters", [1, 5])
def test_equal_weights_have_one_cluster_and_none_have_none(clusters):
    found, codes = cluster(np.full(9, -0.25, np.float32), clusters)
    assert (found.tolist(), codes.tolist()) == ([-0.25], [0] * 9)
    found, codes = cluster(np.zeros(0, np.float32), clusters)
    assert (found.shape, codes.shape, found.dtype, codes.dtype) == ((0,), (0,), np.float32, np.uint16)


def test_one_cluster_is_the_mean():
    values = draws("normal", 1001)
    found, codes = cluster(values, 1)
    assert found[0] == np.float32(values.astype(np.float64).mean()) and not codes.any()


@pytest.mark.parametrize("start", STARTS)
def test_all_clusters_are_taken_where_an_outlier_leaves_them_empty(start):
    """From a linear start all clusters but two begin empty; splitting others gives good ones."""
    values = np.append(draws("normal", 500), np.float32(1e6))
    found, codes = cluster(values, 32, start)
    assert np.bincount(codes, minlength=32).all()
    if start == "linear":
        assert found[-1] == np.float32(1e6)
        assert cost(values, found, codes) <= 1.5 * least_cost(values, 32)


@pytest.mark.parametrize("start", STARTS)
def test_no_cluster_is_missing(start):
    """Of nearly as many as there are weights, over many powers of ten, of whole numbers."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        size = int(rng.integers(3, 60))
        drawn = (rng.normal(size=size), 10.0 ** rng.uniform(-30, 30, size), rng.integers(0, 40, size))
        values = drawn[seed % 3].astype(np.float32)
        distinct = len(np.unique(values))
        clusters = int(rng.integers(1, distinct + 1))
        found, codes = cluster(values, clusters, start)
        assert len(found) == clusters and np.bincount(codes, minlength=clusters).all()


@pytest.mark.parametrize("start", STARTS)
def test_extremes_of_float32(start):
    """Small weights beside huge ones keep their own means."""
    most = np.finfo(np.float32).max
    small = np.random.default_rng(0).normal(size=100).tolist()
    values = np.array([most, most, -most, 1e-45, 3e-45, *small, 1e30, 1e30, 3e30], np.float32)
    with np.errstate(all="raise", under="ignore"):
        found, codes = cluster(values, 20, start)
    assert np.isfinite(found).all() and (np.diff(found) > 0).all()
    means = [values[codes == code].astype(np.float64).mean() for code in range(20)]
    np.testing.assert_allclose(found, means, rtol=2**-23)
    distances = abs(values.astype(np.float64)[:, np.newaxis] - means)
    assert codes.tolist() == distances.argmin(axis=1).tolist()


def test_many_of_a_weight_weigh_as_many():
    values = np.repeat(np.array([0.0, 1.0, 10.0], np.float32), [1, 3, 5])
    found, codes = cluster(values, 2)
    assert found.tolist() == [0.75, 10.0] and codes.tolist() == [0] * 4 + [1] * 5


def test_the_same_arguments_give_the_same_clusters_and_the_seed_is_of_the_random_start():
    values = draws("normal", 2000)
    first, second = (cluster(values, 16, "random", seed=3) for _ in range(2))
    assert first[0].tobytes() == second[0].tobytes() and first[1].tobytes() == second[1].tobytes()
    assert cluster(values, 16, "random", seed=4)[0].tobytes() != first[0].tobytes()


def test_the_starts_are_those_of_the_paper(monkeypatch):
    """Without a round: between the extremes; at even steps of the distribution; at weights."""
    monkeypatch.setattr(codebook, "_lloyd", lambda weights, centroids: (centroids, np.arange(4)))
    values = (np.arange(101) ** 2 / 10_000).astype(np.float32)
    assert cluster(values, 4, "linear")[0].tolist() == np.float32([0, 1 / 3, 2 / 3, 1]).tolist()
    density = cluster(values, 4, "density")[0]
    assert density.tolist() == values[[12, 37, 63, 88]].tolist()
    assert np.isin(cluster(values, 4, "random")[0], values).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(value):
    with pytest.raises(ValueError, match="finite"):
        cluster(np.array([1, value, 2], np.float32), 2)


def test_other_mistakes_are_refused():
    values = np.arange(9, dtype=np.float32)
    for clusters in (0, 65537):
        with pytest.raises(ValueError, match="clusters"):
            cluster(values, clusters)
    with pytest.raises(ValueError, match="float64"):
        cluster(values.astype(float), 2)
    with pytest.raises(ValueError, match="start"):
        cluster(values, 2, "forgy")
