"""Trains a network on this job's devices: what a program calls, and what train.py is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from nn.checkpoints.checkpointer import Checkpointer
from nn.checkpoints.resume_point import open_resume_point
from nn.checkpoints.versions import code
from nn.files import onnx, parameters
from nn.input.dataset import Dataset, Samples
from nn.input.validation_split import with_held_out_last
from nn.model.constraint import Constraint
from nn.model.initial import initial_values
from nn.model.network import Network, described
from nn.optimisers.base import Optimiser
from nn.parallel.gather import gather_parameters
from nn.problem.problem import Problem
from nn.problem.progress import Epoch, Progress
from nn.problem.settings import Settings
from nn.train.diverged import require_finite_parameters
from nn.train.environment import describe
from nn.train.evaluation import Evaluator, Scores
from nn.train.prepare import Prepared, open_resources, prepare, replays_graphs, with_common_versions
from nn.train.recorded_steps import RecordedSteps
from nn.train.setup import set_up
from nn.train.snapshot import snapshot
from nn.train.training import Training
from nn.train.watcher import Watcher
from pyrt.errors import UserError
from pyrt.runtime import Runtime

_ENDLESS = 1_000_000
"""Epochs for `Settings`, larger than any: a program that uses `Trainer` decides itself when to stop."""


class Trainer:
    """A network, its optimiser and its data on the devices of a job. Every method is collective.

    `close` frees what is shared with other processes; so does the end of a ``with`` block.
    """

    def __init__(
        self,
        network: Network,
        optimiser: Optimiser,
        data: Dataset,
        runtime: Runtime,
        initial: Mapping[str, np.ndarray] | None = None,
        constraint: Constraint | None = None,
        **settings: Any,
    ) -> None:
        """Make all that training needs; ``settings`` are fields of `Settings`, as ``batch=500``.

        The parameters start as ``initial``; None: drawn from the setting ``seed``. Weights keep the
        ``constraint``, if there is one. Raises UserError on all ranks for settings that cannot work.
        """
        with runtime.job.agree():
            _require_fitting(network, data)
        wanted = with_common_versions(Settings(epochs=_ENDLESS, **settings), runtime)
        data = with_held_out_last(data, wanted.val_fraction, wanted.val_split, wanted.seed)
        problem = Problem.of(wanted, data, network, optimiser, _described(wanted, network, optimiser))
        problem = replace(problem, constraint=constraint)
        with ExitStack() as failing:
            resume_point = open_resume_point(wanted, runtime.job, runtime.warn)
            prepared = prepare(problem, runtime, failing.enter_context(closing(resume_point)))
            self._open(prepared, runtime)
            failing.pop_all()
        self.start(initial)
        self.keep_checkpoints(describe(prepared, runtime), runtime.warn)

    @classmethod
    def of(cls, prepared: Prepared, runtime: Runtime) -> Trainer:
        """Build a trainer from the decisions of `prepare`. Call `start` before the first step."""
        trainer = cls.__new__(cls)
        trainer._open(prepared, runtime)
        return trainer

    def _open(self, prepared: Prepared, runtime: Runtime) -> None:
        problem = prepared.problem
        self.problem, self.runtime = problem, runtime
        self.resumed = prepared.resume_point
        with runtime.job.agree():
            prepared.rehearsal.require_room(problem.settings.placement)
        with ExitStack() as opened:
            opened.callback(self.resumed.close)
            opened.callback(prepared.groups.close)
            resources = open_resources(prepared, runtime)
            opened.enter_context(closing(resources.links))
            where, graphs = prepared.rehearsal.placement, replays_graphs(problem.settings, runtime.driver)
            with runtime.phases.phase("train setup"):
                setup = opened.enter_context(
                    closing(set_up(problem, prepared.shard, resources, where, graphs))
                )
            self._opened = opened.pop_all()
        self._resources, self.setup, self.model = resources, setup, setup.model
        self._checkpointer: Checkpointer | None = None

    def start(
        self,
        initial: Mapping[str, np.ndarray] | None,
        checks: bool = False,
        watcher: Watcher | None = None,
        record: Callable[[int], RecordedSteps | None] | None = None,
    ) -> None:
        """Start from the checkpoint if there is one, else from ``initial``; None: draw them from the seed.

        To be called once, before the first step.

        With ``checks`` the result will be compared with the NumPy reference from the same start: then a
        resumed run must have the initial parameters of the first one. ``record`` takes the number of
        steps that are done, and returns the recorder of some steps or None.
        """
        problem, job = self.problem, self.runtime.job
        with self.runtime.phases.phase("train setup"):
            found = self.resumed = self.resumed.begun_at(initial, checks)
            self.initial = initial or initial_values(
                problem.network, problem.settings.dtype, problem.settings.seed
            )
            with job.agree():
                self.model.start(found.parameters or dict(self.initial))
                if self.setup.training is not None:
                    self.setup.training.set_state(found.states, found.progress.step)
        if self.setup.training is not None:
            recorded = record(found.progress.step) if record is not None else None
            self.setup.training.begin(found.progress, self.setup.validation, watcher, recorded)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        with closing(self):
            if error is None and self._checkpointer is not None and not self._checkpointer.is_over:
                self._checkpointer.end(self.progress)
                if not self._checkpointer.is_preempted:
                    self._checkpointer.finish()

    def close(self) -> None:
        """Free what is shared with other processes, and end threads. Safe to call twice."""
        self._opened.close()

    @property
    def training(self) -> Training:
        """The steps; a trainer that only evaluates has none."""
        assert self.setup.training is not None, "this trainer only evaluates"
        return self.setup.training

    @property
    def progress(self) -> Progress:
        """Tell how far the training has come."""
        return self.training.progress

    def keep_checkpoints(
        self, environment: Mapping[str, Any], warn: Callable[[str], None]
    ) -> Checkpointer | None:
        """Begin to keep checkpoints, if the setting ``checkpoint`` names a folder for them.

        They are made during `epochs` and `step`, and hold the ``environment`` in their metadata.
        """
        settings, job = self.problem.settings, self.runtime.job
        every = settings.steps_between_checkpoints(self.problem.schedule.batches)
        kept = self.resumed.checkpointer(settings, every, warn, self.runtime.phases)
        if kept is not None:
            self._opened.enter_context(closing(kept))
            told = {**environment, **(code() if job.rank == 0 else {})}  # runs git: now, while no step waits
            kept.begin(lambda progress: snapshot(self, progress, told))
        self._checkpointer = kept
        return kept

    def epochs(self, count: int) -> Iterator[Epoch]:
        """Train so many more epochs; yield a record when each has ended.

        The next one starts when the caller asks for its record. With checkpoints, ends early after a last
        one if the job is asked to stop.
        """
        batches = self.problem.schedule.batches
        for _ in range(count):
            yield from self.training.epochs((self.training.step // batches + 1) * batches, self._checkpointer)
            if self._checkpointer is not None and self._checkpointer.is_preempted:
                return

    def step(self) -> float:
        """Train one step; return the mean loss of its batch, from before the update."""
        for _ in self.training.epochs(self.training.step + 1, self._checkpointer):
            pass
        return self.training.loss

    def evaluate(self, data: Dataset | Samples | None = None) -> Scores:
        """Score the parameters on a data set's test set, or on images and labels; None: the trainer's."""
        if data is None and self.setup.test is not None:
            return self.setup.test.scores()
        images, labels = _samples(data if data is not None else self.problem.dataset)
        return Evaluator(self.model, (images, labels), self._resources).scores()

    def parameters(self) -> dict[str, np.ndarray]:
        """Collect all parameters on rank 0; return an empty dict on others."""
        return gather_parameters(self.model.shard, self.model.parameters, self.runtime.job)

    def save(self, path: str | Path) -> None:
        """Write all parameters, and what the network is, to a file: .safetensors, .pyrtz, all others .npz."""
        whole, job = self.parameters(), self.runtime.job
        with job.agree():
            if job.rank == 0:
                parameters.save(Path(path), whole, {"options": dict(self.problem.description)})

    def export(self, path: str | Path) -> None:
        """Write the network as ONNX: from scaled pixels, float32 (N, D), to probabilities (N, classes)."""
        whole, job = self.parameters(), self.runtime.job
        with job.agree():
            if job.rank == 0:
                run = {"options": dict(self.problem.description)}
                onnx.export(Path(path), self.problem.network, whole, run)

    def require_finite_parameters(self) -> None:
        """Raise Diverged if a parameter is not finite; the last loss is from before the last update."""
        finite = bool(np.isfinite(self.model.parameters.flat.to_host()).all())
        require_finite_parameters(finite, self.runtime.job)


def _require_fitting(network: Network, data: Dataset) -> None:
    """Raise UserError unless the images are what the network takes; flat ones may be of any shape."""
    takes, given = network.layer_shapes[0], data.image_shape
    is_flat = network.is_dense or len(given) == 1
    if math.prod(takes) != math.prod(given) or not (is_flat or takes == (*given, 1)[:3]):
        raise UserError(
            f"Network: takes samples of {described(takes)}, and {data.name} has images of {described(given)}"
        )


def _samples(data: Dataset | Samples) -> Samples:
    """Return the test samples of a data set, or the samples that are given."""
    if not isinstance(data, Dataset):
        return data
    if data.test_images is None or data.test_labels is None:
        raise ValueError(f"{data.name} has no test images: give images and labels")
    return data.test_images, data.test_labels


def _described(settings: Settings, network: Network, optimiser: Optimiser) -> dict[str, Any]:
    """Describe a training in the words of the command line; activations that differ are listed by layer."""
    layers = network.layers[:-1] if network.is_dense else ()
    hidden = [layer.function for layer in layers]
    rates: Mapping[str, Any] = asdict(optimiser)  # type: ignore[call-overload]
    return {
        "classes": None,
        **settings.as_json(),
        "hidden": list(network.sizes[1:-1]) if network.is_dense else [],
        "activation": hidden[0] if len(set(hidden)) == 1 else hidden,
        "net": None if network.is_dense else network.text,
        "head": network.loss,
        "optimiser": type(optimiser).__name__.lower(),
        **rates,
    }
