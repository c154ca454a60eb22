"""What a checkpoint holds, and whether a run may go on from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nn.files.digest import digest
from nn.input import Dataset
from nn.input.schedule import Schedule
from nn.model.network import Network
from nn.optimisers.base import Optimiser, rates_of
from nn.problem.progress import Progress
from pyrt.errors import UserError, shown

_SAME = (
    *("hidden", "activation", "net", "head", "batch", "optimiser", "dtype"),
    *("samples", "classes", "val_fraction", "val_split", "shuffle", "seed", "augment", "pixel_scale"),
)
"""Options that decide, like the optimiser's rates, which network is trained, on which batches. A checkpoint
that lacks one is older than the option, and was made with its default then."""

_OLDER_DEFAULTS = {"augment": None, "classes": None, "net": None, "val_split": "tail", "optimiser": "sgd"}
"""The defaults of options that checkpoints may lack."""

_OLDER = (
    " (it is of an older version, which rounded float64 pixels and held out 28 of 100 rows at --val-fraction "
    "0.29: go on with that version if this is why)"
)
"""The same data are other data to checkpoints from before --val-split."""


@dataclass(frozen=True)
class Metadata:
    """All of a checkpoint but its arrays, in types that JSON has."""

    progress: Progress
    validation_precision: float | None
    """Of these parameters."""
    options: dict[str, Any]
    environment: dict[str, Any]
    """What it ran on: ranks, devices, versions, revision, and what was chosen: exchange, plan."""
    plan: dict[str, Any]
    """As nn/parallel/plan_files.py writes it."""
    data: str
    """Digest of what is trained on, and of what validates: `digest_of_data`."""
    initial: str
    """Digest of the parameters of --init at step 0; empty where they were drawn from the seed."""

    def require_fits(
        self, now: Mapping[str, Any], optimiser: Optimiser, schedule: Schedule, data: str
    ) -> None:
        """UserError where this run would train another network, or with other samples, or not so far.

        ``now`` is the description of this run.
        """
        for name in (*_SAME, *rates_of(optimiser)):
            kept, asked = self.options.get(name, _OLDER_DEFAULTS.get(name)), now[name]
            if kept != asked:
                raise UserError(
                    f"--resume: the checkpoint was made {_words(name, kept)}, this run is "
                    f"{_words(name, asked)}: give the same, or another --checkpoint folder"
                )
        if self.data != data:
            older = "" if "val_split" in self.options else _OLDER
            raise UserError(
                "--resume: the checkpoint was made with other training or validation data: give the same "
                f"--data, or another --checkpoint folder{older}"
            )
        step, epochs = self.progress.step, self.progress.epochs
        if step > schedule.steps:
            raise UserError(
                f"--resume: the checkpoint is of step {step}, and --epochs {schedule.epochs} end at "
                f"{schedule.steps}: give more of them, or another --checkpoint folder"
            )
        if len(epochs) != schedule.epoch(step):
            raise UserError(f"--resume: the checkpoint is of step {step}, but tells of {len(epochs)} epochs")

    def require_start(self, initial: str) -> None:
        """UserError where the training did not begin at these parameters; for what trains all of it again."""
        if self.initial != initial:
            raise UserError(
                "--resume: the training did not begin at the parameters with which --check would: give the "
                "same --init, or none if there was none, or leave out --check"
            )

    def is_of(self, ranks: int, nodes: int, devices: list[str]) -> bool:
        """Return whether as many ranks and nodes with the same devices made it: its choices serve here."""
        here = {"ranks": ranks, "nodes": nodes, "devices": devices}
        return all(self.environment.get(name) == value for name, value in here.items())

    def chose(self, option: str) -> bool:
        """Return whether the run that made it was to choose this option by itself."""
        return self.options.get(option) == "auto"


@dataclass(frozen=True)
class Checkpoint:
    """Metadata, whole parameters W1, b1, .., and the states of the optimiser, each under the same names."""

    metadata: Metadata
    parameters: dict[str, np.ndarray]
    states: dict[str, dict[str, np.ndarray]]

    def require_arrays(self, network: Network, dtype: str, states: Sequence[str]) -> None:
        """UserError unless its arrays are those of this network and optimiser, in this dtype."""
        wanted = {name: (shape, np.dtype(dtype)) for name, shape in network.shapes.items()}
        if _described(self.parameters) != wanted:
            raise UserError(f"--resume: the checkpoint's parameters are not those of {network} in {dtype}")
        found = {name: _described(arrays) for name, arrays in self.states.items()}
        if found != dict.fromkeys(states, wanted):
            raise UserError(
                f"--resume: the checkpoint's states of the optimiser are not those of {network} in {dtype}"
            )


def _described(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    return {name: (array.shape, array.dtype) for name, array in arrays.items()}


def digest_of_data(dataset: Dataset, used: int, held_out: int) -> str:
    """Return the digest of the training and validation samples, images and labels.

    The first ``used`` rows are trained on, those from ``held_out`` on validate. The test set changes nothing
    in a checkpoint, and may be another one.
    """
    images, labels = dataset.images, dataset.labels
    return digest([images[:used], labels[:used], images[held_out:], labels[held_out:]])


def _words(name: str, value: object) -> str:
    """Show an option as people give it."""
    word = name.replace("_", "-")
    if isinstance(value, bool):
        return f"with --{word}" if value else f"with --no-{word}"
    if value is None:
        return f"without --{word}"
    given = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"with --{word} {shown(given):.80}"
