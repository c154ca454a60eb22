"""The networks of `experiments.compression`, how they are trained and made light, and the paper's results."""

from __future__ import annotations

from typing import NamedTuple

from experiments.study import Point, Setup

DENSE, CONV = "LeNet-300-100", "LeNet-5"
"""The paper's; its LeNet-5 is that of Caffe."""

NETS = {
    DENSE: "--hidden 300,100 --activation relu",
    CONV: "--net conv5x5x20,relu,pool2,conv5x5x50,relu,pool2,dense500,relu,dense10",
}

EMBEDDED, FASHION = "embedded", "fashion-mnist"
DATA = {EMBEDDED: "the embedded digits", FASHION: "Fashion-MNIST"}

GOAL, PRUNED, SHARED, BOTH, SCAN = "goal", "pruning alone", "sharing alone", "both", "sensitivity"
"""Kinds of points: compress as far as accuracy allows; a curve's points; prune each layer alone."""
CURVES = PRUNED, SHARED, BOTH

TOTAL = "total"
"""The row of all layers, as nn.compress names it."""


class Paper(NamedTuple):
    """Holds the paper's results of a network, on MNIST (Han, Mao and Dally 2016, table 1): KB and percent."""

    before: int
    after: int
    times: int
    error_before: float
    error_after: float


PAPER = {DENSE: Paper(1070, 27, 40, 1.64, 1.58), CONV: Paper(1720, 44, 39, 0.80, 0.74)}


WHOLE = "--val-fraction 0"
"""Used in training and in compressing, so that errors before and after come from the same training images."""


class Way(NamedTuple):
    """Says how a network is trained on a data set, and compressed."""

    net: str
    data: str
    train: str
    prune: str
    """The share of each layer's weights that goes, in the goal."""
    bits: str
    """Bits of a code, in the goal and on the curve `BOTH`."""
    most: tuple[float, ...]
    """On the curves: the share of a layer's weights that goes, at most. The first convolution and the last
    layer have few weights and need them."""
    compress: str
    """For all points."""


_DENSE_MOST, _CONV_MOST = (1, 1, 0.8), (0.4, 0.9, 1, 0.85)

WAYS = (
    Way(
        *(DENSE, EMBEDDED, "--batch 100 --epochs 100 --reg 1e-3"),
        *("0.96,0.95,0.8", "4", _DENSE_MOST),
        "--optimiser adam --lr 0.001 --retrain-epochs 30 --rounds 6 --index-bits 6",
    ),
    Way(
        *(CONV, EMBEDDED, "--batch 100 --epochs 60 --optimiser adam --reg 1e-3"),
        *("0.34,0.88,0.96,0.81", "6,5,5,5", _CONV_MOST),
        "--optimiser adam --lr 0.0005 --retrain-epochs 30 --rounds 6",
    ),
    Way(
        *(DENSE, FASHION, "--batch 250 --epochs 40 --optimiser adam --reg 1e-4"),
        *("0.95,0.93,0.8", "5", _DENSE_MOST),
        "--optimiser adam --lr 0.001 --retrain-epochs 15 --rounds 5",
    ),
    Way(
        *(CONV, FASHION, "--batch 250 --epochs 15 --optimiser adam --reg 1e-4"),
        *("0.4,0.9,0.975,0.85", "6,4,4,5", _CONV_MOST),
        "--optimiser adam --lr 0.0003 --retrain-epochs 8 --rounds 5",
    ),
)

ON_CPU = Way(
    *(DENSE, EMBEDDED, "--batch 100 --epochs 10 --optimiser adam --reg 1e-4"),
    *("0.92,0.9,0.7", "5", _DENSE_MOST),
    "--optimiser adam --lr 0.001 --retrain-epochs 4 --rounds 1 --share-epochs 2",
)
"""In few epochs: it shows the curves' form, not how far they can go."""


class Extent(NamedTuple):
    """Lists what is compressed: the networks, and the points of their curves."""

    ways: tuple[Way, ...]
    shares: tuple[float, ...]
    bits: tuple[int, ...]


FULL_EXTENT = Extent(WAYS, (0.5, 0.8, 0.9, 0.95, 0.97), (1, 2, 3, 4, 6, 8))
SMALL_EXTENT = Extent(WAYS[:2], (0.5, 0.9, 0.97), (1, 2, 4, 8))
"""The data that every clone has."""
CPU_EXTENT = Extent((ON_CPU,), (0.5, 0.9, 0.97), (1, 2, 4))


def points_of(setup: Setup) -> list[Point]:
    """List the points; those of a network follow each other."""
    extent = FULL_EXTENT if setup.gpus and not setup.is_small else SMALL_EXTENT if setup.gpus else CPU_EXTENT
    return [point for way in extent.ways for point in _points(way, extent, setup)]


def _points(way: Way, extent: Extent, setup: Setup) -> list[Point]:
    """List a network's points. ``words`` lack the names of files, which `experiments.compression` adds."""
    device = "" if setup.gpus else " --device cpu"
    shares = {share: ",".join(f"{min(share, most):g}" for most in way.most) for share in extent.shares}
    runs = [
        (GOAL, None, f"--prune {way.prune} --bits {way.bits}"),
        *((PRUNED, share, f"--prune {prune} --bits 0") for share, prune in shares.items()),
        *((SHARED, bits, f"--prune 0 --bits {bits}") for bits in extent.bits),
        *((BOTH, share, f"--prune {prune} --bits {way.bits}") for share, prune in shares.items()),
        (SCAN, None, ""),
    ]
    common = {
        "net": way.net,
        "data": way.data,
        "train": f"--data {way.data} {NETS[way.net]} {way.train} {WHOLE}{device}",
        "device": setup.device,
    }
    return [
        {
            **{**common, "method": method, "setting": setting},
            "words": " ".join(f"--data {way.data} {way.compress} {WHOLE} {words}{device}".split()),
        }
        for method, setting, words in runs
    ]
