"""The one exception whose message is meant for the person who started the program, and what goes into it."""

from __future__ import annotations

from pathlib import Path


class UserError(Exception):
    """A mistake in what the user gave: what is wrong and what to do, in one line.

    The command line prints it as ``train.py: error: ...`` without a traceback and exits with ``code``
    on every rank. Everything else that is raised is a bug and keeps its traceback.
    """

    code = 2


def shown(text: str | Path) -> str:
    """A path, or what else the user gave, as it goes into a message of one line, whatever is in it."""
    text = str(text)
    return text if text.isprintable() else ascii(text)[1:-1]
