"""Expected values of asynchronous training: staleness, throughput with a slow worker, largest rates.

docs/explain/asynchronous.md derives the formulas. There are p workers; n is the steps of a worker in an
epoch, at whose end all meet.
"""

from __future__ import annotations

import math

from experiments.asynchronous_points import servers_of


def mean_staleness(workers: int, steps: int) -> float:
    """Return the mean over all updates of an epoch, if servers answer each push before the next one comes.

    Between two pulls of a worker each update of another one counts once. So the mean is p - 1, however fast
    each is, but for the updates behind a worker's last push of an epoch: of each pair of workers one makes
    its last update behind that of the other.
    """
    return (workers - 1) * (1 - 1 / (2 * steps))


def staleness_at_once(workers: int) -> float:
    """Return the mean if pushes of all workers come at once: 0, 1, .. p - 1 of one version."""
    return (workers - 1) / 2


def speed(way: str, workers: int, slow: float, steps: int) -> float:
    """Return the updates in the time of a fast worker's step; a synchronous one counts once for each worker.

    One worker's steps take ``slow`` times as long. Where each worker makes its own steps, or waits in each
    step, the epoch lasts as long as the slow one's. Parameter servers grant p n steps to whoever comes: the
    slow worker makes m, the least number in whose time the others, which may be K + 1 ahead, make the rest.
    The error is one step of a fast worker at most.
    """
    bound = _bound(way)
    if not bound or workers == 1:
        return workers / slow
    others, total = workers - 1, workers * steps
    alone = (total - others) / (others * slow + 1)
    own = max(1, math.ceil(alone), math.ceil(max(0.0, steps - others * (bound + 1) / workers)))
    return total / max(own * slow, (total - own) / others)


def _bound(way: str) -> float | None:
    """Return K of a way with parameter servers; None for one without."""
    prefix = servers_of("")
    return float(way.removeprefix(prefix)) if way.startswith(prefix) else None


def rate_limit(staleness: float) -> float:
    """Return the largest learning rate with gradients that are stale by so many updates, over that of 0.

    Of gradient descent on a parabola, x' = x - a x(t - staleness), which is stable up to
    a = 2 sin(pi / (4 staleness + 2)).
    """
    return math.sin(math.pi / (4 * staleness + 2))
