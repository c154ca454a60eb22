"""A thread that sees when this rank makes no progress, even where it hangs inside MPI and runs no Python."""

from __future__ import annotations

import threading
from collections.abc import Callable

_LOOKS = 20
"""Looks in a limit. They are counted, not seconds: while the whole process is stopped no time passes."""


class StallWatch:
    """Calls ``on_hang``, once, from its thread, when ``look`` has given the same for ``limit`` seconds.

    ``look`` gives something that changes with all that counts as progress; None while nothing is watched.
    """

    def __init__(self, look: Callable[[], object], limit: float, on_hang: Callable[[], object]) -> None:
        self._look, self._pause, self._on_hang = look, limit / _LOOKS, on_hang
        self._closed = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def close(self) -> None:
        """End the thread; safe to call twice."""
        self._closed.set()

    def _run(self) -> None:
        seen, looks = None, 0
        while not self._closed.wait(self._pause):
            before, seen = seen, self._look()
            looks = looks + 1 if seen is not None and seen == before else 0
            if looks == _LOOKS:
                self._on_hang()
                return
