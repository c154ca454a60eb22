"""How far training moves from the sequential reference: weights and precision, over steps, rates, ranks."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments import correctness_figures, jobs
from experiments.correctness_points import BASE, CHAOTIC, DTYPES, EMBEDDED, GRADED, SMALL_DEVIATION
from experiments.study import Point, Row, Section, Setup, Taken

if TYPE_CHECKING:
    import pandas as pd

    from nn.app.options import Options
    from nn.model.network import Network
    from pyrt.job import Job

TITLE = "Correctness"
QUESTION = (
    "How far do trained weights move from those of the sequential NumPy reference, which takes the same "
    "steps from the same start in float64, and does precision agree where weights do not? The difference is "
    "in relative max norm, max |w - r| / max |r| of the worst parameter, r the reference's (relative l2 is "
    "of all together). Where nothing else is said, 784-64-10 trains on the embedded digits, batch 400."
)
SETTING = ("lr", "hidden", "batch", "samples", "pixel_scale", "start")
"""The columns that the reference depends on, with the epochs."""

COLUMNS = (
    *("varied", "device", "dtype", "ranks", "threads", *SETTING, "epochs"),
    *("epoch", "steps", "max_norm", "l2", "tolerance", "precision", "reference_precision"),
)

GRADED_RUNS = ((5e-4, 40), (1e-3, 10), (2e-3, 1))
"""Their learning rates and epochs."""

GRADED_SAMPLES = 54_000
"""Their epoch: MNIST's 60,000 less a tenth."""

TINY: Point = {**BASE, "hidden": 16, "batch": 32, "samples": 64, "epochs": 3}
"""What is emulated, which is slow."""

COMPARED = (1, 2, 5, 10, 20)
"""Epochs after which weights are compared, beside the last, where the difference is followed."""

WEIGHTS = "weights"
"""The folder in the study's with initial, reference and trained weights, while it is taken."""


class Extent(NamedTuple):
    """What is varied."""

    rates: tuple[float, ...]
    hidden: tuple[int, ...]
    epochs: int
    graded_samples: int


EXTENTS = {
    "small": Extent((0.01, 0.1, 1.0, 4.0, 8.0), (16, 64, 128), 10, EMBEDDED),
    "full": Extent((0.001, 0.01, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0), (16, 64, 256, 512), 40, GRADED_SAMPLES),
}


def points(setup: Setup) -> list[Point]:
    """List points of one rank first: it has all cores for the references, which the others find. In the small
    size it has one BLAS thread: threads that wait for each other on busy cores take many times as long."""
    extent = EXTENTS[setup.size]
    base = {**BASE, "device": setup.device, "epochs": extent.epochs}
    common = {"threads": 1 if setup.is_small else None}
    graded = {**base, **GRADED, "samples": extent.graded_samples}
    alone = [
        *({"varied": "rate", **base, "lr": lr} for lr in extent.rates),
        *(
            {"varied": "hidden", **base, "hidden": units}
            for units in extent.hidden
            if units != BASE["hidden"]
        ),
        *({"varied": "graded", **graded, "lr": lr, "epochs": epochs} for lr, epochs in GRADED_RUNS),
    ]
    several = [{"varied": "ranks", **base, "lr": lr} for lr in (BASE["lr"], CHAOTIC)]
    tiny = [{"varied": "emulated", **TINY, "device": "emulated"}] if _emulates(setup) else []
    found = [{**point, "ranks": 1} for point in (*alone, *tiny)]
    for ranks in setup.ranks[1:]:
        found += [{**point, "ranks": ranks} for point in (*several, *(tiny if ranks == 2 else ()))]
    return [{**point, **common, "dtype": dtype} for point in found for dtype in DTYPES]


def _emulates(setup: Setup) -> bool:
    """Return whether kernels are emulated, for want of a GPU."""
    return setup.emulates and not setup.gpus


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    """References are made anew: those that a stopped study left may be of other code."""
    weights = setup.folder / WEIGHTS
    shutil.rmtree(weights, ignore_errors=True)
    weights.mkdir(parents=True)
    try:
        yield from jobs.measured(__name__, points, setup)
    finally:
        shutil.rmtree(weights, ignore_errors=True)


def measure(point: Point, job: Job, folder: Path) -> list[Row]:
    """Return a row for each epoch after which weights are compared."""
    from nn.app.load import initial_parameters
    from nn.input import load as load_data
    from nn.train.trainer import Trainer
    from pyrt.runtime import open_runtime

    weights = folder / WEIGHTS
    options, epochs = _options(point, weights), _compared(point)
    with job.agree():
        if job.rank == 0:
            _make_reference(point, options, epochs, weights)
    rows, data = [], load_data(options.data)
    network, optimiser = options.make_network(data.image_shape, data.classes), options.make_optimiser()
    settings = {name: point[name] for name in ("batch", "samples", "pixel_scale", "dtype")}
    with open_runtime(job, options.device) as runtime:
        initial = initial_parameters(options, network, job)
        with Trainer(network, optimiser, data, runtime, initial, **settings) as trainer:
            for before, epoch in pairwise([0, *epochs]):
                for _ in trainer.epochs(epoch - before):
                    pass
                trained, scores = trainer.parameters(), trainer.evaluate()
                if job.rank == 0:
                    reference = _reference_file(point, epoch, weights)
                    compared = _compared_with(reference, trained, scores.precision)
                    rows.append({"epoch": epoch, "tolerance": options.check_tolerance, **compared})
    return rows


