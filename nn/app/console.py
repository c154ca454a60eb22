"""What a run says while it goes on: lines, and a progress bar where a person watches."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from pyrt.job.process_times import launched_from_terminal, terminal_columns
from pyrt.log import log


class Console:
    """Prints on the rank that is given ``speaking``; silent elsewhere."""

    def __init__(self, speaking: bool, quiet: bool = False) -> None:
        """``quiet``: warnings and what is told alone are printed."""
        self.speaking, self.quiet = speaking, quiet

    def say(self, line: str) -> None:
        """Print a line unless the console is quiet."""
        if not self.quiet:
            self.tell(line)

    def warn(self, line: str) -> None:
        """Print a warning."""
        self.tell(f"warning: {line}")

    def tell(self, line: str) -> None:
        """Print a line, above the progress bar where there is one."""
        if self.speaking:
            tqdm.write(line, file=sys.stdout)
            sys.stdout.flush()

    def bar(self, steps: int) -> tqdm:
        """Make a progress bar over ``steps``: hidden if quiet or silent, or without a terminal."""
        hidden = self.quiet or not (self.speaking and launched_from_terminal())
        return tqdm(total=steps, unit="step", disable=hidden, leave=False, dynamic_ncols=True)

    @contextmanager
    def saying_log(self) -> Iterator[None]:
        """Within the block, say what pyrt and nn log: what it is that takes long."""
        handler, level = _Saying(self), log.level
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.setLevel(level)
            log.removeHandler(handler)

    @property
    def width(self) -> int | None:
        """Characters in a line of the terminal that is printed to; None where it is none."""
        try:
            return terminal_columns(sys.stdout.fileno())
        except OSError:  # it is no file: a test's
            return None


class _Saying(logging.Handler):
    """Says a log's lines on a console."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.say(record.getMessage())
