"""nn/autotune/cost.py, listed_step.py: formulas against sums by hand and against what real runs send."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.counting import sent_in_run
from nn.app.options import Options
from nn.autotune.cost import Costing, fork_and_join, moved
from nn.autotune.listed_step import Task, on_null
from nn.autotune.rates import Link
from nn.launch.gemm.layer import LayerProduct
from nn.model.net_text import make_network
from nn.model.network import Network
from nn.optimisers import Adam, Sgd
from nn.parallel.buckets import gradient_layout, panels
from nn.parallel.plan import COLUMNS, ROWS, SAMPLES, SPLITS, Plan
from nn.parallel.shard import Shard
from nn.program.operations import Operation
from nn.train import training_steps
from pyrt.driver.null import DeviceProperties
from pyrt.exchange.device import shards
from pyrt.exchange.facts import NO_TRAFFIC, Traffic
from pyrt.exchange.registry import exchanges
from pyrt.job import Job
from pyrt.redistribute import Redistribution
from tests import few
from tests.nn.autotune.rates import HOPPER, random_rates

SMALL = Network.dense((6, 4, 2), "sigmoid", "softmax")
WIDE = Network.dense((784, 8192, 8192, 10), "sigmoid", "softmax")

MOVES = [
    *(("rows", "whole", False), ("columns", "whole", False), ("rows", "columns", False)),
    *(("columns", "rows", False), ("whole", "rows", True), ("whole", "columns", True)),
    ("whole", "whole", True),
]


@pytest.mark.parametrize(("source", "target", "sums"), MOVES)
@pytest.mark.parametrize("shape", [(8, 8), (5, 3), (1, 7), (2, 1)])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_the_formulas_of_moves_are_the_sums_of_their_messages(source, target, sums, shape, ranks):
    for pixels in (1, 3):
        rows, channels = shape
        move = Redistribution((rows * pixels, channels), source, target, sums, together=pixels)
        for rank in range(ranks):
            assert moved(move, ranks, rank) == Traffic(move.sent(ranks, rank), move.messages(ranks, rank))


def test_the_formulas_of_halos_are_the_sums_of_their_messages():
    own, halo = ((0, 4), (4, 8), (8, 11)), ((0, 5), (3, 9), (7, 11))
    for pair in ((own, halo), ("rows", halo), (own, "rows"), (own, "columns"), (own, "whole")):
        move = Redistribution((5, 11), *pair)
        for rank in range(3):
            assert moved(move, 3, rank) == Traffic(move.sent(3, rank), move.messages(3, rank))
    assert moved(Redistribution((5, 11), own, halo), 3, 1) == Traffic(5 * 2, 2)
    assert moved(Redistribution((5, 11), "whole", own, sums=True), 3, 2) == Traffic(5 * 8, 2)


def test_halos_by_hand():
    """3 x 3 windows: a row above and one below; back the same of the outputs' gradient, but for layer 1."""
    network = make_network("conv3x3x8p1,relu,conv3x3x6p1,relu,dense4", (8, 5, 2), 4, "softmax")
    shard = Shard(Plan(1, 2, ("space", "space", COLUMNS)), network, 0)
    sent = [moved(move, 2, 0).elements for move in shard.moves(10) if move.sums is False]
    # A1 before layer 2, a row of 5 x 8; the gradient of Z2, of 5 x 6. The dense layer takes rows as they are.
    assert sent == [10 * 5 * 8, 10 * 5 * 6]


def test_a_step_takes_whole_images_where_a_pool_comes_first():
    """Of 7 x 6 x 2 pixels, though the first layer takes 3 x 3 x 2."""
    network = make_network("pool2,conv3x3x4,dense3", (7, 6, 2), 3, "softmax")
    for device in (DeviceProperties(), HOPPER):
        step = on_null(Task(network, 8), Plan.data(2, 2), device)
        gather = step.items[0]
        assert isinstance(gather, Operation) and gather.name == "scale pixels"
        assert gather.reads[0].shape == gather.writes[0].shape == (4, 84)


