"""Reads the data set of a run, and finds what is suspicious in it."""

from __future__ import annotations

from dataclasses import replace

from nn.app.options import Options
from nn.input import Dataset, Wanted, suspicious
from nn.input import load as load_data
from nn.input.validation_split import TAIL, held_out_last, split
from nn.problem.problem import Problem
from pyrt.errors import UserError


def problem_of(options: Options, dataset: Dataset) -> Problem:
    """Make what the options ask for of a data set. Raises UserError for a network that cannot be."""
    network = options.make_network(dataset.images.shape[1], dataset.classes)
    problem = Problem.of(options, dataset, network, options.make_optimiser(), options.as_json())
    return replace(problem, trains=not options.evaluate)


def load(options: Options) -> tuple[Dataset, list[str]]:
    """Read the data set of a run, the rows that validate last, and say what is suspicious in it, a line each.

    Raises UserError where it cannot be read, or is no valid data set.
    """
    found = load_data(options.data, Wanted(options.dtype, options.classes))
    lines = [*found.warnings, *suspicious.of_pixels(found, options.pixel_scale)]
    if options.evaluate:
        if found.test_images is None:
            raise UserError(f"--evaluate: {found.name} has no test images: give data that has them")
        return found, lines
    if options.val_split != TAIL:
        order = held_out_last(found.labels, options.val_fraction, options.val_split, options.seed)
        found = replace(found, images=found.images[order], labels=found.labels[order])
    rows = split(len(found.images), options.val_fraction)
    used = min(options.samples or rows, rows)
    return found, lines + suspicious.of_labels(found, used, rows, options.val_split)
