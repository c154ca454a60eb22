"""What the tests of the network share."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """A rank that waits for another for ever ends here, with its traceback, and mpirun ends the others."""
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