def test_a_step_by_hand_of_two_shards():
    """Batch 8 of 6-4-2, W1 by rows, W2 by columns: a rank has 2 of the 4 hidden units."""
    cost = Costing(on_null(Task(SMALL, 8), Plan.model(1, 2, 2), DeviceProperties()), random_rates(0)).cost
    # The sum of Z2 (8, 2): 4 of its rows to the other rank, then 4 rows of the sum; two messages.
    assert (cost.sent, cost.messages) == (4 * (8 + 8), 2)
    # Z1 = X W1', Z2 = A1 W2', dA1 = dZ2 W2, dW2 = dZ2' A1, dW1 = dZ1' X.
    products = 2 * 8 * (2 * 6 + 2 * 2 + 2 * 2 + 2 * 2 + 2 * 6)
    # Pixels, bias and activation of both layers' parts, head, sums of losses and dZ2 and dZ1, dA1 f'.
    others = 8 * 6 + 2 * 8 * 2 + 8 * 8 * 2 + 8 + 8 * 2 + 8 * 2 + 3 * 8 * 2
    sizes = {"W1": 12, "b1": 2, "W2": 4, "b2": 2}
    update = 2 * sum(sizes.values()) + 2 * (sizes["W1"] + sizes["W2"])
    assert cost.flops - products - others == pytest.approx(update, abs=2 * 64 * 5)  # padding
    assert on_null(Task(SMALL, 8), Plan.model(1, 2, 2), DeviceProperties()).shard.shapes["W1"] == (2, 6)


def test_a_step_by_hand_of_two_ranks_that_split_samples():
    step = on_null(Task(SMALL, 8), Plan.data(2, 2), DeviceProperties())
    cost = Costing(step, random_rates(0, exchange="blocking")).cost
    assert cost.sent == 4 * step.bucket_elements  # 2 (p - 1) / p n
    assert cost.messages == 2
    products = 2 * 4 * (4 * 6 + 2 * 4 + 2 * 4 + 2 * 4 + 4 * 6)
    assert sum(item.flops for item in step.items if "GEMM" in getattr(item, "name", "")) == products


TRANSITIONS = {
    (SAMPLES, SAMPLES): 0,
    (SAMPLES, ROWS): 2,
    (SAMPLES, COLUMNS): 2 / 4,
    (ROWS, SAMPLES): 2 / 4,
    (ROWS, ROWS): 2,
    (ROWS, COLUMNS): 0,
    (COLUMNS, SAMPLES): 3,
    (COLUMNS, ROWS): 4,
    (COLUMNS, COLUMNS): 3,
}
"""Numbers that move between two layers, forward and back, in (M - 1) / M z, M = 4 (docs/explain/plans.md)."""


@pytest.mark.parametrize(("pair", "numbers"), TRANSITIONS.items())
def test_between_two_layers_moves_what_the_table_says(pair, numbers):
    part = Shard(Plan(1, 4, (*pair, SAMPLES)), Network.dense((8, 16, 8, 4), "tanh", "softmax"), 0)
    below = part.sum_move(1, 32), part.forward_move(1, 32), part.backward_move(1, 32)
    sent = sum(moved(move, 4, 0).elements for move in below if move is not None)
    assert sent == numbers * 3 / 4 * 32 * 16


@pytest.mark.parametrize(("pair", "numbers"), TRANSITIONS.items())
def test_between_two_convolutions_moves_what_the_table_says(pair, numbers):
    """Of images behind the pool; what ranks that split by columns sum up is before it, four times as much."""
    network = make_network("conv3x3x8p1,relu,pool2,conv3x3x16p1,relu,dense4", (6, 6, 4), 4, "softmax")
    part = Shard(Plan(1, 4, (*pair, SAMPLES)), network, 0)
    below = part.sum_move(1, 32), part.forward_move(1, 32), part.backward_move(1, 32)
    sent = sum(moved(move, 4, 0).elements for move in below if move is not None)
    sums = 2 * (4 - 1) if pair[0] == COLUMNS else 0
    assert sent == (numbers + sums) * 3 / 4 * 32 * 3 * 3 * 8


