"""The checkpoints of a run in a folder: the last ones, the best one, and state.json for scripts.

    DIR/step-000000001200.npz   ..1400.npz   state.json   lock

state.json: ``state`` (running, preempted, finished), ``step``, ``checkpoint`` (the newest file), ``best``
(that of the highest validation precision), and that precision. lock: held by the run that writes
there (``lock.py``).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from nn.checkpoints import files
from nn.checkpoints.files import OPTION, OtherVersion
from nn.checkpoints.lock import Lock
from nn.checkpoints.metadata import Checkpoint, Metadata
from nn.files.read import TooLarge, reading
from nn.files.write import BEGUN, require_writable, write_whole, writing
from pyrt.errors import UserError, shown

RUNNING, PREEMPTED, FINISHED = "running", "preempted", "finished"

_NAME = re.compile(r"step-(\d{12})\.npz")
_STATE = "state.json"
_LOCK = "lock"

_CHUNK = 1 << 22
"""Bytes that are read at a time."""


class InUse(UserError):
    """Another run writes into the folder."""


class Folder:
    """Touched by one rank alone. Files that are damaged, or not its own, it leaves alone.

    Whatever writes there first makes sure that no other run does, until `close`; else it raises InUse.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self.path, self._keep = path, keep
        self._precisions: dict[int, float | None] = {}
        """Of the whole checkpoints that are there, by step: the validation precision."""
        self._lock = Lock(path / _LOCK)

    def prepare(self) -> None:
        """Make the folder if need be; UserError where nothing can be written there."""
        self._hold()
        require_writable(OPTION, self.path / _STATE)

    def require_readable(self) -> None:
        """UserError where nobody can tell which checkpoints are there."""
        self._steps()

    def require_unused(self) -> None:
        """UserError where there are checkpoints, which are somebody's work."""
        if self._steps():
            raise UserError(
                f"{OPTION} {shown(self.path)}: has checkpoints: go on from them with --resume, or name "
                "another folder"
            )

    def newest(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """Load the newest whole checkpoint, if any; warn of newer ones that are damaged.

        Raises UserError for one that cannot be read: it may be whole.
        """
        steps = self._steps()
        while steps:
            step = steps.pop()
            try:
                result = files.load(self.file(step))
                _require_step(self.file(step), result.metadata, step)
            except (OtherVersion, TooLarge):
                raise
            except UserError as error:
                _require_readable(self.file(step))
                warn(f"{error}; " + ("the one before it is taken" if steps else "there is none before it"))
                continue
            self._precisions[step] = result.metadata.validation_precision
            self._know(steps)
            return result
        return None

    def file(self, step: int) -> Path:
        return self.path / f"step-{step:012d}.npz"

    def begin(self) -> None:
        """Begin a run: remove what a killed run left half written, and note in state.json that it runs."""
        self._hold()
        with writing(OPTION, self.path):
            for name in ("step-", _STATE):
                for path in self.path.glob(f"{BEGUN}{name}*"):
                    path.unlink(missing_ok=True)
        self._write_state(RUNNING)

    def add(self, checkpoint: Checkpoint) -> None:
        """Write it, then remove those that are not to be kept; UserError where it cannot be written: then all
        others stay."""
        step = checkpoint.metadata.progress.step
        self._hold()
        files.save(self.file(step), checkpoint)
        self._precisions[step] = checkpoint.metadata.validation_precision
        with writing(OPTION, self.path):
            self._sync()
        try:
            self._write_state(RUNNING)
        except UserError:  # for want of room, perhaps, which those that go leave
            self._remove_old()
            self._write_state(RUNNING)
        else:
            self._remove_old()

    def _remove_old(self) -> None:
        """Remove all but the last ones and the best."""
        kept = {*sorted(self._precisions)[-self._keep :], self._best}
        with writing(OPTION, self.path):
            for old in self._precisions.keys() - kept:
                self.file(old).unlink(missing_ok=True)
                del self._precisions[old]

    def end(self, state: str) -> None:
        """Write the last ``state`` of the run."""
        self._hold()
        self._write_state(state)

    def close(self) -> None:
        """Other runs may write there. Safe to call twice."""
        self._lock.release()

    def _hold(self) -> None:
        """Make the folder if need be, and lock it for this run alone."""
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{OPTION} {shown(self.path)}: cannot be made ({error.strerror}): name another place"
            ) from None
        with writing(OPTION, self.path):
            is_mine = self._lock.take()
        if not is_mine:
            raise InUse(
                f"{OPTION} {shown(self.path)}: another run is writing there: give another folder or wait "
                "until it ends"
            )

    def _steps(self) -> list[int]:
        """List the steps of the files, damaged ones too, in ascending order."""
        with reading(self.path):
            if not self.path.is_dir():
                return []
            found = [_NAME.fullmatch(path.name) for path in self.path.iterdir()]
        return sorted(int(match[1]) for match in found if match)

    def _know(self, steps: list[int]) -> None:
        """List the undamaged checkpoints among these, by their metadata."""
        for step in steps:
            try:
                metadata = files.load_metadata(self.file(step))
                _require_step(self.file(step), metadata, step)
                self._precisions[step] = metadata.validation_precision
            except UserError:
                continue

    def _forget_removed(self) -> None:
        """Checkpoints that somebody else has removed, to make room perhaps, are none any more."""
        with writing(OPTION, self.path):
            there = {step: one for step, one in self._precisions.items() if self.file(step).exists()}
        self._precisions = there

    @property
    def _best(self) -> int | None:
        """The step of the highest validation precision, the first of several; None where none has one."""
        known = {step: value for step, value in sorted(self._precisions.items()) if value is not None}
        return max(known, key=lambda step: known[step]) if known else None

    def _write_state(self, state: str) -> None:
        self._forget_removed()
        newest, best = max(self._precisions, default=None), self._best
        content = {
            "state": state,
            "step": newest or 0,
            "checkpoint": self.file(newest).name if newest is not None else None,
            "best": self.file(best).name if best is not None else None,
            "best_validation_precision": self._precisions[best] if best is not None else None,
        }
        text = json.dumps(content, indent=1)
        write_whole(OPTION, self.path / _STATE, lambda file: file.write(f"{text}\n".encode()))

    def _sync(self) -> None:
        """Sync the folder, so that the new name is on disk before old files go."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_own_file(folder: Path, path: Path) -> bool:
    """Return whether a run that keeps its checkpoints in the folder writes the file at ``path`` by itself."""
    real = Path(os.path.realpath(path))  # what is written goes through links
    is_there = real.parent == Path(os.path.realpath(folder))
    return is_there and (real.name in (_STATE, _LOCK) or _NAME.fullmatch(real.name) is not None)


def _require_step(path: Path, metadata: Metadata, step: int) -> None:
    """UserError for a file that somebody has given the name of another step."""
    if metadata.progress.step != step:
        raise UserError(f"{shown(path)}: is of step {metadata.progress.step}, whatever its name says")


def _require_readable(path: Path) -> None:
    """UserError where not all bytes of a file can be read, so that nobody can tell whether it is damaged."""
    try:
        if path.is_file():  # a pipe would be waited for
            with path.open("rb") as file:
                while file.read(_CHUNK):
                    pass
    except OSError as error:
        raise UserError(
            f"{shown(path)}: cannot be read ({error.strerror}): mend that or, to go on from the one before, "
            "move it away"
        ) from None
