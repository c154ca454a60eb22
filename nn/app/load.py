"""Reads the data set of a run on rank 0, and sends it to all; makes the training problem of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nn.app.console import Console
from nn.app.options import Options
from nn.checkpoints.metadata import digest_of_data
from nn.files import onnx, parameters
from nn.input import Dataset, Wanted, distribute, mapped, suspicious
from nn.input import load as load_data
from nn.input.distribute import PARTS
from nn.input.validation_split import split, with_held_out_last
from nn.model.network import Network
from nn.problem.problem import Problem
from nn.program.light_weights import DENSE, LightWeights
from pyrt.errors import UserError
from pyrt.job import Job
from pyrt.runtime import Runtime
from pyrt.workers import Early

Reading = Early[tuple[Dataset, list[str]]]
"""A data set that a thread reads, and warnings."""


def begin(options: Options, job: Job) -> Reading | None:
    """Begin to read, on rank 0, beside the start of the device, which takes longer."""
    return Early(partial(load, options)) if job.rank == 0 else None


def finish(reading: Reading | None, options: Options, runtime: Runtime, console: Console) -> Dataset:
    """Send what rank 0 has read to all, or its part to each; say what is suspicious in it. Collective."""
    dataset = None
    with runtime.phases.phase("load data"), runtime.job.agree():
        if reading is not None:
            dataset, warnings = reading.take()
            for line in warnings:
                console.warn(line)
    with runtime.phases.phase("distribute data"):
        if options.distribute == PARTS:
            return _scatter(dataset, options, runtime.job)
        return _broadcast(dataset, runtime.job)


def load(options: Options) -> tuple[Dataset, list[str]]:
    """Read the data set of a run, the rows that validate last, and say what is suspicious in it, a line each.

    Raises UserError where it cannot be read, or is no valid data set.
    """
    found = load_data(options.data, Wanted(options.dtype, options.classes, options.channels))
    lines = [*found.warnings, *suspicious.of_pixels(found, options.pixel_scale)]
    if options.evaluate:
        if found.test_images is None:
            raise UserError(f"--evaluate: {found.name} has no test images: give data that has them")
        return found, lines
    found = with_held_out_last(found, options.val_fraction, options.val_split, options.seed)
    rows = split(len(found.images), options.val_fraction)
    used = min(options.samples or rows, rows)
    return found, lines + suspicious.of_labels(found, used, rows, options.val_split)


def with_layers(options: Options, dataset: Dataset, job: Job) -> Options:
    """Spell out --net as layers: what the run writes then tells them, of a name too. Collective.

    Raises UserError on all ranks for a network that cannot be.
    """
    if options.net is None:
        return options
    with job.agree():
        network = options.make_network(dataset.image_shape, dataset.classes)
    return replace(options, net=network.text)


def problem_of(options: Options, dataset: Dataset) -> Problem:
    """Make what the options ask for of a data set. Raises UserError for a network that cannot be."""
    network = options.make_network(dataset.image_shape, dataset.classes)
    problem = Problem.of(options, dataset, network, options.make_optimiser(), options.as_json())
    latency = problem.schedule.batch if options.latency is True else options.latency
    return replace(problem, trains=not options.evaluate, latency=latency)


def make_problem(options: Options, dataset: Dataset, job: Job) -> Problem:
    """Make the problem on every rank. Collective; UserError on all ranks for what cannot be."""
    with job.agree():
        problem = problem_of(options, dataset)
        if options.export is not None and job.rank == 0:
            onnx.require_exportable(options.export, problem.network)
    return problem


def initial_parameters(options: Options, network: Network, job: Job) -> dict[str, np.ndarray] | None:
    """Read the parameters of --init for all ranks; None without it. Collective; UserError on all ranks."""
    if options.init is None:
        return None
    values = None
    with job.agree():
        if job.rank == 0:  # the file may be on this rank's node alone
            values = parameters.load(options.init, network, options.dtype)
    found: dict[str, np.ndarray] = job.comm.bcast(values)
    return found


def with_light_weights(options: Options, problem: Problem, runtime: Runtime) -> Problem:
    """Make the weights of --init as --weights asks for; lists of operations depend on them. Collective."""
    if options.weights == DENSE:
        return problem
    with runtime.phases.phase("light weights"):
        values = initial_parameters(options, problem.network, runtime.job)
        assert values is not None  # --evaluate needs them
        with runtime.job.agree():
            light = LightWeights.of(options.weights, problem.network, values)
    return replace(problem, light=light)


def _scatter(dataset: Dataset | None, options: Options, job: Job) -> Dataset:
    """Give each rank its part of the images of rank 0's data set, and all else of it."""
    images = test_images = described = None
    with job.agree():
        if dataset is not None:
            images, test_images = dataset.images, dataset.test_images
            described = _without_images(dataset, options)
    found = _broadcast(described, job)
    available = split(len(found.labels), options.val_fraction)
    used = min(options.samples or available, available)
    of_training = distribute.slices(used, available, len(found.labels), options.batch)
    held = distribute.scattered(images, of_training, job)
    if found.test_labels is None:
        return replace(found, images=held)
    of_test = distribute.slices(0, 0, len(found.test_labels), 1)
    return replace(found, images=held, test_images=distribute.scattered(test_images, of_test, job))


def _without_images(dataset: Dataset, options: Options) -> Dataset:
    """Return all of a data set but its images; what a checkpoint compares of them is in its digest."""
    available = split(len(dataset.images), options.val_fraction)
    distribute.require_parts(options.samples, available)
    digest = None
    if options.checkpoint is not None:
        digest = digest_of_data(dataset, options.samples or available, available)
    tests = dataset.test_images[:0] if dataset.test_images is not None else None
    return replace(dataset, images=dataset.images[:0], test_images=tests, digest=digest)


def _broadcast(dataset: Dataset | None, job: Job) -> Dataset:
    """Rank 0's data set on every rank: the description as an object, the arrays as buffers."""
    fields = vars(dataset) if dataset is not None else {}
    arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    description = job.comm.bcast({name: value for name, value in fields.items() if name not in arrays})
    received: dict[str, Any] = {}
    for name in job.comm.bcast(list(arrays)):
        received[name] = _broadcast_array(arrays.get(name), job)
    return Dataset(**description, **received)


def _broadcast_array(array: np.ndarray | None, job: Job) -> np.ndarray:
    """Rank 0's array on every rank: where it is mapped each maps the file, if all of them see it."""
    described = (array.shape, array.dtype, mapped.place_of(array)) if array is not None else None
    shape, dtype, place = job.comm.bcast(described)
    if place is not None:
        found = array if array is not None else mapped.map_at(place, shape, dtype)
        if all(job.comm.allgather(found is not None)) and found is not None:
            return found
    received = array if array is not None else np.empty(shape, dtype)
    job.comm.Bcast(received.reshape(-1).view(np.uint8))
    return received
