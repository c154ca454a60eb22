"""The exception whose message is meant for the person who started the program, what goes into it, and the
errors of Python's own that this person can mend, too.
"""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

TOO_FEW_FILES = "this process may have {} open files, too few: raise that limit, as by `ulimit -n 1024`"


class UserError(Exception):
    """A mistake in what the user gave: what is wrong and what to do, in one line.

    The command line prints it as ``train.py: error: ...`` without a traceback and exits with ``code``
    on every rank. Everything else that is raised is a bug and keeps its traceback.
    """

    code = 2


def shown(text: str | Path) -> str:
    """Return a path, or another text of the user's, in a form that fits a message of one line."""
    text = str(text)
    return text if text.isprintable() else ascii(text)[1:-1]


def out_of_files(error: BaseException) -> str:
    """Return the line for an error that means that no more files can be opened; empty for others.

    The dynamic linker's errors say so in their text alone.
    """
    number = getattr(error, "errno", None)
    told = number is None and str(error).endswith(os.strerror(errno.EMFILE))
    if number != errno.EMFILE and not told:
        return ""
    return TOO_FEW_FILES.format(files_limit())


def files_limit() -> int:
    """Return how many files this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def mended_by_user(error: BaseException) -> str:
    """Return the line for an error that the user can mend, UserError or not; empty for a bug."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"not enough memory on the host: use smaller sizes or more nodes ({error})"
    return out_of_files(error) if isinstance(error, (OSError, ImportError)) else ""
