"""experiments/laws.py: exact shares, uncertainties that a simulation has too, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import laws
from experiments.laws import Fit, Times, amdahl, gustafson

RANKS = (1, 2, 4, 8)


def strong(share: float, ranks: tuple[int, ...] = RANKS) -> dict[int, float]:
    return {p: share + (1 - share) / p for p in ranks}


def weak(share: float, ranks: tuple[int, ...] = RANKS) -> dict[int, float]:
    return {p: p / (p - share * (p - 1)) for p in ranks}


def repeated(times: dict[int, float], noise: float = 0.0, repeats: int = 4, seed: int = 0) -> Times:
    rng = np.random.default_rng(seed)
    return {p: list(time * (1 + noise * rng.standard_normal(repeats))) for p, time in times.items()}


def test_exact_times_give_the_share():
    assert amdahl(repeated(strong(0.1))).share == pytest.approx(0.1)
    assert gustafson(repeated(weak(0.25))).share == pytest.approx(0.25)
    assert amdahl(repeated(strong(0.1))).error == pytest.approx(0, abs=1e-12)
    # x = 1/2, 3/4; y = 1/1 - 1/2, 1/2 - 1/4: (1/4 + 3/16) / (1/4 + 9/16)
    assert amdahl(repeated({1: 1.0, 2: 1.0, 4: 0.5})).share == pytest.approx(7 / 13)
    # x = 1, 3; y = 2 - 2/1, 4 - 4/2: 6 / 10
    assert gustafson(repeated({1: 1.0, 2: 1.0, 4: 2.0})).share == pytest.approx(0.6)


def test_the_curves_are_those_of_the_laws():
    ranks = np.array(RANKS, float)
    assert laws.speed_up(ranks, 0.1) == pytest.approx([1 / time for time in strong(0.1).values()])
    assert laws.scaled_speed_up(ranks, 0.2) == pytest.approx([p / time for p, time in weak(0.2).items()])


@pytest.mark.parametrize(("fit", "times"), [(amdahl, strong(0.1)), (gustafson, weak(0.25))])
def test_the_interval_holds_the_share_as_often_as_it_says(fit, times):
    """95 of 100 simulated measurements hold it; with 400 of them the count is off by 3 of 100 at most."""
    share = fit(repeated(times)).share
    found = [fit(repeated(times, noise=0.02, seed=seed)) for seed in range(400)]
    inside = sum(abs(one.share - share) <= one.error for one in found)
    assert 0.92 * 400 <= inside <= 0.99 * 400


def test_a_share_is_said_with_its_uncertainty():
    assert str(amdahl(repeated(strong(0.1), noise=0.01))).startswith("a serial share of ")
    assert str(Fit(0.123, 0.01, 4)) == "a serial share of 12.3 % ± 1.0 (95 %)"
    assert str(Fit(0.005, 0.01, 4)).endswith("(95 %), which may be none")


@pytest.mark.parametrize(
    ("times", "why"),
    [
        ({1: [1.0, 1.0, 1.0]}, "no times of more ranks than one"),
        ({1: [1.0, 1.1], 2: [0.6, 0.5]}, "taken 2 time"),
        ({1: [1.0], 2: [0.6]}, "taken 1 time"),
        ({1: [1.0, 1.5, 1.1], 2: [0.6, 0.9, 0.6]}, "too noisy"),
        ({1: [1.0, 1.01, 0.99], 2: [0.3, 0.301, 0.299]}, "gained more than the ideal"),  # -43 %, it was once
        ({1: [1.0, 1.01, 0.99], 2: [1.3, 1.301, 1.299]}, "took longer than one"),
    ],
)
def test_what_means_nothing_is_refused(times: Times, why: str):
    fit = amdahl(times)
    assert why in fit.refusal and str(fit) == f"no serial share: {fit.refusal}"


def test_weak_scaling_may_be_refused_too():
    assert "too noisy" in gustafson({1: [1.0, 2.0, 1.0], 2: [1.0, 2.0, 1.1]}).refusal
