"""Rank 0 writes a checkpoint beside the training: a disk is slower than all the rest."""

from __future__ import annotations

from functools import partial

from nn.checkpoints.folder import Folder
from nn.checkpoints.metadata import Checkpoint
from pyrt.errors import UserError
from pyrt.workers import Worker


class Writer:
    """One checkpoint at a time, by a thread."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._worker = Worker()
        self._is_busy = False

    def start(self, checkpoint: Checkpoint) -> None:
        """Have it written; the one before has been waited for."""
        self._is_busy = True
        self._worker.start(partial(self.folder.add, checkpoint))

    def wait(self) -> str:
        """Why what was started could not be written; empty where it was, or nothing was started."""
        if not self._is_busy:
            return ""
        self._is_busy = False
        try:
            self._worker.wait()
        except UserError as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Wait until the snapshot is written."""
        self._worker.close()
