"""Runs with one checkpoint folder, for the tests of this folder."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nn.app.console import Console
from nn.app.options import Options
from nn.app.report import Report
from nn.checkpoints.stopping import Stopping
from pyrt.job import Job, join
from tests.nn.small_runs import saved
from train import train

SMALL = Options(
    hidden=(9, 7), epochs=3, batch=10, samples=45, lr=0.5, reg=0.01, momentum=0.5, val_fraction=0.2, seed=3
)
"""15 steps, of which each fifth is short."""


class Said(Console):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(speaking=False)
        self.lines: list[str] = []

    def tell(self, line: str) -> None:
        self.lines.append(line)


class Runs:
    """Runs with the same checkpoint folder, in this process."""

    def __init__(self, folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.checkpoints, self._weights = folder / "c", folder / "w.npz"
        self._monkeypatch = monkeypatch
        self.options = dataclasses.replace(SMALL, data=source, device="cpu")
        self.said = Said()

    def __call__(self, job: Job | None = None, stop: int | None = None, **changes: Any) -> Report:
        """A run without checkpoints, unless the changes say so; asked to ``stop`` after a step."""
        job, self.said = job or join(), Said()
        with self._monkeypatch.context() as patch:
            if stop is not None:
                patch.setattr(Stopping, "is_agreed", lambda stopping, step, done: step >= stop)
            try:
                return train(
                    dataclasses.replace(self.options, save=self._weights, **changes), job, None, self.said
                )
            finally:
                job.comm.barrier()

    def kept(self, **changes: Any) -> Report:
        """A run that keeps checkpoints."""
        return self(checkpoint=self.checkpoints, **changes)

    def resumed(self, **changes: Any) -> Report:
        return self.kept(resume=True, **changes)

    @property
    def steps(self) -> list[int]:
        return sorted(int(path.stem.removeprefix("step-")) for path in self.checkpoints.glob("step-*.npz"))

    @property
    def state(self) -> dict[str, Any]:
        return json.loads((self.checkpoints / "state.json").read_text())

    def file(self, step: int) -> Path:
        return self.checkpoints / f"step-{step:012d}.npz"

    def outcome(self, report: Report) -> tuple[dict[str, Any], list[tuple[object, ...]], object]:
        """All that a run can be told by, bit by bit."""
        weights = saved(self._weights)
        epochs = [(e.epoch, e.loss, e.validation_loss, e.validation_precision) for e in report.epochs]
        join().comm.barrier()
        return weights, epochs, report.test

    def clear(self) -> None:
        if join().rank == 0:
            shutil.rmtree(self.checkpoints, ignore_errors=True)
        join().comm.barrier()
