"""Compression: how small a network gets, and what that costs in accuracy (Han, Mao and Dally 2016)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import compression_figures, jobs
from experiments.compression_points import SCAN, points_of
from experiments.study import FAILED, Point, Row, Section, Setup, Taken
from nn.compress.rates import Rate, Stream
from nn.compress.sensitivity import KEPT
from nn.input import load
from pyrt.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

TITLE = "Compression"
QUESTION = (
    "How small does a network get, and what does that cost in accuracy? train.py trains the networks of Han, "
    "Mao and Dally (2016), and python -m nn.compress makes them light: it prunes weights, lets the others "
    "share few values, and writes a file with Huffman codes. Errors are those on the test set; the settings "
    "were found by trial on the same images. One run each, seed 0; by chance alone an error of 5 % over the "
    "1,000 test images of the embedded digits has a standard error of 0.7 %, one of 10 % over the 10,000 of "
    "Fashion-MNIST 0.3 %."
)
COLUMNS = (
    *("net", "data", "method", "setting", "train", "words", "device"),
    *("layer", "kept", "accuracy_before", "accuracy", "dense_bytes", "file_bytes"),
    *("weight_bits", "weight_bits_huffman", "index_bits", "index_bits_huffman"),
    *("rate", "rate_huffman", "file_rate"),
)
"""``setting``: of a curve's point, the share that is pruned or the bits of a code. ``kept``: the share of a
layer's weights. Bits are those of an entry, on average. Rates are percent of float32: the paper's accounting
with and without Huffman codes, and bytes of the file."""


def points(setup: Setup) -> list[Point]:
    return points_of(setup)


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    """Train each network once, and compress it as each of its points says."""
    for _, group in groupby(points, key=lambda point: point["train"]):
        mine = list(group)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            why = _train(mine[0], folder, setup)
            if why:
                yield from ((point, [{FAILED: why}]) for point in mine)
            else:
                yield from _compressed(mine, folder, setup)


def _compressed(points: Sequence[Point], folder: Path, setup: Setup) -> Iterator[Taken]:
    """Compress a trained network in each way, on each core one; nothing is timed."""
    pool = ThreadPoolExecutor(1 if setup.gpus else setup.cores)
    try:
        folders = [folder / str(number) for number in range(len(points))]
        yield from zip(points, pool.map(_rows, points, folders, repeat(setup)), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)


def _train(point: Point, folder: Path, setup: Setup) -> str:
    """Leave the trained network in the folder; return why there is none, or nothing."""
    try:
        load(point["data"])  # a download has all the time that it needs, a run of train.py has not
    except UserError as error:
        return str(error)
    words = [*point["train"].split(), "--save", str(_trained(folder))]
    report = jobs.train(1, words, setup, _threads(setup))
    return str(report.get(FAILED, ""))


def _threads(setup: Setup) -> dict[str, str]:
    """Give NumPy one thread: the products are small, and threads that wait for each other take longer."""
    return {} if setup.gpus else jobs.blas(1)


def _trained(folder: Path) -> Path:
    return folder / "trained.npz"


def _rows(point: Point, folder: Path, setup: Setup) -> list[Row]:
    """Return a row for each layer and their total; of a scan, for each layer and share; one if it fails.

    The trained network lies in the folder above this one, which is made.
    """
    folder.mkdir()
    scans = point["method"] == SCAN
    output = ["--sensitivity", f"{folder / 'scan.png'}"] if scans else ["--out", f"{folder / 'light.pyrtz'}"]
    report = jobs.compress(
        [str(_trained(folder.parent)), *point["words"].split(), *output], setup, _threads(setup)
    )
    return jobs.failed_rows(report) or (_scanned(report) if scans else rows_of(report))


def _scanned(report: dict[str, Any]) -> list[Row]:
    return [
        {"layer": layer, "kept": kept, "accuracy": accuracy}
        for layer, accuracies in report["sensitivity"]["accuracy"].items()
        for kept, accuracy in zip(KEPT, accuracies, strict=True)
    ]


def rows_of(report: dict[str, Any]) -> list[Row]:
    """Return a row for each layer of a report of nn.compress, and their total's."""
    before, after = (report["steps"][place]["accuracy"] for place in (0, -1))
    rates = [*report["rates"]["layers"], report["rates"]["total"]]
    return [{"accuracy_before": before, "accuracy": after, **_weighed(rate)} for rate in rates]


def _weighed(told: dict[str, Any]) -> Row:
    """Work out the numbers of a layer, as nn.compress tabulates them."""
    plain = Rate(**told)
    rate = replace(plain, weight=Stream(**told["weight"]), index=Stream(**told["index"]))
    return {
        "layer": rate.name,
        "kept": rate.kept_percent / 100,
        "dense_bytes": rate.dense_bytes,
        "file_bytes": rate.file_bytes_huffman,
        "weight_bits": rate.bits(rate.weight.plain),
        "weight_bits_huffman": rate.bits(rate.weight.huffman),
        "index_bits": rate.bits(rate.index.plain),
        "index_bits_huffman": rate.bits(rate.index.huffman),
        "rate": rate.percent,
        "rate_huffman": rate.percent_huffman,
        "file_rate": rate.file_percent_huffman,
    }


def missing(setup: Setup) -> list[str]:
    if setup.gpus:
        return []
    return [
        "LeNet-5, Fashion-MNIST, and the paper's rates without loss of accuracy: there is no GPU; "
        "LeNet-300-100 learns the embedded digits in NumPy for few epochs, in their place"
    ]


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    return compression_figures.section(rows, setup)
