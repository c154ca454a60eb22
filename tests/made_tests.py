"""Tests of tests: a file of them is written into a folder and run by a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.mpi import TIMEOUT, environment


def run_tests(folder: Path, conftest: str, source: str) -> tuple[int, str]:
    """Run a file of tests beside this conftest.py; its exit code, and all that it printed."""
    (folder / "conftest.py").write_text(conftest)
    (folder / "test_made.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_made.py"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    return done.returncode, done.stdout + done.stderr
