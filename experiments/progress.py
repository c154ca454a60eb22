"""The progress of a study, for people who wait: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event, Lock, Thread
from types import TracebackType

from tqdm import tqdm

from experiments.study import Point, amount

PERIOD = 5.0
"""Seconds between two lines that are told when a point is done."""

PATIENCE = 20.0
"""Seconds after which a line tells what is being measured, where no point is done meanwhile."""


class Progress:
    """Tells of points as they are done and, from a thread, while one takes long."""

    def __init__(self, name: str, missing: Sequence[Point], kept: int) -> None:
        """``kept``: points that were there before."""
        self._name, self._missing, self._done = name, missing, 0
        self._bar = tqdm(
            total=kept + len(missing), initial=kept, desc=name, unit="point", leave=False, disable=None
        )
        self._started = self._told = time.perf_counter()
        self._lock, self._over = Lock(), Event()

    def __enter__(self) -> Progress:
        if self._missing:
            if self._bar.disable:
                points = amount(len(self._missing), "point")
                print(f"{self._name:12s} {points} to measure", flush=True)
            Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._bar.close()

    def passed(self) -> None:
        """Note that the next point is done."""
        with self._lock:
            self._done += 1
            self._bar.update()
            self._tell_after(PERIOD)

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, PATIENCE)):
            with self._lock:
                self._bar.refresh()
                self._tell_after(PATIENCE)

    def _tell_after(self, period: float) -> None:
        now = time.perf_counter()
        if not self._bar.disable or now - self._told < period:
            return
        self._told, count = now, len(self._missing)
        line = f"{self._name:12s} {self._done} of {count} points after {now - self._started:.0f} s"
        if self._done < count:
            line += f"; now {described(self._missing[self._done])}"
        print(line, flush=True)


def described(point: Point) -> str:
    """Describe a point in a few words: its columns that say something."""
    words = [f"{name} {value}" for name, value in point.items() if value not in (None, "")]
    return ", ".join(words)[:100]
