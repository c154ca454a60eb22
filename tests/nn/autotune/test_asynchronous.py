"""nn/autotune/asynchronous.py: times of a batch against those worked out by hand; the table."""

from __future__ import annotations

import dataclasses

import pytest

from nn.autotune import asynchronous
from nn.autotune.asynchronous import HOGWILD, Cycle, costs, hogwild, with_servers
from nn.autotune.listed_step import Task, on_null
from nn.autotune.rates import KINDS, Link, Rates
from nn.autotune.search import Search
from nn.autotune.table import NO_PROMISE, table
from nn.model.network import Network
from nn.optimisers import Sgd
from nn.parallel.plan import Plan
from nn.program.operations import Operation
from pyrt.driver.null import DeviceProperties
from tests.nn.autotune.rates import random_rates

SMALL = Network.dense((6, 4, 2), "sigmoid", "softmax")
TASK = Task(SMALL, 60, optimiser=Sgd(momentum=0.9))

STEP = 12
"""Operations from images to gradients: pixels; product, bias and activation; product; head, losses; bias
gradient, two products, activation gradient; bias gradient, product."""

NEAR, FAR = Link(100.0, 10.0, 1e-3), Link(1000.0, 50.0, 1e-3)
"""Within a node, across nodes: a microsecond a byte."""

RATES = Rates(
    "by hand",
    DeviceProperties(),
    operation_us=1.0,  # and nothing else takes time
    memory_gb_s=1e12,
    tflop_s=1e12,
    ranks_per_node=6,
    node=dict.fromkeys(KINDS, NEAR),
    network=dict.fromkeys(KINDS, FAR),
)


def search_of(ranks: int, rates: Rates = RATES, task: Task = TASK) -> Search:
    return Search(task, ranks, rates)


def bytes_of(task: Task = TASK) -> int:
    step = on_null(task, Plan.data(2, 2), DeviceProperties())
    return step.bucket_elements * step.itemsize


def test_a_batch_takes_as_long_as_the_worker_or_what_all_share():
    cycle = Cycle(10.0, 3.0)
    assert [cycle.batch_seconds(workers, workers) for workers in (1, 3, 4, 8)] == [10, 10, 12, 24]


@pytest.mark.parametrize(
    ("ranks", "servers", "fixed", "times", "limit"),
    [
        # One worker: it computes, pushes two messages, waits for the update, pulls.
        (3, 2, STEP + 2 * (100 + 2 * 10) + 1, 2, ""),
        # Four: each server takes a message of half of the bytes from each.
        (6, 2, 4 * (100 + 10), 4 / 2, "servers"),
        # Over nodes: six through one server.
        (7, 1, 6 * (1000 + 50), 6, "servers"),
    ],
)
def test_servers_by_hand(ranks, servers, fixed, times, limit):
    cost = with_servers(search_of(ranks), servers)
    n, workers = bytes_of(), ranks - servers
    assert cost.seconds * 1e6 == pytest.approx(fixed + times * n, rel=1e-9)
    assert (cost.sent, cost.messages) == (workers * n / servers, workers)
    assert cost.bound.endswith("; servers always busy") == bool(limit)


def test_shared_parameters_by_hand():
    """Rank 0 has them at home; the link of its memory carries those of the others, both ways at once."""
    n = bytes_of()
    two, six = hogwild(search_of(2)), hogwild(search_of(6))
    assert two.seconds * 1e6 == pytest.approx(STEP + 1 + 100 + 10 + n, rel=1e-9)
    assert six.seconds * 1e6 == pytest.approx(5 * n, rel=1e-9)
    assert (two.sent, two.messages, six.sent, six.messages) == (n, 1, 5 * n, 5)
    assert two.bound.startswith("exchange ") and not two.bound.endswith("busy")
    assert six.bound.endswith("; rank 0's link always busy")


def test_servers_update_and_keep_what_the_optimiser_keeps():
    ours, theirs = with_servers(search_of(6), 2), hogwild(search_of(4))  # four workers both
    step = on_null(TASK, Plan.data(4, 2), DeviceProperties())
    assert ours.flops == sum(item.flops for item in step.items if isinstance(item, Operation))
    assert theirs.flops - ours.flops == step.update(over_all=True).flops
    assert theirs.traffic - ours.traffic == step.update(over_all=True).bytes
    assert ours.memory == dataclasses.replace(theirs.memory, momentum=0) != theirs.memory


def test_the_number_of_servers_is_the_best_of_powers_of_two():
    search = search_of(12, random_rates(3, ranks_per_node=4))
    each = {servers: with_servers(search, servers).seconds for servers in (1, 2, 4)}
    best = min(each, key=lambda servers: each[servers])
    (name, cost), *others = costs(search)
    assert (name, cost.seconds) == (f"server, {best} of 12", each[best]) and not others


@pytest.mark.parametrize(
    ("ranks", "batch", "names"),
    [
        (1, 60, []),
        (2, 60, ["server, 1 of 2", HOGWILD]),
        (6, 5, ["server, 2 of 6"]),  # or six workers, of which one would have no sample
        (7, 60, ["server, 2 of 7"]),  # two nodes share no memory
        (7, 2, []),
    ],
)
def test_rows_that_cannot_be_are_left_out(ranks, batch, names):
    task = dataclasses.replace(TASK, batch=batch)
    assert [name for name, _ in costs(search_of(ranks, task=task))] == names


def test_the_table_says_that_such_rows_promise_no_synchronous_result():
    both, none = (table(search, search.data) for search in (search_of(4), search_of(1)))
    assert NO_PROMISE in both and "promise no synchronous result" in NO_PROMISE
    assert [line.split("  ")[0] for line in both.splitlines()][-4:-2] == ["server, 2 of 4", "hogwild"]
    assert NO_PROMISE not in none and asynchronous.SERVER not in none
