"""The steps of compression: rounds of pruning, each followed by training, then weights that share values."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nn.compress.codebook import cluster
from nn.compress.options import SLOWER_SHARED, Wanted
from nn.compress.prune import prune_below_deviation, prune_share, share_after
from nn.compress.retraining import Parameters, Retraining
from nn.files import parameters as files
from nn.model.constraint import NO_VALUE, Constraint
from nn.train.evaluation import Scores
from pyrt.errors import UserError, shown


@dataclass(frozen=True)
class Step:
    """Keeps what a step left: its name, the parameters, their accuracy on the test set and their loss."""

    name: str
    parameters: Parameters
    accuracy: float
    loss: float

    @property
    def line(self) -> str:
        """Say how good the network is, and how many of its weights are left."""
        weights = [array for name, array in self.parameters.items() if name.startswith("W")]
        kept = sum(map(np.count_nonzero, weights)) / sum(array.size for array in weights)
        error = 100 * (1 - self.accuracy)
        return (
            f"{self.name:24}  kept {100 * kept:6.2f}% of weights, error {error:5.2f}%, loss {self.loss:.4f}"
        )

    @classmethod
    def of(cls, name: str, parameters: Parameters, scores: Scores) -> Step:
        return cls(name, parameters, scores.precision, scores.loss)


class Compression:
    """Makes a network light, step by step."""

    def __init__(self, wanted: Wanted, retraining: Retraining) -> None:
        """Raises UserError where lists do not fit the network, or the plan does not fit what is wanted."""
        network = retraining.network
        self._wanted, self._retraining, self._network = wanted, retraining, network
        self._shares, self._qualities = wanted.shares_of(network), wanted.qualities_of(network)
        self._bits = wanted.bits_of(network)
        if any(self._bits.values()) and retraining.options.plan != "data":
            raise UserError(
                f"--plan {shown(retraining.options.plan)}: weights that share values must be whole on each "
                "rank: leave it out, or give --bits 0"
            )

    @property
    def steps(self) -> list[Callable[[Parameters], Step]]:
        """List the steps in order, each from parameters to what it leaves. Each is collective."""
        prunes = self._qualities or any(self._shares.values())
        steps: list[Callable[[Parameters], Step]] = []
        if prunes:
            steps += [partial(self._prune, number) for number in range(1, self._wanted.rounds + 1)]
        if any(self._bits.values()):
            steps.append(self._share)
        return steps

    def _prune(self, number: int, given: Parameters) -> Step:
        """Prune each layer once more, and train what is left."""
        pruned = dict(given)
        for layer in self._network.numbers:
            pruned[f"W{layer}"] = self._pruned(given[f"W{layer}"], layer, number)
        name, epochs = f"pruned, round {number} of {self._wanted.rounds}", self._wanted.retrain_epochs
        return Step.of(name, *self._retraining.train(pruned, Constraint(), epochs))

    def _pruned(self, W: np.ndarray, layer: int, number: int) -> np.ndarray:
        if self._qualities is not None:
            return prune_below_deviation(W, self._qualities[layer])
        return prune_share(W, share_after(number, self._wanted.rounds, self._shares[layer]))

    def _share(self, given: Parameters) -> Step:
        """Let the weights of each layer share few values, and train these."""
        shared, codes = dict(given), {}
        for layer, bits in self._bits.items():
            W = given[f"W{layer}"]
            if bits and W.any():
                values = (1 << bits) - (not W.all())  # one code is that of a filler
                shared[f"W{layer}"], codes[layer] = share(W, max(1, values), self._wanted.start)
        epochs = self._wanted.share_epochs
        return Step.of("shared", *self._retraining.train(shared, Constraint(codes), epochs, SLOWER_SHARED))


def share(W: np.ndarray, values: int, start: str) -> tuple[np.ndarray, np.ndarray]:
    """Let the weights that are not 0 share so many values; return the new weights, and the code of each."""
    left = W != 0
    codebook, mine = cluster(W[left], values, start)
    codes = np.full(W.shape, NO_VALUE, np.int32)
    codes[left] = mine
    result = W.copy()
    result[left] = codebook[mine]
    return result, codes


class Progress:
    """Keeps the newest step in a file, for a run that goes on."""

    def __init__(self, path: Path, told: dict[str, Any]) -> None:
        """``told`` is what both runs must have been given."""
        self.path = path
        self._told: dict[str, Any] = json.loads(json.dumps(told))

    def keep(self, steps: list[Step]) -> None:
        """Write the parameters of the last step, and the scores of all."""
        scores = [(step.name, step.accuracy, step.loss) for step in steps]
        files.save(self.path, steps[-1].parameters, {"compression": self._told, "steps": scores})

    def read(self, retraining: Retraining) -> list[Step]:
        """Return the steps that are over, the last with its parameters; none without a file.

        Raises UserError for a file of another compression.
        """
        if not self.path.exists():
            return []
        run = files.run_metadata(self.path)
        if run.get("compression") != self._told:
            raise UserError(
                f"--resume: {shown(self.path)} is of other options or another network: give the same, or "
                "remove it"
            )
        parameters = files.load(self.path, retraining.network, "float32")
        return [Step(name, parameters, accuracy, loss) for name, accuracy, loss in run["steps"]]
