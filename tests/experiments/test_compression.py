"""experiments/compression.py: its commands, numbers worked out by hand, findings from made-up rows of a GPU,
a small run on the CPU."""

import pytest

pytest.importorskip("pandas", reason="make test installs what the report needs")
pytest.importorskip("matplotlib")

import pandas as pd

from experiments import compression, compression_points, jobs
from experiments.compression_points import BOTH, CONV, DENSE, EMBEDDED, GOAL, PRUNED, SCAN, SHARED, TOTAL
from experiments.study import FAILED, FULL, SMALL, Setup
from nn.app.command_line import parse as parse_train
from nn.compress.options import parse
from nn.compress.sensitivity import KEPT
from pyrt.errors import UserError
from tests.mpi import environment


def setup_of(size, gpus, folder):
    return Setup(size, gpus, 2, False, folder)


@pytest.mark.parametrize(
    ("size", "gpus", "networks", "points"),
    [(FULL, 1, 4, 4 * 18), (SMALL, 4, 2, 2 * 12), (FULL, 0, 1, 11), (SMALL, 0, 1, 11)],
)
def test_points_are_commands_that_the_programs_take(size, gpus, networks, points, tmp_path):
    found = compression.points(setup_of(size, gpus, tmp_path))
    assert len({point["words"] + point["train"] for point in found}) == len(found) == points
    assert len({point["train"] for point in found}) == networks
    for point in found:
        options = parse_train(point["train"].split())
        network = options.make_network((28, 28), 10)
        assert (options.data, network.depth) == (point["data"], {DENSE: 3, CONV: 4}[point["net"]])
        line = parse(["trained.npz", *point["words"].split(), "--out", "light.pyrtz"])
        shares, bits = line.wanted.shares_of(network), line.wanted.bits_of(network)
        assert line.options.device == options.device == ("auto" if gpus else "cpu")
        assert line.options.data == options.data and line.options.val_fraction == options.val_fraction
        assert any(bits.values()) == (point["method"] != PRUNED)
        if point["method"] in (PRUNED, BOTH):
            assert max(shares.values()) == point["setting"]
        if point["method"] == SHARED:
            assert set(bits.values()) == {point["setting"]} and not any(shares.values())


def test_a_layer_of_few_weights_keeps_its_own_share_on_the_curves(tmp_path):
    points = compression.points(setup_of(SMALL, 1, tmp_path))
    words = [point["words"] for point in points if point["net"] == CONV and point["setting"] == 0.97]
    assert len(words) == 2 and all("--prune 0.4,0.9,0.97,0.85 --bits " in word for word in words)


RATE = {
    **{"name": "W1", "weights": 1000, "kept": 100, "entries": 120, "clusters": 31, "dense_bytes": 4040},
    "weight": {"plain": 600, "huffman": 480, "ans": 470, "entropy": 460.5},
    "index": {"plain": 600, "huffman": 360, "ans": 350, "entropy": 340.5},
    **{"file_bytes": 250, "file_bytes_huffman": 202},
}
"""Twelve hundred bits of codes and indices, 840 as Huffman's, and 31 values of 32 bits, of 32,000 bits."""


def report(accuracies=(0.95, 0.5, 0.94)):
    """What jobs.compress returns of a network of one layer."""
    steps = [{"name": str(n), "accuracy": accuracy, "loss": 1} for n, accuracy in enumerate(accuracies)]
    return {"steps": steps, "rates": {"layers": [RATE], "total": {**RATE, "name": TOTAL}}}


def test_rows_have_the_numbers_of_the_report():
    layer, total = compression.rows_of(report())
    assert layer == pytest.approx(
        {
            **{"layer": "W1", "kept": 0.1, "accuracy_before": 0.95, "accuracy": 0.94},
            **{"dense_bytes": 4040, "file_bytes": 202, "file_rate": 5.0},
            **{"weight_bits": 5, "weight_bits_huffman": 4, "index_bits": 5, "index_bits_huffman": 3},
            **{"rate": 6.85, "rate_huffman": 5.725},
        }
    )
    assert total == {**layer, "layer": "total"}


SENSITIVITY = {"accuracy": {"W1": [0.9] * len(KEPT), "W2": [0.1 * n for n in range(len(KEPT))]}}


@pytest.fixture
def started(monkeypatch):
    """The commands of runs that leave a file alone, in their order."""
    commands = []

    def train(ranks, words, setup, variables=None):
        commands.append(words)
        save = words[words.index("--save") + 1]
        if "--net" in words:
            return {FAILED: "no room"}
        with open(save, "w") as file:
            file.write("trained")
        return {"test": {}}

    def compress(words, setup, variables=None):
        commands.append(words)
        with open(words[0]) as file:
            assert file.read() == "trained"
        if "--bits 8" in " ".join(words):
            return {FAILED: "too light"}
        return {"sensitivity": SENSITIVITY} if "--sensitivity" in words else report()

    monkeypatch.setattr(jobs, "train", train)
    monkeypatch.setattr(jobs, "compress", compress)
    return commands