def _compared(point: Point) -> list[int]:
    """List the epochs after which weights are compared."""
    last = point["epochs"]
    follows = point["varied"] in ("rate", "graded")
    return [*(epoch for epoch in COMPARED if follows and epoch < last), last]


def _options(point: Point, weights: Path) -> Options:
    from nn.app.options import Options

    names = "lr", "batch", "samples", "pixel_scale", "epochs", "dtype", "device"
    return Options(
        hidden=(point["hidden"],),
        init=weights / f"{point['start']}-start-{point['hidden']}-hidden.npz",
        momentum=0.0,
        **{name: point[name] for name in names},
    )


def _reference_file(point: Point, epoch: int, weights: Path) -> Path:
    """Name the reference's weights file after an epoch."""
    setting = "-".join(f"{name}-{point[name]}" for name in SETTING)
    return weights / f"reference-{setting}-epoch-{epoch}.npz"


def _make_reference(point: Point, options: Options, epochs: Sequence[int], weights: Path) -> None:
    """Train it once through these epochs and keep its weights after each, unless a point before did."""
    from nn.app.load import problem_of
    from nn.files import parameters
    from nn.input import load as load_data
    from nn.model import reference
    from nn.train import check

    files = [_reference_file(point, epoch, weights) for epoch in epochs]
    if all(file.exists() for file in files):
        return
    digits = load_data(options.data)
    problem = problem_of(dataclasses.replace(options, samples=point["samples"], epochs=epochs[-1]), digits)
    trained = _start(problem.network, point["start"], options.seed)
    assert options.init is not None and problem.test is not None
    parameters.save(options.init, trained, {})
    trained = {name: array.astype(np.float64) for name, array in trained.items()}
    batches, each = check.batches(problem), problem.schedule.batches
    network, optimiser = problem.network, options.make_optimiser()
    for file, (before, epoch) in zip(files, pairwise([0, *epochs]), strict=True):
        # Without momentum nothing but the parameters goes from one part of a training to the next.
        some = islice(batches, (epoch - before) * each)
        trained = reference.train(trained, some, network, optimiser)
        precision = check.precision_on(problem.test, trained, network, options.pixel_scale)
        parameters.save(file, trained, {"steps": epoch * each, "test_precision": precision})


def _start(network: Network, start: str, seed: int) -> dict[str, np.ndarray]:
    """Initial values, numbers of float32: so all of a difference comes about in training."""
    from nn.model.initial import initial_values

    values = initial_values(network, "float32", seed)
    if start == "small":
        generator = np.random.default_rng(seed)
        for layer in network.numbers:
            weights = generator.standard_normal(network.shapes[f"W{layer}"]) * SMALL_DEVIATION
            values[f"W{layer}"] = weights.astype(np.float32)
    return values


def _compared_with(reference: Path, weights: Mapping[str, np.ndarray], precision: float) -> Row:
    """Compare trained weights, and their precision, with the reference's."""
    truth, told = _read(reference)
    return {
        "steps": told["steps"],
        **differences(weights, truth),
        "precision": precision,
        "reference_precision": told["test_precision"],
    }


def _read(file: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the parameters that a file holds, and its metadata."""
    with np.load(file) as content:
        arrays = {name: content[name] for name in content.files}
    return arrays, json.loads(str(arrays.pop("run")))


def differences(weights: Mapping[str, np.ndarray], truth: Mapping[str, np.ndarray]) -> Row:
    """Return the relative max norm of the worst parameter, and the relative l2 norm of all together."""
    from nn.train.check import difference

    together = [np.concatenate([arrays[name].ravel() for name in truth]) for arrays in (weights, truth)]
    return {
        "max_norm": max(difference(name, weights[name], truth[name]).max_norm for name in truth),
        "l2": difference("all", *together).l2,
    }


def missing(setup: Setup) -> list[str]:
    reasons = []
    if not setup.gpus:
        reasons.append(
            "weights trained on a GPU: there is none; NumPy trains in its place, in the run's dtype"
        )
    if not setup.gpus and not setup.emulates:
        reasons.append("emulated kernels: there is no C++ compiler")
    if setup.gpus == 1:
        reasons.append("sums over several GPUs: there is one")
    if setup.is_small:
        reasons.append(
            f"the course's graded runs with {GRADED_SAMPLES:,} samples an epoch: the small size takes the "
            f"embedded digits' {EMBEDDED:,}, and so fewer steps"
        )
    return reasons


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    return correctness_figures.section(rows, setup)
