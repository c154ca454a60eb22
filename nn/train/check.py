"""``--check``: the sequential NumPy reference, trained from the same start on the same batches.

The reference computes in float64 whatever the run's dtype, so that all of the difference is the run's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from tabulate import tabulate

from nn.input.dataset import Samples
from nn.model import reference
from nn.model.network import Network
from nn.problem.problem import Problem
from nn.train.evaluation import score

_WHAT_TO_DO = (
    "Where training is unsteady, rounding errors grow: a smaller --lr tells them from a mistake. "
    "--check-each 1 names the first operation that is wrong."
)


@dataclass(frozen=True)
class Difference:
    """Of one parameter: max |a - b| / max |b| and ||a - b|| / ||b||, b the reference."""

    name: str
    max_norm: float
    l2: float


@dataclass(frozen=True)
class Check:
    """The differences, and precision on the test set (else the validation set; None without either)."""

    differences: list[Difference]
    tolerance: float
    precision: float | None
    reference_precision: float | None

    @property
    def passed(self) -> bool:
        # "not above" would let NaN pass
        return all(difference.max_norm <= self.tolerance for difference in self.differences)

    def __str__(self) -> str:
        rows = [(d.name, f"{d.max_norm:.2e}", f"{d.l2:.2e}") for d in self.differences]
        lines = [tabulate(rows, headers=["check", "relative max norm", "relative l2"], disable_numparse=True)]
        if self.precision is not None:
            lines.append(f"precision {self.precision:.4f}, of the reference {self.reference_precision:.4f}")
        verdict = "passed" if self.passed else "FAILED"
        lines.append(f"check {verdict}: tolerance {self.tolerance:g} (relative max norm)")
        if not self.passed:
            lines.append(_WHAT_TO_DO)
        return "\n".join(lines)


def compare(
    parameters: Mapping[str, np.ndarray],
    initial: Mapping[str, np.ndarray],
    problem: Problem,
    precision: float | None,
) -> Check:
    """Train the reference from ``initial`` and compare ``parameters`` with it.

    The run has this ``precision`` on the test set, else the validation set.
    """
    settings, held_out = problem.settings, problem.test or problem.validation
    trained = reference.train(
        {name: array.astype(np.float64) for name, array in initial.items()},
        batches(problem),
        problem.network,
        problem.optimiser,
        settings.seed,
        problem.constraint,
    )
    differences = [difference(name, parameters[name], trained[name]) for name in trained]
    reference_precision = (
        precision_on(held_out, trained, problem.network, settings.pixel_scale)
        if held_out is not None
        else None
    )
    return Check(differences, settings.check_tolerance, precision, reference_precision)


def difference(name: str, array: np.ndarray, truth: np.ndarray) -> Difference:
    """Compare ``array`` with ``truth`` by norms relative to it (absolute if it is zero)."""
    delta = array - truth
    largest, length = np.abs(truth).max(), np.linalg.norm(truth)
    return Difference(
        name, float(np.abs(delta).max() / (largest or 1)), float(np.linalg.norm(delta) / (length or 1))
    )


def precision_on(
    samples: Samples, parameters: Mapping[str, np.ndarray], network: Network, pixel_scale: float
) -> float:
    """Score the reference with these parameters, on images and labels."""
    images, labels = samples
    _, logits = reference.forward(dict(parameters), images.astype(np.float64) / pixel_scale, network)
    return score(logits, labels, network.loss).precision


def batches(problem: Problem) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pixels, scaled, and labels of each step of a run, as the reference takes them."""
    images, labels = problem.dataset.images, problem.dataset.labels
    schedule, augmenter = problem.schedule, problem.augmenter
    for step in range(schedule.steps):
        rows = schedule.rows(step)
        X = images[rows]
        if augmenter is not None:
            X = augmenter.augmented(X, rows, schedule.epoch(step))
        yield X.astype(np.float64) / problem.settings.pixel_scale, labels[rows]
