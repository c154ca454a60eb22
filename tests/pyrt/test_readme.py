"""README's example of the runtime: the two pieces of code that stand there, as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.mpi import TIMEOUT, environment

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.kernels
def test_the_example_runs_as_it_is_written(tmp_path: Path) -> None:
    text = README.read_text()
    code = {
        language: re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL) for language in ("c", "python")
    }
    assert [len(pieces) for pieces in code.values()] == [1, 1]
    (tmp_path / "my_kernels").mkdir()
    (tmp_path / "my_kernels" / "scale.cu").write_text(code["c"][0])
    done = subprocess.run(
        [sys.executable, "-c", code["python"][0]],
        cwd=tmp_path,
        env=environment(),
        timeout=TIMEOUT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{2 * np.arange(1000, dtype=np.float32)}\n2048.0\n"
