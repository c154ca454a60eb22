"""Checkpoints that tests make, damage, and compare; disks that fail."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nn.checkpoints import files
from nn.checkpoints.state import Checkpoint, Story
from nn.network import Network
from nn.options import Options
from nn.progress import Epoch, Progress

NETWORK = Network((4, 3, 2), "sigmoid", "softmax")
BATCHES = 5
"""Steps of an epoch."""


def made(step: int, precision: float | None = None, dtype: str = "float32", **options: Any) -> Checkpoint:
    """A checkpoint after so many steps, of random parameters and velocities."""
    rng = np.random.default_rng(step)
    arrays = [
        {name: rng.standard_normal(shape).astype(dtype) for name, shape in NETWORK.shapes.items()}
        for _ in range(2)
    ]
    epochs = [Epoch(number + 1, 0.1 * number, 0.5, None, 2.5) for number in range(step // BATCHES)]
    story = Story(
        Progress(step, epochs, 0.1 + 0.2),
        precision,
        Options(**options).as_json(),
        {"ranks": 2, "nodes": 1, "devices": ["one", "one"]},
        {"grid": [2, 1], "layers": ["samples", "samples"]},
        "digest",
        "",
    )
    return Checkpoint(story, *arrays)


def equal(one: Checkpoint, other: Checkpoint) -> bool:
    """Bit by bit."""
    pairs = ((one.parameters, other.parameters), (one.velocity, other.velocity))
    return one.story == other.story and all(bits(a) == bits(b) for a, b in pairs)


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