def buckets_of(network: Network) -> list[Any]:
    part = Shard.alone(network)
    return [panel.bucket for panel in panels(part, gradient_layout(part, "float32"))]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_exchange_sends_what_its_page_says(ranks):
    buckets = buckets_of(Network.dense((50, 40, 10), "sigmoid", "softmax"))
    n = sum(bucket.stop - bucket.start for bucket in buckets)
    ring = 2 * (ranks - 1) / ranks * n
    for way in ("blocking", "host"):
        assert exchanges()[way].sent(buckets, ranks, 0, 4).elements == ring
    for way in ("device", "peer", "hierarchical"):
        of_all = [exchanges()[way].sent(buckets, ranks, rank, 4).elements for rank in range(ranks)]
        assert sum(of_all) / ranks == pytest.approx(ring, rel=0.05)  # shards are of whole fours
    assert exchanges()["root"].sent(buckets, ranks, 0, 4).elements == (ranks - 1) * n
    assert exchanges()["root"].sent(buckets, ranks, 1, 4).elements == n
    assert exchanges()["peer"].sent(buckets, 1, 0, 4) == NO_TRAFFIC


def test_four_shards_have_a_quarter_of_the_weights_and_gradients():
    data, model = (
        on_null(Task(WIDE, 512), plan, DeviceProperties()).memory
        for plan in (Plan.data(4, 3), Plan.model(1, 4, 3))
    )
    for name in ("weights", "gradients"):
        assert getattr(model, name) / getattr(data, name) == pytest.approx(0.25, rel=0.001)
    for optimiser, kept in ((Sgd(), model.weights), (Adam(), 2 * model.weights + 3 * 8)):
        task = Task(WIDE, 512, optimiser=optimiser)
        with_state = on_null(task, Plan.model(1, 4, 3), DeviceProperties()).memory
        assert with_state == dataclasses.replace(model, momentum=kept)


def test_the_list_for_tensor_cores_has_the_flops_of_the_plain_one():
    for plan in (Plan.data(2, 3), Plan.model(1, 2, 3)):
        plain, fused = (on_null(Task(WIDE, 512), plan, device) for device in (DeviceProperties(), HOPPER))
        splitting = [item.flops for item in fused.items if getattr(item, "name", "") == "split operands"]
        works = [item.work for item in fused.items if isinstance(item, Operation)]
        left = [work.left.components for work in works if isinstance(work, LayerProduct)]
        leaving = [components.numbers.size for components in left if components is not None]
        flops = [sum(i.flops for i in step.items if isinstance(i, Operation)) for step in (plain, fused)]
        assert flops[1] - sum(splitting) - sum(leaving) == flops[0] and leaving
        assert len(fused.items) < len(plain.items) + len(splitting)


def test_a_move_that_products_hide_costs_nothing_on_a_gpu_and_all_on_the_cpu():
    plan, free = Plan(1, 2, (ROWS, ROWS, COLUMNS)), Link(0.0, 0.0, 1e9)
    for device, hidden in ((HOPPER, True), (DeviceProperties(), False)):
        rates = random_rates(0, device)
        moving = dataclasses.replace(rates.node["reduce"], us=0.5, message_us=0.0, gb_s=1e9)
        links = {**dict.fromkeys(rates.node, free), "reduce": moving}
        cost = Costing(on_null(Task(WIDE, 512), plan, device), dataclasses.replace(rates, node=links)).cost
        assert (cost.moves < 0.4e-6) == hidden  # dW2 goes on meanwhile


