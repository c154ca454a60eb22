"""What a checkpoint holds, and whether a run may go on from it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from nn.data import Dataset
from nn.options import Options
from nn.progress import Progress
from pyrt.errors import UserError

_SAME = (
    *("hidden", "activation", "head", "reg", "batch", "lr", "momentum", "dtype"),
    *("samples", "val_fraction", "shuffle", "seed", "pixel_scale"),
)
"""Options without which another network would be trained, or on other batches."""


@dataclass(frozen=True)
class Story:
    """All of a checkpoint but its arrays, in types that JSON has."""

    progress: Progress
    validation_precision: float | None
    """Of these parameters."""
    options: dict[str, Any]
    environment: dict[str, Any]
    """What it ran on: ranks, devices, versions, and what was chosen: exchange, plan."""
    plan: dict[str, Any]
    """As nn/plan/files.py writes it."""
    data: str
    """Digest of the training set: `digest`."""

    def require_fits(self, options: Options, data: str) -> None:
        """UserError where this run would train another network, or with other samples."""
        now = options.as_json()
        for name in _SAME:
            kept, asked = self.options.get(name), now[name]
            if kept != asked:
                flag = f"--{name.replace('_', '-')}"
                raise UserError(
                    f"--resume: the checkpoint was made with {flag} {_words(kept)}, not {_words(asked)}: "
                    "give it again, or another --checkpoint folder"
                )
        if self.data != data:
            raise UserError(
                "--resume: the checkpoint was made with other training data: give the same --data, or "
                "another --checkpoint folder"
            )

    def is_of(self, ranks: int, devices: list[str]) -> bool:
        """Whether it was made by so many ranks on such devices: what was chosen there serves here."""
        return self.environment.get("ranks") == ranks and self.environment.get("devices") == devices


@dataclass(frozen=True)
class Checkpoint:
    """A story with whole parameters W1, b1, .., and their velocities under the same names, if any."""

    story: Story
    parameters: dict[str, np.ndarray]
    velocity: dict[str, np.ndarray]


def digest(dataset: Dataset, rows: int) -> str:
    """SHA-256 of the first ``rows`` images and labels: those that are trained on."""
    found = hashlib.sha256()
    for array in (dataset.images[:rows], dataset.labels[:rows]):
        found.update(f"{array.shape} {array.dtype}".encode())
        found.update(np.ascontiguousarray(array).view(np.uint8).data)
    return found.hexdigest()


def _words(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
