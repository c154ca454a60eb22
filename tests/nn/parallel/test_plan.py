"""nn/parallel/plan.py: what a plan gives each rank, and plans in files."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from nn.app.options import Options
from nn.autotune.choice import choose_plan
from nn.model.initial import initial_values
from nn.model.net_text import make_network
from nn.model.network import Network
from nn.parallel import plan_files
from nn.parallel.plan import COLUMNS, ROWS, SAMPLES, SPACE, SPLITS, Plan
from nn.parallel.shard import Shard, whole_parameters
from pyrt.errors import UserError
from pyrt.redistribute import Redistribution

NETWORK = Network.dense((12, 9, 7, 5), "tanh", "softmax")


def parts(plan: Plan, network: Network = NETWORK) -> list[Shard]:
    return [Shard(plan, network, rank) for rank in range(plan.ranks)]


def test_layers_side_by_side_that_are_split_alike_are_named_together():
    assert str(Plan(2, 2, (SAMPLES, SAMPLES, ROWS))) == (
        "2 group(s) of 2 shards: W1 by samples, W2 by samples, W3 by rows"
    )
    named = str(Plan(1, 2, (*[SAMPLES] * 3, ROWS, COLUMNS, *[ROWS] * 10), why="because"))
    assert named == (
        "1 group(s) of 2 shards: W1 to W3 by samples, W4 by rows, W5 by columns, W6 to W15 by rows (because)"
    )


@pytest.mark.parametrize(
    ("layers", "splits"),
    [
        (2, (ROWS, COLUMNS)),
        (3, (ROWS, COLUMNS, COLUMNS)),
        (4, (ROWS, COLUMNS, ROWS, COLUMNS)),
        (5, (ROWS, COLUMNS, ROWS, COLUMNS, COLUMNS)),
    ],
)
def test_model_splits_rows_and_columns_in_turn(layers: int, splits: tuple[str, ...]) -> None:
    assert Plan.model(2, 3, layers) == Plan(2, 3, splits)


@pytest.mark.parametrize(
    ("layers", "by_samples", "splits"),
    [
        (3, 1, (SAMPLES, ROWS, COLUMNS)),
        (3, 2, (SAMPLES, SAMPLES, COLUMNS)),
        (5, 2, (SAMPLES, SAMPLES, ROWS, COLUMNS, COLUMNS)),
    ],
)
def test_model_splits_convolutions_by_samples(layers: int, by_samples: int, splits: tuple[str, ...]) -> None:
    assert Plan.model(2, 3, layers, by_samples) == Plan(2, 3, splits)
    assert Plan.model(4, 1, layers, by_samples).is_data


def test_model_splits_dense_layers_behind_convolutions() -> None:
    network = make_network("conv3x3x4,relu,pool2,conv2x2x5,dense8,relu,dense3", (9, 9, 2), 3, "softmax")
    found = choose_plan(Options(plan="model"), network, 3)
    assert found.splits == (SAMPLES, SAMPLES, ROWS, COLUMNS)
    whole = initial_values(network, "float64", 0)
    cut = [Shard(found, network, rank).cut(whole) for rank in range(3)]
    assert [part["W1"].shape for part in cut] == [(4, 18)] * 3
    again = whole_parameters(found, network, cut)
    assert all((again[name] == whole[name]).all() for name in network.shapes)
    assert again["W1"].shape == (4, 3, 3, 2)


def test_a_group_of_one_splits_nothing() -> None:
    assert Plan.model(4, 1, 2) == Plan.data(4, 2)
    assert Plan.data(4, 2).is_data


@pytest.mark.parametrize("splits", list(itertools.product(SPLITS, repeat=3)))
def test_parts_of_parameters_are_put_together_again(splits: tuple[str, ...]) -> None:
    plan, whole = Plan(2, 3, splits), initial_values(NETWORK, "float64", 0)
    for layer in NETWORK.numbers:
        whole[f"b{layer}"] = np.random.default_rng(layer).normal(size=NETWORK.sizes[layer])
    cut = [shard.cut(whole) for shard in parts(plan)]
    for arrays, shard in zip(cut, parts(plan), strict=True):
        assert {name: array.shape for name, array in arrays.items()} == shard.shapes
    for group in (cut[:3], cut[3:]):
        again = whole_parameters(plan, NETWORK, group)
        assert all((again[name] == whole[name]).all() for name in whole)


IMAGES = make_network(
    "conv3x3x7p1,relu,pool2,conv2x2x5,relu,pool2s1,gap,conv1x1x4,dense8,relu,dense3", (9, 8, 3), 3, "softmax"
)


@pytest.mark.parametrize("splits", list(itertools.product(SPLITS, repeat=3)))
def test_parts_of_filters_are_put_together_again(splits: tuple[str, ...]) -> None:
    """A rank has rows of them, some filters, or some channels of each; so has a dense layer behind them."""
    plan = Plan(1, 3, (*splits, COLUMNS, SAMPLES))
    rng = np.random.default_rng(0)
    whole = {name: rng.normal(size=shape) for name, shape in IMAGES.shapes.items()}
    cut = [shard.cut(whole) for shard in parts(plan, IMAGES)]
    for arrays, shard in zip(cut, parts(plan, IMAGES), strict=True):
        assert {name: array.shape for name, array in arrays.items()} == shard.shapes
        for layer, split in enumerate(splits, 1):
            W, (start, stop) = (
                whole[f"W{layer}"],
                shard.held("columns", (1, whole[f"W{layer}"].shape[3])).columns,
            )
            first, last = shard.held("rows", (len(W), 1)).rows
            own = {SAMPLES: W, ROWS: W[first:last], COLUMNS: W[..., start:stop]}[split]
            assert np.array_equal(arrays[f"W{layer}"], own.reshape(len(own), -1))
    again = whole_parameters(plan, IMAGES, cut)
    assert all((again[name] == whole[name]).all() for name in whole)


def test_behind_filters_by_rows_a_dense_layer_by_columns_takes_their_channels() -> None:
    """Nothing moves then; behind filters by samples it takes units in memory order."""
    network = make_network("conv2x2x6,relu,pool2,dense3", (5, 5, 2), 3, "softmax")
    W = np.random.default_rng(0).normal(size=(3, 4 * 6))
    for split, columns, moves in (
        (ROWS, np.arange(24) % 6 // 2 == 1, 0),
        (SAMPLES, np.arange(24) // 8 == 1, 2),
    ):
        shard = Shard(Plan(1, 3, (split, COLUMNS)), network, 1)
        assert np.array_equal(shard.cuts["W2"].of(W), W[:, columns])
        between = shard.forward_move(1, 9), shard.backward_move(1, 9)
        assert sum(move is not None for move in between) == moves


def test_behind_rows_of_images_a_dense_layer_by_columns_takes_their_places() -> None:
    network = make_network("conv2x2x6,relu,pool2,dense3", (11, 5, 2), 3, "softmax")  # 5 x 2 x 6 pixels
    W = np.random.default_rng(0).normal(size=(3, 5 * 12))
    cut = [shard.cuts["W2"] for shard in parts(Plan(1, 2, (SPACE, COLUMNS)), network)]
    assert np.array_equal(cut[0].of(W), W[:, :36]) and np.array_equal(cut[1].of(W), W[:, 36:])
    shard = parts(Plan(1, 2, (SPACE, COLUMNS)), network)[1]
    assert shard.forward_move(1, 9) is shard.backward_move(1, 9) is shard.halo_move(1, 9) is None
    assert shard.cuts["W1"].shape == (6, 8)


def test_a_model_plan_cuts_weights_into_as_many_parts_as_there_are_shards() -> None:
    network = Network.dense((784, 4096, 4096, 16), "relu", "softmax")
    sizes = [
        sum(np.prod(shape) for shape in shard.shapes.values())
        for shard in parts(Plan.model(1, 4, 3), network)
    ]
    assert max(sizes) < 1.001 * network.parameter_count / 4


@pytest.mark.parametrize("batch", [1, 2, 7, 20])
@pytest.mark.parametrize("splits", [(ROWS, COLUMNS, SAMPLES), (SAMPLES, ROWS, COLUMNS), (COLUMNS,) * 3])
def test_the_samples_of_a_batch_fall_to_groups_and_in_them_to_who_splits_them(
    batch: int, splits: tuple[str, ...]
) -> None:
    plan = Plan(2, 3, splits)
    for group in range(2):
        mine = [shard for shard in parts(plan) if shard.group == group]
        start, stop = mine[0].group_samples(batch)
        images = [shard.own_samples(batch) for shard in mine]
        if splits[0] == SAMPLES:
            assert images[0][0] == start and images[-1][1] == stop
            assert all(one[1] == two[0] for one, two in itertools.pairwise(images))
        else:
            assert images == [(start, stop)] * 3
    assert parts(plan)[3].group_samples(batch)[1] == batch


def test_what_moves_under_the_model_plan() -> None:
    """Once forward and once back, sums of what the layers split by rows and by columns share; logits."""
    shard = Shard(Plan.model(1, 3, 3), NETWORK, 1)
    assert [shard.forward_move(layer, 8) for layer in (0, 1, 2, 3)] == [None] * 4
    sums = {layer: Redistribution((8, NETWORK.sizes[layer]), "whole", "whole", sums=True) for layer in (2, 3)}
    assert [shard.sum_move(layer, 8) for layer in (1, 2, 3)] == [None, sums[2], sums[3]]
    back = [shard.backward_move(layer, 8) for layer in (1, 2, 3)]
    assert back == [None, Redistribution((8, 7), "columns", "whole"), None]


def test_nothing_moves_under_the_data_plan() -> None:
    assert Shard(Plan.data(3, 3), NETWORK, 1).moves(8) == []


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan.data(2, 3), "a plan of 2 x 1 ranks: start 2 ranks, not 6"),
        (Plan.model(2, 3, 2), "a plan of 2 layers: .* has 3"),
        (Plan(1, 6, (ROWS, COLUMNS, ROWS)), "splits the 5 rows of W3 over 6 ranks"),
        (Plan(1, 6, (SAMPLES, SAMPLES, SAMPLES)), ""),
    ],
)
def test_a_plan_that_does_not_fit(plan: Plan, message: str) -> None:
    if not message:
        plan.require_fits(NETWORK, 6)
        return
    with pytest.raises(UserError, match=message):
        plan.require_fits(NETWORK, 6)


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ((ROWS, COLUMNS, SAMPLES, SAMPLES, ROWS), ""),
        (
            (COLUMNS, ROWS, SAMPLES, SAMPLES, SAMPLES),
            "splits the 3 channels of W1 over 4 ranks: one would get none",
        ),
        ((SAMPLES, SAMPLES, ROWS, SAMPLES, COLUMNS), ""),
        ((SPACE, SAMPLES, SAMPLES, SAMPLES, SAMPLES), ""),
        (
            (SAMPLES, SPACE, SAMPLES, SAMPLES, SAMPLES),
            "splits W2 by space: of 1 rows of images one of 4 ranks",
        ),
        (
            (SAMPLES, SAMPLES, SAMPLES, SPACE, ROWS),
            "splits W4 by space: dense8 is split by samples, rows, col",
        ),
        ((SAMPLES, SAMPLES, SAMPLES, SAMPLES, ROWS), "splits the 3 rows of W5 over 4 ranks"),
    ],
)
def test_a_plan_for_convolutions_that_does_not_fit(splits: tuple[str, ...], message: str) -> None:
    ranks = 4 if message else 3
    if not message:
        Plan(1, ranks, splits).require_fits(IMAGES, ranks)
        return
    with pytest.raises(UserError, match=message):
        Plan(1, ranks, splits).require_fits(IMAGES, ranks)


def test_a_file_gives_the_plan_back(tmp_path: Path) -> None:
    plan = Plan(2, 3, (ROWS, SAMPLES, COLUMNS))
    plan_files.save(tmp_path / "plan.json", plan)
    assert plan_files.load(tmp_path / "plan.json") == plan
    assert choose_plan(Options(plan=str(tmp_path / "plan.json")), NETWORK, 6) == plan


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no",
        "[]",
        "{}",
        '{"grid": [1], "layers": []}',
        '{"grid": [0, 2], "layers": ["rows"]}',
        '{"grid": [1.5, 2], "layers": ["rows"]}',
        '{"grid": [true, 2], "layers": ["rows"]}',
        '{"grid": [1, 2], "layers": ["rows", 3]}',
        '{"grid": [1, 2], "layers": 7}',
        '{"grid": [1, 2], "layers": [["rows"]]}',
        '{"grid": [1, 2], "layers": "rows"}',
        "[" * 100000,
        '{"grid": [1, 2], "layers": ["rows"]}' + 70_000 * " ",
    ],
    ids=lambda text: text[:40],
)
def test_a_file_that_holds_no_plan(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UserError, match=r"--plan .*plan\.json: "):
        plan_files.load(tmp_path / "plan.json")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"--plan .*pipe: is not a file: give data, model, auto or a file"):
        plan_files.load(tmp_path / "pipe")


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UserError, match=r"--plan modell: .*: give data, model, auto or a file"):
        choose_plan(Options(plan="modell"), NETWORK, 6)


def test_words(tmp_path: Path) -> None:
    assert choose_plan(Options(), NETWORK, 4) == Plan.data(4, 3)
    assert choose_plan(Options(plan="model"), NETWORK, 4) == Plan.model(1, 4, 3)
    assert choose_plan(Options(plan="model", grid="2x2"), NETWORK, 4) == Plan.model(2, 2, 3)
    with pytest.raises(UserError, match="--grid 2x3: is for 6 ranks, not 4"):
        choose_plan(Options(plan="model", grid="2x3"), NETWORK, 4)


@pytest.mark.parametrize("grid", ["2", "2x", "0x2", "2x2x2", "-1x4", "2X2"])
def test_grids_that_make_no_sense(grid: str) -> None:
    with pytest.raises(UserError, match=f"--grid {grid}: must be groups x shards"):
        Options(plan="model", grid=grid)


def test_a_grid_goes_with_the_model_plan() -> None:
    with pytest.raises(UserError, match="--grid: goes with --plan model"):
        Options(grid="2x2")


def test_a_plan_in_json_is_plain(tmp_path: Path) -> None:
    plan_files.save(tmp_path / "plan.json", Plan.model(1, 4, 2))
    assert json.loads((tmp_path / "plan.json").read_text()) == {"grid": [1, 4], "layers": [ROWS, COLUMNS]}