@pytest.mark.parametrize("plan", [Plan.data(4, 3), Plan.model(1, 4, 3), Plan(2, 2, (ROWS, SAMPLES, COLUMNS))])
def test_the_lines_of_a_step_add_up_to_its_cost(plan):
    for device in (DeviceProperties(), HOPPER):
        costing = Costing(on_null(Task(WIDE, 512), plan, device), random_rates(0, device))
        lines, cost = costing.lines, costing.cost
        assert len({line.name for line in lines}) == len(lines)
        for name in ("flops", "traffic", "sent", "messages"):
            assert sum(getattr(line, name) for line in lines) == pytest.approx(getattr(cost, name), rel=1e-12)
        assert sum(line.seconds for line in lines) >= cost.seconds * (1 - 1e-12)  # moves may be hidden


def test_across_nodes_only_a_share_of_each_rank_crosses():
    rates = random_rates(0, exchange="peer", ranks_per_node=4)
    inside = Costing(on_null(Task(SMALL, 64), Plan.data(4, 2), DeviceProperties()), rates).cost
    step = on_null(Task(SMALL, 64), Plan.data(8, 2), DeviceProperties())
    outside = Costing(step, rates).cost
    assert outside.sent - inside.sent == 4 * step.bucket_elements / 4  # 2 (m - 1) / m n / q of m = 2 nodes
    assert outside.messages - inside.messages == 2


