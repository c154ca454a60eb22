"""nn/autotune/search.py: the best of all plans, as if each had been looked at."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from nn.autotune.listed_step import Task, on_null
from nn.autotune.rates import load
from nn.autotune.search import Search
from nn.model.conv2d import Conv2d
from nn.model.net_text import IMAGES, make_network
from nn.model.network import Network
from nn.parallel.plan import SAMPLES, Plan
from pyrt.driver.null import DeviceProperties
from pyrt.errors import UserError
from tests import few
from tests.nn.autotune.rates import HOPPER, random_rates

HIDDEN = [(64,), (100, 40), (64, 200, 33)]


def best_of_all(search: Search) -> float:
    """The least seconds of any plan."""
    network, ranks = search.task.network, search.ranks
    ways = [network.layer(number).splits for number in network.numbers]
    plans = [
        Plan(ranks // shards, shards, splits)
        for shards in range(2, ranks + 1)
        if ranks % shards == 0
        for splits in itertools.product(*ways)
    ]
    costs = [search.cost(plan) for plan in (Plan.data(ranks, network.depth), *plans)]
    return min(cost.seconds for cost in costs if cost is not None and search.fits(cost))


DEVICES = {"cpu": DeviceProperties(), "gpu": HOPPER}
LAST = list(itertools.product(("peer", "blocking", "root"), DEVICES))
"""Exchanges that come last, and devices."""


@pytest.mark.parametrize(
    ("exchange", "device", "seed"),
    few(
        [("peer", "cpu", 2), ("host", "gpu", 0)],
        of=list(itertools.product(["peer", "host"], DEVICES, range(6))),
    ),
)
def test_the_best_plan_is_that_of_a_search_of_all(seed, device, exchange):
    network = Network.dense((30, *HIDDEN[seed % 3], 10), "sigmoid", "softmax")
    rates = random_rates(seed, DEVICES[device], exchange, ranks_per_node=(2, 8)[seed % 2])
    search = Search(Task(network, (16, 300, 4000)[seed % 3]), (6, 8, 3)[seed % 3], rates)
    cost = search.cost(search.best())
    assert cost is not None
    assert cost.seconds == pytest.approx(best_of_all(search), rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("seed", few([1], of=range(6)))
def test_so_it_is_of_convolutional_networks(seed):
    """Layers split as they say that they can be, with pooling between them."""
    network = make_network("conv3x3x8,relu,pool2,dense200,relu,dense30", (12, 10, 3), 30, "softmax")
    rates = random_rates(seed, (DeviceProperties(), HOPPER)[seed % 2], "peer")
    search = Search(Task(network, (24, 500)[seed % 2]), 4, rates)
    cost = search.cost(search.best())
    assert cost is not None
    assert cost.seconds == pytest.approx(best_of_all(search), rel=1e-9)


@pytest.mark.long
def test_one_weird_trick_is_found():
    """AlexNet: convolutions by samples, whose filters are few, dense layers by weights (Krizhevsky 2014)."""
    network = make_network("alexnet", *IMAGES["alexnet"], "softmax")
    best = Search(Task(network, 512), 4, load(Path("h200"))).best()
    convolutions = [isinstance(network.layer(number), Conv2d) for number in network.numbers]
    assert [split == SAMPLES for split in best.splits] == convolutions


@pytest.mark.parametrize(("exchange", "device"), few([LAST[3]], of=LAST))
def test_where_an_exchange_comes_last_sums_over_pairs_of_layers_are_the_costs(device, exchange):
    network = Network.dense((30, 64, 33, 10), "sigmoid", "softmax")
    for ranks_per_node in few([2], of=[2, 8]):
        search = Search(Task(network, 300), 8, random_rates(3, DEVICES[device], exchange, ranks_per_node))
        for shards in (2, 8):
            sums = search.sums(shards)
            assert len(sums) > 10
            for parts, plan in sums:
                cost = search.cost(plan)
                assert cost is not None
                assert parts.seconds == pytest.approx(cost.seconds, rel=1e-9)


def test_a_plan_that_a_rank_has_no_memory_for_is_not_taken():
    task = Task(Network.dense((30, 400, 400, 10), "sigmoid", "softmax"), 64)
    rates = random_rates(0)
    # So slow are links that to split samples alone is best.
    slow = {kind: replace(link, gb_s=1e-6) for kind, link in rates.node.items()}
    fast_sums = {**slow, "exchange": replace(rates.node["exchange"], us=0.0, message_us=0.0, gb_s=1e6)}
    search = Search(task, 4, replace(rates, node=fast_sums))
    assert search.best() == search.data
    least = min(
        cost.memory.total for cost in map(search.cost, [Plan.model(1, 4, 3), search.data]) if cost is not None
    )
    tight = Search(task, 4, replace(rates, node=fast_sums, memory_gb=1.01e-9 * least))
    assert not tight.best().is_data
    with pytest.raises(UserError, match="no plan for 4 rank"):
        Search(task, 4, replace(rates, memory_gb=1e-9)).best()


def test_one_rank_has_one_plan():
    task = Task(Network.dense((30, 40, 10), "sigmoid", "softmax"), 64)
    search = Search(task, 1, replace(random_rates(0), node={}))  # a job of one rank measures no links
    assert search.best() == Plan.data(1, 2)
    assert search.fork_and_join() is None


def test_a_plan_of_samples_alone_is_called_data():
    found = set()
    for seed in few(range(1, 3), of=range(8)):
        task = Task(Network.dense((30, 40, 50, 10), "sigmoid", "softmax"), 64)
        best = Search(task, 8, random_rates(seed)).best()
        assert best.is_data == (set(best.splits) == {SAMPLES})
        found.add(best.is_data)
    assert found == {True, False}


def test_a_deep_network_takes_a_few_plans_a_layer(monkeypatch):
    looked_at = []

    def counted(*arguments, **named):
        looked_at.append(arguments)
        return on_null(*arguments, **named)

    monkeypatch.setattr("nn.autotune.search.on_null", counted)
    deep = Task(Network.dense((784, *[64] * 4, 10), "sigmoid", "softmax"), 4096)
    Search(deep, 8, random_rates(1)).best()
    assert len(looked_at) < 150  # of 3 grids that have 3^5 plans each
