"""One run at a time writes into a folder: it holds a file there locked for as long as it lasts.

The system lets go of the lock when the process ends, however it ends: a job that was killed can start again
at once. Programs that the process starts do not inherit the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""What file systems answer that have none: a run there goes on without."""


class Lock:
    """Of one file, which stays when it is let go: who removed it would take it from the next one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def take(self) -> bool:
        """Lock the file for this run; return False if another run holds it.

        Locks it anew if the file is no longer at its path, as after its folder was removed. Raises OSError if
        the file cannot be opened or locked.
        """
        if self._is_held():
            return True
        self.release()
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(handle)
                raise
        self._handle = handle
        return True

    def release(self) -> None:
        """Safe to call twice."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _is_held(self) -> bool:
        if self._handle is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._handle), os.stat(self._path))
        except OSError:
            return False
