"""bench/checkpoints.py: which steps count as slowed down, the arithmetic of the table, a run of it."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest

from bench import checkpoints
from bench.checkpoints import Case, Measured, measure, options_of, steps_apart, table, watched_writing
from nn.checkpoints.folder import Folder
from pyrt.errors import UserError
from pyrt.job import join
from tests import few
from tests.mpi import mpirun

MEASURED = Measured("784-4-10", 3190, 25_520, 0.002, 0.0025, 0.005, 0.06, 1.5)
SMALL = Case((4,), 10, 2, 3)


def test_epochs_within_a_writing_are_told_from_those_between() -> None:
    """Whole seconds, of 10 steps; one epoch each begins and ends a writing, and is in neither."""
    epochs = [(0.0, 1.0), (1.0, 3.0), (3.0, 5.0), (5.0, 8.0), (8.0, 9.0), (9.0, 12.0)]
    idle, busy = steps_apart(epochs, [(2.0, 8.0)], 10)
    assert busy == pytest.approx((2 + 3) / 2 / 10)
    assert idle == pytest.approx((1 + 1 + 3) / 3 / 10)


def test_a_writing_may_end_within_the_epoch_that_it_begins_in() -> None:
    assert steps_apart([(0.0, 1.0), (1.0, 2.0)], [(0.25, 0.75)], 1) == (1.0, None)
    assert steps_apart([(0.0, 1.0)], [(-1.0, 2.0)], 1) == (None, 1.0)


def test_share_is_the_snapshot_and_what_steps_lose_in_a_minute() -> None:
    assert MEASURED.slowdown == pytest.approx(2.0)
    assert MEASURED.share == pytest.approx((0.06 + 1.5) / 60)
    assert dataclasses.replace(MEASURED, busy=None).share is None
    assert dataclasses.replace(MEASURED, idle=None).share is None


def test_the_table_has_the_units_that_it_names() -> None:
    unknown = dataclasses.replace(MEASURED, idle=None, busy=None)
    header, _, row, other = table([MEASURED, unknown]).splitlines()
    assert re.split("  +", header.strip())[2:] == [
        *("MB", "step ms", "between ms", "writing ms", "slowdown", "snapshot ms", "written in s", "share %")
    ]
    assert row.split()[:3] == ["784-4-10", "3,190", "0.0"]
    assert row.split()[3:] == ["2.000", "2.500", "5.000", "2.00", "60.0", "1.500", "2.600"]
    assert other.split()[3:] == ["2.000", "-", "-", "-", "60.0", "1.500", "-"]


def test_both_runs_are_the_same_but_for_checkpoints(tmp_path: Path) -> None:
    without, within = options_of(SMALL, "cpu", None), options_of(SMALL, "cpu", tmp_path)
    assert within.checkpoint == tmp_path and within.steps_between_checkpoints(SMALL.steps) == 6
    kept = {name: getattr(without, name) for name in ("checkpoint", "checkpoint_every", "keep")}
    assert dataclasses.replace(within, **kept) == without


def test_what_is_measured_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add, written = Folder.add, []
    monkeypatch.setattr(Folder, "add", lambda *arguments: (written.append(arguments), add(*arguments)))
    found = measure(join(), SMALL, "cpu", tmp_path / "c")
    assert found is not None and found.network == "784-4-10" and found.parameters == 3190
    (file,) = (tmp_path / "c").glob("step-*.npz")
    assert found.nbytes == file.stat().st_size > 2 * 4 * 3190
    assert len(written) == checkpoints.CHECKPOINTS + 1  # and one at the end
    assert min(found.plain, found.snapshot, found.writing) > 0


def test_writing_is_watched_within_the_block_alone() -> None:
    add = Folder.add
    with watched_writing() as spans:
        assert Folder.add is not add
    assert Folder.add is add and spans == []


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    measure(join(), SMALL, "cpu", tmp_path)
    (file,) = tmp_path.glob("step-*.npz")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        checkpoints.checked_size(tmp_path)


COMMAND = [sys.executable, "bench/checkpoints.py", "--device", "cpu", "--folder"]


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_program(tmp_path: Path, ranks: int) -> None:
    done = mpirun(ranks, *COMMAND, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{ranks} rank(s), cpu, checkpoints in {tmp_path}\n")
    assert len(re.findall("^784-", done.stdout, re.M)) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ranks", few([2], of=[1, 2]))
def test_a_folder_that_is_missing_is_refused(tmp_path: Path, ranks: int) -> None:
    refused = mpirun(ranks, *COMMAND, str(tmp_path / "missing"))
    assert refused.returncode == 2
    (line,) = (line for line in refused.stderr.splitlines() if "error:" in line)
    assert line == f"checkpoints.py: error: --folder {tmp_path}/missing: is no folder"