def test_a_fork_and_a_join_around_every_product():
    """Batch 8 of 6-4-2 over two: half of the rows of op(A), all of op(B), back half of D's rows."""
    step = on_null(Task(SMALL, 8), Plan.data(1, 2), DeviceProperties())
    cost = fork_and_join(step, 2, random_rates(0))
    products = [(8, 4, 6), (8, 2, 4), (8, 4, 2), (2, 4, 8), (4, 6, 8)]
    assert cost.sent == 4 * sum(M // 2 * K + K * N for M, N, K in products)
    alone = Costing(step, random_rates(0)).cost
    assert alone.flops - cost.flops == sum(M * N * K for M, N, K in products)


@pytest.fixture
def shared(tmp_path: Path, job: Job) -> Path:
    """One folder for all ranks, with 40 images of 3 x 4 pixels in five classes."""
    folder: Path = job.comm.bcast(tmp_path)
    if job.rank == 0:
        images = np.random.default_rng(0).integers(0, 256, (40, 3, 4), np.uint8)
        np.savez(folder / "digits.npz", x_train=images, y_train=np.arange(40) % 5)
    job.comm.barrier()
    return folder


SETTING = Options(hidden=(9, 7), epochs=1, batch=20, lr=0.5, momentum=0.0, val_fraction=0.0, device="cpu")
"""Two steps; units and samples that three ranks cannot share evenly."""


def counted_run(options: Options, plan: Plan, shared: Path, job: Job) -> Counter[str]:
    """What this rank sends in a step of a run."""
    counted = sent_in_run(dataclasses.replace(options, data=str(shared / "digits.npz")), plan, shared, job)
    return Counter({name: count / 2 for name, count in counted.items()})


def plans(ranks: int, layers: int) -> list[Plan]:
    return [Plan.data(ranks, layers)] + [
        Plan(ranks // size, size, splits)
        for size in range(2, ranks + 1)
        if ranks % size == 0
        for splits in itertools.product(SPLITS, repeat=layers)
        if set(splits) != {SAMPLES}
    ]


DENSE = Network.dense((12, 9, 7, 5), "sigmoid", "softmax")


def require_as_counted(
    options: Options, plan: Plan, shared: Path, job: Job, network: Network = DENSE
) -> None:
    counted = counted_run(options, plan, shared, job)
    task = Task(network, 20)
    rates = random_rates(0, exchange="host")
    cost = Costing(on_null(task, plan, DeviceProperties(), job.rank), rates).cost
    assert counted["elements"] * 4 == pytest.approx(cost.sent, rel=1e-12), plan
    assert counted["messages"] == cost.messages, plan


@pytest.mark.parallel(few([3], of=[2, 3, 4]))
def test_what_runs_send_is_what_the_formulas_say(shared: Path, job: Job) -> None:
    some = plans(job.size, 3)
    for plan in some[:: 2 if job.size == 2 else 9]:
        require_as_counted(SETTING, plan, shared, job)


@pytest.mark.kernels
@pytest.mark.parallel([2])
def test_so_it_is_on_a_device_with_kernels(shared: Path, job: Job) -> None:
    options = dataclasses.replace(SETTING, device="emulated", exchange="host", share_gpus=True)
    for plan in (Plan.data(2, 3), Plan(1, 2, (ROWS, COLUMNS, ROWS))):
        require_as_counted(options, plan, shared, job)


CONVOLUTIONS = "dropout0.2,conv2x2x6,relu,pool2s1,conv1x2x5,tanh,dense7,relu,dense5"


@pytest.mark.parallel([3])
@pytest.mark.parametrize(
    "splits", [(ROWS, COLUMNS, ROWS, COLUMNS), (SAMPLES, ROWS, COLUMNS, SAMPLES)], ids=str
)
def test_so_it_is_where_convolutions_are_split(shared: Path, job: Job, splits: tuple[str, ...]) -> None:
    options = dataclasses.replace(SETTING, hidden=Options.hidden, net=CONVOLUTIONS)
    network = make_network(CONVOLUTIONS, (3, 4), 5, "softmax")
    require_as_counted(options, Plan(1, 3, splits), shared, job, network)


@pytest.mark.parallel([2])
@pytest.mark.parametrize(
    "splits", [("space", "space", ROWS), ("space", ROWS, COLUMNS), (ROWS, "space", SAMPLES)], ids=str
)
def test_so_it_is_where_rows_of_images_are_split(shared: Path, job: Job, splits: tuple[str, ...]) -> None:
    net = "conv3x3x6p1,relu,avgpool2s1,conv2x2x5same,tanh,dense5"
    options = dataclasses.replace(SETTING, hidden=Options.hidden, net=net)
    require_as_counted(options, Plan(1, 2, splits), shared, job, make_network(net, (3, 4), 5, "softmax"))


@pytest.mark.parallel([3])
def test_shards_of_buckets_are_sent_as_the_formula_says(shared: Path, job: Job) -> None:
    plan = Plan.data(3, 3)
    counted = counted_run(dataclasses.replace(SETTING, exchange="device"), plan, shared, job)
    part = Shard(plan, DENSE, job.rank)
    buckets = [panel.bucket for panel in panels(part, gradient_layout(part, "float32"))]
    expected = exchanges()["device"].sent(buckets, 3, job.rank, 4)
    assert (counted["elements"], counted["messages"]) == (expected.elements, expected.messages)
    assert expected.elements != exchanges()["device"].sent(buckets, 3, 2 - job.rank, 4).elements or any(
        len(set(shards(bucket.stop - bucket.start, 3)[0])) == 1 for bucket in buckets
    )


@pytest.mark.parallel([2])
def test_the_list_on_the_null_device_is_the_list_that_runs(
    shared: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists: list[list[Any]] = []

    class Step(training_steps.TrainingStep):
        def __init__(self, items: Any, *others: Any) -> None:
            lists.append(list(items))
            super().__init__(items, *others)

    monkeypatch.setattr(training_steps, "TrainingStep", Step)
    for plan in (Plan.data(2, 3), Plan.model(1, 2, 3), Plan(1, 2, (SAMPLES, ROWS, COLUMNS))):
        counted_run(SETTING, plan, shared, job)
        task = Task(DENSE, 20)
        listed = on_null(task, plan, DeviceProperties(), job.rank).items
        assert [described(item) for item in lists[-1]] == [described(item) for item in listed]


def described(item: Any) -> tuple[object, ...]:
    if isinstance(item, Operation):
        arrays = [array for array in (*item.reads, *item.writes) if len(array.shape) == 2]
        return item.name, item.flops, item.bytes, [(array.shape, array.ld) for array in arrays]
    return type(item).__name__, getattr(item, "bucket", None), getattr(item, "move", None)
