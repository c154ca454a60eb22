"""The points of `experiments.asynchronous`: networks, optimisers, and ways to train with several workers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from experiments.study import Point, Setup

SYNCHRONOUS, SCALED, HOGWILD = "synchronous", "synchronous, rate x workers", "hogwild"


def servers_of(bound: str) -> str:
    """Name the way with parameter servers whose workers are at most so many steps apart."""
    return f"server, K = {bound}"


BOUNDS = ("0", "1", "2", "4", "8", "16", "inf")
FREE = servers_of("inf")
WAYS = (SYNCHRONOUS, SCALED, *map(servers_of, BOUNDS), HOGWILD)
"""The order of figures. `SCALED` multiplies the rate by the number of workers, since it makes one update
where they make one each (the linear scaling rule; Goyal et al., Accurate, Large Minibatch SGD, 2017)."""
FEW_WAYS = (SYNCHRONOUS, SCALED, servers_of("4"), FREE, HOGWILD)

WORKERS = (1, 2, 4, 8)
SLOW = (1, 2, 8)
"""Factors of the time of one worker's steps."""
MOST = 4
"""The number of workers in figures that show a single one."""

DENSE, LENET = "784-128-10", "lenet5"
PLAIN, MOMENTUM, ADAM = OPTIMISERS = ("plain", "momentum", "Adam")

RATES = {
    (DENSE, PLAIN): 0.3,
    (DENSE, MOMENTUM): 0.05,
    (DENSE, ADAM): 0.002,
    (LENET, PLAIN): 0.1,
    (LENET, MOMENTUM): 0.02,
    (LENET, ADAM): 0.001,
}
"""Learning rates with which one worker learns quickly."""

HIGH_RATES = {PLAIN: (1.0, 3.0, 6.0), MOMENTUM: (0.2, 0.5), ADAM: (0.02,)}
"""Higher learning rates, with which one worker still learns."""

BATCH = 50
"""Samples of a worker's step: the batch of p workers has p times as many."""
SAMPLES = 3600
"""All training samples of the embedded digits that are not held out."""

COMPARED, PRICED = "ways", "price"
"""Kinds of points: ways, workers, slow ranks; high learning rates."""


class Case(NamedTuple):
    """A network, its optimiser, and the length of its training."""

    net: str
    optimiser: str
    epochs: int
    samples: int = SAMPLES


def points_of(setup: Setup) -> list[Point]:
    """List the points, those of as many ranks side by side: a job takes all of these."""
    found = _small(setup) if setup.is_small else _full(setup)
    unique = list({tuple(point.items()): point for point in found}.values())
    return sorted(unique, key=lambda point: (point["ranks"], point["net"] != DENSE))


def numbers_of_workers(setup: Setup) -> list[int]:
    """Return `WORKERS`, on the CPU up to two a core; ranks share the GPUs that there are."""
    return [workers for workers in WORKERS if setup.gpus or workers <= 2 * max(2, setup.cores)]


def _small(setup: Setup) -> list[Point]:
    """List few points, of a minute's work for a core."""
    case = Case(DENSE, PLAIN, 8)
    one, four = (1,), (MOST,)
    return [
        *_points(setup, case, (SYNCHRONOUS, FREE), one),
        *_points(setup, case, FEW_WAYS, four),
        *_points(setup, case, (SYNCHRONOUS, *FEW_WAYS[2:]), four, slow=8),
        *(
            point
            for optimiser in (MOMENTUM, ADAM)
            for workers, ways in ((one, (SYNCHRONOUS,)), (four, (FREE,)))
            for point in _points(setup, Case(DENSE, optimiser, 8), ways, workers)
        ),
        *_points(setup, case, (SYNCHRONOUS,), one, rate=6.0),
        *_points(setup, case, (FREE,), four, rate=6.0),
        *_points(setup, Case(LENET, PLAIN, 2, 900), (SYNCHRONOUS, FREE, HOGWILD), four),
    ]


def _full(setup: Setup) -> list[Point]:
    """List points of some four minutes on sixteen cores, with GPUs that ranks share."""
    numbers = numbers_of_workers(setup)
    dense, lenet = Case(DENSE, PLAIN, 15), Case(LENET, PLAIN, 6)
    others, most = [workers for workers in numbers if workers not in (1, MOST)], max(numbers)
    ways = (SYNCHRONOUS, FREE, HOGWILD)
    found = [
        *_points(setup, dense, (SYNCHRONOUS, FREE), (1,)),
        *_points(setup, dense, FEW_WAYS, others),
        *_points(setup, dense, WAYS, (most,)),
        *(point for slow in SLOW[1:] for point in _points(setup, dense, ways, others, slow)),
        *(point for slow in SLOW for point in _points(setup, dense, WAYS, (MOST,), slow)),
        *(point for run in (2, 3) for point in _points(setup, dense, ways, (MOST,), run=run)),
        *(point for slow in (1, 8) for point in _points(setup, lenet, FEW_WAYS, (MOST,), slow)),
    ]
    for optimiser in OPTIMISERS:
        for case in (Case(DENSE, optimiser, 15), Case(LENET, optimiser, 6)):
            found += _points(setup, case, (SYNCHRONOUS,), (1,))
            found += _points(setup, case, ways, sorted({MOST, most}) if case.net == DENSE else (MOST,))
        for rate in HIGH_RATES[optimiser]:
            case = Case(DENSE, optimiser, 10)
            found += _points(setup, case, (SYNCHRONOUS,), (1,), rate=rate)
            found += _points(setup, case, (FREE,), sorted({MOST, most}), rate=rate)
    return found


def _points(
    setup: Setup,
    case: Case,
    ways: Iterable[str],
    numbers: Iterable[int],
    slow: int = 1,
    rate: float | None = None,
    run: int = 1,
) -> list[Point]:
    """List the points of these ways and numbers of workers; with a ``rate`` they are `PRICED`."""
    return [
        {
            "kind": COMPARED if rate is None else PRICED,
            "net": case.net,
            "optimiser": case.optimiser,
            "lr": RATES[case.net, case.optimiser] if rate is None else rate,
            "way": way,
            "workers": workers,
            "slow": slow,
            "run": run,
            "epochs": case.epochs,
            "samples": case.samples,
            "servers": _servers(way, workers),
            "ranks": workers + _servers(way, workers),
            "threads": None if setup.gpus else 1,
            "device": setup.device,
        }
        for way in ways
        for workers in numbers
    ]


def _servers(way: str, workers: int) -> int:
    """Return the number of parameter servers: one for every four workers."""
    return -(-workers // 4) if way.startswith("server") else 0