def test_each_network_trains_once_for_all_its_points(started, tmp_path):
    setup = setup_of(SMALL, 1, tmp_path)
    points = compression.points(setup)
    taken = list(compression.take(points, setup))
    assert [point for point, _ in taken] == points
    assert sum("--save" in words for words in started) == 2
    assert len(started) == 2 + 12  # the points of the network that could not train start nothing
    for point, rows in taken:
        assert {*point, *rows[0]} <= {*compression.COLUMNS, FAILED}
        if point["net"] == CONV:
            assert rows == [{FAILED: "no room"}]
        elif point["setting"] == 8:
            assert rows == [{FAILED: "too light"}]
        elif point["method"] == SCAN:
            assert len(rows) == 2 * len(KEPT)
            assert rows[len(KEPT) + 2] == {"layer": "W2", "kept": KEPT[2], "accuracy": 0.2}
        else:
            assert rows == compression.rows_of(report())


@pytest.mark.parametrize(("gpus", "threads"), [(0, "1"), (1, None)])
def test_numpy_has_one_thread(gpus, threads, monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(jobs, "train", lambda ranks, words, setup, variables: given.append(variables) or {})
    monkeypatch.setattr(jobs, "compress", lambda words, setup, variables: given.append(variables) or report())
    setup = setup_of(SMALL, gpus, tmp_path)
    list(compression.take(compression.points(setup)[:1], setup))
    assert [variables.get("OMP_NUM_THREADS") for variables in given] == [threads, threads]


def test_without_the_images_each_point_says_why(monkeypatch, started, tmp_path):
    def load(data):
        if data != EMBEDDED:
            raise UserError(f"{data} could not be downloaded")

    monkeypatch.setattr(compression, "load", load)
    setup = setup_of(FULL, 1, tmp_path)
    points = [point for point in compression.points(setup) if point["net"] == DENSE]
    failed = [rows for point, rows in compression.take(points, setup) if point["data"] != EMBEDDED]
    assert failed == [[{FAILED: "fashion-mnist could not be downloaded"}]] * 18
    assert sum("--save" in words for words in started) == 1


BEFORE = 0.95
LOSSES = {
    GOAL: {None: -0.002},
    PRUNED: {0.5: 0, 0.8: 0.005, 0.9: 0.01, 0.95: 0.011, 0.97: 0.02},
    SHARED: {1: 0.5, 2: 0.02, 3: 0.01, 4: 0.005, 6: 0, 8: 0},
    BOTH: {0.5: 0, 0.8: 0, 0.9: 0, 0.95: 0.005, 0.97: 0.02},
}
"""Of accuracy, by what is done: 0.01 and less is little."""


def percent_of(method, setting):
    """The file's size, of float32's."""
    if method in (PRUNED, BOTH):
        return 100 * (1 - setting) / (5 if method == BOTH else 1)
    return 2.0 if method == GOAL else 3.0 * setting


def scanned():
    """The first layer loses nothing, the second 0.01 below half of its weights, and at 0.1 alone more."""
    for kept in KEPT:
        yield "W1", kept, BEFORE
        yield "W2", kept, round(BEFORE - 0.01 * (kept < 0.5) - 0.02 * (kept == 0.1), 3)


def rows_of_gpu(folder, size=FULL):
    rows = []
    for point in compression.points(setup_of(size, 1, folder)):
        method, setting = point["method"], point["setting"]
        if method == SCAN:
            names = "layer", "kept", "accuracy"
            rows += [{**point, **dict(zip(names, scan, strict=True))} for scan in scanned()]
            continue
        percent = percent_of(method, setting)
        (row, _) = compression.rows_of(report((BEFORE, BEFORE - LOSSES[method][setting])))
        row |= {"dense_bytes": 1_000_000, "file_bytes": round(percent * 10_000), "file_rate": percent}
        row["kept"] = 1 - setting if method in (PRUNED, BOTH) else 0.1
        rows += [{**point, **row, "layer": layer} for layer in ("W1", "W2", TOTAL)]
    return pd.DataFrame(rows)


def test_what_a_gpu_finds_is_said_beside_the_paper(tmp_path):
    section = compression.section(rows_of_gpu(tmp_path), setup_of(FULL, 1, tmp_path))
    dense, conv, *_ = section.findings
    assert dense == (
        "LeNet-300-100 on the embedded digits: 1,000,000 bytes of float32 become a file of 20,000, 50.0 "
        "times smaller; the error goes from 5.00 to 4.80 %. The paper, on MNIST: 40 times, 1.64 to 1.58 %. "
        "The goal, 40 times and no more errors, is reached."
    )
    assert conv.startswith("LeNet-5 on the embedded digits: ")
    assert conv.endswith("39 times, 0.80 to 0.74 %. The goal, 39 times and no more errors, is reached.")
    assert section.findings[4] == (
        "LeNet-300-100 on the embedded digits, at most 0.01 of accuracy lost: pruning alone makes it 10.0 "
        "times smaller (10 % kept); sharing alone makes it 11.1 times smaller (3 bits); both makes it 100.0 "
        "times smaller (5 % kept)."
    )
    assert section.findings[8] == (
        "LeNet-300-100 on the embedded digits, each layer pruned alone and nothing trained again: at most "
        "0.01 of accuracy is lost while there stay, of W1 2 %, W2 15 %."
    )
    assert len(section.findings) == 12
    assert len({figure.file for figure in section.figures}) == len(section.figures) == 8
    assert all((tmp_path / figure.file).stat().st_size > 10000 for figure in section.figures)
    assert "Curves that leave the figure lose more than 0.1." in section.figures[0].caption


def test_the_tables_have_our_numbers_and_the_papers(tmp_path, unsaved):
    sizes, *layers = compression.section(rows_of_gpu(tmp_path), setup_of(FULL, 1, tmp_path)).tables
    assert [list(row) for row in sizes.rows.itertuples(index=False)][3:] == [
        ["LeNet-5", "Fashion-MNIST", 1000.0, 20.0, 50.0, "5.00", "4.80"],
        ["LeNet-300-100", "MNIST, the paper", 1070.0, 27.0, 40.0, "1.64", "1.58"],
        ["LeNet-5", "MNIST, the paper", 1720.0, 44.0, 39.0, "0.80", "0.74"],
    ]
    assert len(layers) == 4
    first = layers[0].rows
    assert list(first.layer) == ["W1", "W2", TOTAL]
    assert list(first.iloc[0])[1:] == pytest.approx([10, 5, 4, 5, 3, 6.85, 5.725, 2])
    assert "--prune 0.96,0.95,0.8 --bits 4" in layers[0].caption


@pytest.mark.parametrize(
    ("file", "loss", "said"),
    [
        (25_000, 0.0, "is reached."),
        (25_001, 0.0, "is missed: 40.0 times."),
        (10_000, 0.001, "is missed: 0.10 % more errors."),
        (50_000, 0.01, "is missed: 20.0 times and 1.00 % more errors."),
    ],
)
def test_a_goal_that_is_missed_says_by_how_much(file, loss, said, tmp_path, unsaved):
    rows = rows_of_gpu(tmp_path, SMALL)
    rows = rows[(rows.method == GOAL) & (rows.net == DENSE)].assign(file_bytes=file, accuracy=BEFORE - loss)
    finding, *_ = compression.section(rows, setup_of(SMALL, 1, tmp_path)).findings
    assert finding.endswith(said)


def test_a_curve_that_always_loses_says_so(tmp_path, unsaved):
    rows = rows_of_gpu(tmp_path, SMALL)
    rows.loc[rows.method == SHARED, "accuracy"] = 0.5
    findings = " ".join(compression.section(rows, setup_of(SMALL, 1, tmp_path)).findings)
    assert "sharing alone at no point here; both makes it" in findings


def test_few_rows_are_enough(tmp_path, unsaved):
    rows, setup = rows_of_gpu(tmp_path, SMALL), setup_of(SMALL, 1, tmp_path)
    none = compression.section(rows[:0], setup)
    assert (none.findings, none.figures, none.tables) == ([], [], [])
    for method, figures, tables in ((GOAL, 2, 3), (PRUNED, 2, 0), (SCAN, 2, 0)):
        section = compression.section(rows[rows.method == method], setup)
        assert (len(section.figures), len(section.tables)) == (figures, tables)


@pytest.mark.long
def test_a_small_network_is_trained_and_made_light_on_the_cpu(tmp_path, monkeypatch):
    pytest.importorskip("bitarray", reason="make test installs it")
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(compression_points.NETS, DENSE, "--hidden 20,10 --activation relu")
    quick = compression_points.ON_CPU._replace(
        train="--batch 50 --epochs 1 --samples 500 --optimiser adam",
        compress="--samples 200 --rounds 1 --retrain-epochs 1 --share-epochs 1",
    )
    monkeypatch.setattr(compression_points, "CPU_EXTENT", compression_points.Extent((quick,), (0.8,), (2,)))
    setup = setup_of(SMALL, 0, tmp_path)
    points = [point for point in compression.points(setup) if point["method"] in (GOAL, SCAN)]
    taken = list(compression.take(points, setup))
    (_, goal), (_, scan) = taken
    *layers, total = goal
    weights = [784 * 20, 20 * 10, 10 * 10]
    assert total["dense_bytes"] == 4 * (sum(weights) + 40)
    assert [round(row["kept"] * of) for row, of in zip(layers, weights, strict=True)] == [1254, 20, 30]
    assert total["file_bytes"] < total["dense_bytes"] / 10
    assert [row["accuracy"] for row in scan if row["kept"] == 1] == [total["accuracy_before"]] * 3
    rows = pd.DataFrame([{**point, **row} for point, rows in taken for row in rows])
    section = compression.section(rows, setup)
    assert "goal" not in " ".join(section.findings)
    assert len(section.figures) == 2
    (why,) = compression.missing(setup)
    assert "there is no GPU" in why and compression.missing(setup_of(SMALL, 1, tmp_path)) == []
