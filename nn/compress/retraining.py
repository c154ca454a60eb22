"""Trains a network again under a constraint, and scores it: what compression does between its steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nn.app.options import Options
from nn.input import Dataset
from nn.model.constraint import Constraint
from nn.model.network import Network
from nn.optimisers.base import Optimiser
from nn.problem.settings import Settings
from nn.train.evaluation import Scores
from nn.train.trainer import Trainer
from pyrt.job import Job
from pyrt.runtime import Runtime

Parameters = Mapping[str, np.ndarray]

_OURS = ("epochs", "checkpoint", "checkpoint_every", "resume", "keep", "checkpoint_errors")
"""The settings that are not handed on: a round is no run of its own."""


@dataclass(frozen=True)
class Retraining:
    """A network, its data and the job that trains it; parameters are float32 and the same on every rank.

    Each training has the device to itself: what it allocated is free again before the next.
    """

    options: Options
    network: Network
    data: Dataset
    job: Job
    open: Callable[[], AbstractContextManager[Runtime]]
    """Opens the device of this rank."""

    def train(
        self, parameters: Parameters, constraint: Constraint, epochs: int, slower: float = 1.0
    ) -> tuple[dict[str, np.ndarray], Scores]:
        """Train so many epochs, the learning rate divided by ``slower``; return parameters and scores.

        The scores are those on the test set. Collective.
        """
        optimiser: Any = self.options.make_optimiser()
        with self._trainer(parameters, constraint, replace(optimiser, lr=optimiser.lr / slower)) as trainer:
            for _ in trainer.epochs(epochs):
                pass
            trainer.require_finite_parameters()
            return self.job.comm.bcast(trainer.parameters()), trainer.evaluate()

    @contextmanager
    def scoring(self) -> Iterator[Callable[[Parameters], Scores]]:
        """Within the block, score parameters on the test set, any number of times. Collective."""
        with self._trainer(None, None, self.options.make_optimiser()) as trainer:

            def score(parameters: Parameters) -> Scores:
                trainer.model.start(dict(parameters))
                return trainer.evaluate()

            yield score

    @contextmanager
    def _trainer(
        self, parameters: Parameters | None, constraint: Constraint | None, optimiser: Optimiser
    ) -> Iterator[Trainer]:
        names = [field.name for field in dataclasses.fields(Settings) if field.name not in _OURS]
        settings = {name: getattr(self.options, name) for name in names}
        with self.open() as runtime:
            given = self.network, optimiser, self.data, runtime, parameters, constraint
            with Trainer(*given, **settings) as trainer:
                yield trainer
