"""Checkpoints that tests make, damage, and compare; disks that fail."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nn.app.options import Options
from nn.checkpoints import files
from nn.checkpoints.metadata import Checkpoint, Metadata
from nn.input.schedule import Schedule
from nn.model.network import Network
from nn.problem.progress import Epoch, Progress

NETWORK = Network.dense((4, 3, 2), "sigmoid", "softmax")
BATCHES = 5
"""Steps of an epoch."""


def made(
    step: int,
    precision: float | None = None,
    dtype: str = "float32",
    states: Sequence[str] = ("v",),
    **options: Any,
) -> Checkpoint:
    """A checkpoint after so many steps, of random parameters and states of an optimiser."""
    rng = np.random.default_rng(step)
    parameters, *kept = (
        {name: rng.standard_normal(shape).astype(dtype) for name, shape in NETWORK.shapes.items()}
        for _ in range(1 + len(states))
    )
    epochs = [Epoch(number + 1, 0.1 * number, 0.5, None, 2.5) for number in range(step // BATCHES)]
    metadata = Metadata(
        Progress(step, epochs, 0.1 + 0.2),
        precision,
        Options(**options).as_json(),
        {"ranks": 2, "nodes": 1, "devices": ["one", "one"]},
        {"grid": [2, 1], "layers": ["samples", "samples"]},
        "digest",
        "",
    )
    return Checkpoint(metadata, parameters, dict(zip(states, kept, strict=True)))


def require_fits(metadata: Metadata, now: Options, schedule: Schedule, data: str) -> None:
    metadata.require_fits(now.as_json(), now.make_optimiser(), schedule, data)


def equal(one: Checkpoint, other: Checkpoint) -> bool:
    """Bit by bit."""
    return one.metadata == other.metadata and all_bits(one) == all_bits(other)


def all_bits(checkpoint: Checkpoint) -> list[object]:
    """Of its parameters and states."""
    states = {name: bits(arrays) for name, arrays in checkpoint.states.items()}
    return [bits(checkpoint.parameters), states]


def bits(arrays: dict[str, np.ndarray]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """The system lets no file grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def rewrite(path: Path, checkpoint: Checkpoint, epochs: np.ndarray | None = None, **changes: object) -> None:
    """The checkpoint, its arrays with their checksums, a text with these changes, perhaps other epochs."""
    files.save(path, checkpoint)
    with np.load(path) as file:
        members = dict(file)
    members["epochs"] = epochs if epochs is not None else members["epochs"]
    members["run"] = np.array(json.dumps({**json.loads(str(members["run"])), **changes}))
    np.savez(path, **members)


def failing(number: int) -> Callable[..., None]:
    """A system call that fails so."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail
