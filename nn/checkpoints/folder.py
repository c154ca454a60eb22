"""The checkpoints of a run in a folder: the last ones, the best one, and state.json for scripts.

    DIR/step-000000001200.npz   ..1400.npz   state.json

state.json: ``state`` (running, preempted, finished), ``step``, ``checkpoint`` (the newest file), ``best``
(that of the highest validation precision), and that precision.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from nn.checkpoints import files
from nn.checkpoints.files import OPTION
from nn.checkpoints.state import Checkpoint
from nn.data.files import shown
from nn.files import require_writable, write_whole
from pyrt.errors import UserError

RUNNING, PREEMPTED, FINISHED = "running", "preempted", "finished"

_NAME = re.compile(r"step-(\d{12})\.npz")


class Folder:
    """Touched by one rank alone."""

    def __init__(self, path: Path, keep: int) -> None:
        self.path, self._keep = path, keep
        self._precisions: dict[int, float | None] = {}
        """Of the checkpoints that are there, by step: the validation precision."""

    def prepare(self) -> None:
        """Make the folder if need be; UserError where nothing can be written there."""
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{OPTION} {shown(self.path)}: cannot be made ({error.strerror}): name another place"
            ) from None
        require_writable(OPTION, self.path / "state.json")

    @property
    def steps(self) -> list[int]:
        """Of the files that are there, ascending."""
        found = (_NAME.fullmatch(path.name) for path in self.path.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def file(self, step: int) -> Path:
        return self.path / f"step-{step:012d}.npz"

    def newest(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest that is whole; those before which it is taken are told."""
        result = None
        for step in reversed(self.steps):
            try:
                if result is None:
                    result = files.load(self.file(step))
                    self._precisions[step] = result.story.validation_precision
                else:
                    self._precisions[step] = files.load_story(self.file(step)).validation_precision
            except UserError as error:
                warn(f"{error}; the checkpoint before it is taken")
        return result

    def begin(self, resumes: bool) -> None:
        """A run begins: state.json says so. UserError where it does not go on from checkpoints that are
        there, which are somebody's work."""
        if not resumes and self.steps:
            raise UserError(
                f"{OPTION} {shown(self.path)}: has checkpoints: go on from them with --resume, or name "
                "another folder"
            )
        self._write_state(RUNNING)

    def add(self, checkpoint: Checkpoint) -> None:
        """Write it, then remove those that are not to be kept; UserError where it cannot be written: then all
        others stay."""
        step = checkpoint.story.progress.step
        files.save(self.file(step), checkpoint)
        self._precisions[step] = checkpoint.story.validation_precision
        self._sync()
        self._write_state(RUNNING)
        kept = {*self.steps[-self._keep :], self._best}
        for old in self.steps:
            if old not in kept:
                self.file(old).unlink(missing_ok=True)
                self._precisions.pop(old, None)

    def end(self, state: str) -> None:
        """The run is over, or stopped."""
        self._write_state(state)

    @property
    def _best(self) -> int | None:
        """The step of the highest validation precision, the first of several; None where none has one."""
        known = {step: value for step, value in sorted(self._precisions.items()) if value is not None}
        return max(known, key=lambda step: known[step]) if known else None

    def _write_state(self, state: str) -> None:
        steps, best = self.steps, self._best
        content = {
            "state": state,
            "step": steps[-1] if steps else 0,
            "checkpoint": self.file(steps[-1]).name if steps else None,
            "best": self.file(best).name if best is not None else None,
            "best_validation_precision": self._precisions[best] if best is not None else None,
        }
        text = json.dumps(content, indent=1)
        write_whole(OPTION, self.path / "state.json", lambda file: file.write(f"{text}\n".encode()))

    def _sync(self) -> None:
        """The new name is on the disk too, before old files go."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
