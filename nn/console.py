"""What a run says while it goes on: lines, and a progress bar where a person watches."""

from __future__ import annotations

import sys

from tqdm import tqdm

from pyrt.started import launched_from_terminal


class Console:
    """Prints on the rank that is given ``speaking``; silent elsewhere."""

    def __init__(self, speaking: bool) -> None:
        self.speaking = speaking

    def say(self, line: str) -> None:
        """Print a line, above the progress bar where there is one."""
        if self.speaking:
            tqdm.write(line, file=sys.stdout)
            sys.stdout.flush()

    def bar(self, steps: int) -> tqdm:
        """A progress bar over ``steps``, on a terminal; elsewhere the lines alone."""
        hidden = not (self.speaking and launched_from_terminal())
        return tqdm(total=steps, unit="step", disable=hidden, leave=False, dynamic_ncols=True)
