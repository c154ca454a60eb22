"""What checkpoints cost a training: the snapshot that steps wait for, and steps while a file is written.

    mpirun -n 2 python3 bench/checkpoints.py [--device cpu] [--folder DIR]

Each network is trained as `train.py` does, with momentum: without checkpoints, then with some of them, which
are really written, to a temporary folder in DIR (one in memory, a tmpfs, tells nothing of a disk). Steps
while rank 0 writes are timed apart from those between: the thread that writes takes a core, memory bandwidth
and the interpreter's lock. Share is what one checkpoint a minute takes of the training's time: the snapshot,
and what steps are slower while it is written; where that takes longer than a minute, waiting for it comes on
top. The last file is read back and its checksums compared.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tabulate import tabulate

from nn.app.console import Console
from pyrt.arguments import Parser
from pyrt.errors import UserError
from pyrt.job import Job, run

if TYPE_CHECKING:  # at run time only once MPI has started: they load NumPy
    from nn.app.options import Options
    from nn.checkpoints.metadata import Checkpoint

MINUTE = 60.0
"""Seconds between two checkpoints, for the share."""

CHECKPOINTS = 4
"""Of a run."""

WARM_UP = 2
"""Epochs that do not count: graphs are made, clocks rise."""


class Case(NamedTuple):
    """A network with these hidden layers, and its training."""

    hidden: tuple[int, ...]
    batch: int
    steps: int
    """Of an epoch, the shortest time that is looked at: a few of them have to fit into a writing."""
    epochs: int
    """Between two checkpoints: long enough for some epochs after the writing."""


CASES = {
    "cuda": (Case((1024, 256), 3000, 40, 100), Case((9600, 9600), 3000, 4, 60)),
    "cpu": (Case((64,), 50, 4, 20), Case((1000, 500), 20, 1, 25)),
}
"""About 1 and 100 million parameters; on the CPU 50,000 and 1.3 million."""

Span = tuple[float, float]
"""Start and end, by this process's ``time.perf_counter()``."""


class Watch(Console):
    """A console that prints nothing: it notes when epochs end."""

    def __init__(self) -> None:
        super().__init__(speaking=False)
        self.ends: list[float] = []

    def say(self, line: str) -> None:
        if line.startswith("epoch"):
            self.ends.append(time.perf_counter())

    @property
    def epochs(self) -> list[Span]:
        """Those that count."""
        return list(pairwise(self.ends[WARM_UP - 1 :]))


@contextmanager
def watched_writing() -> Iterator[list[Span]]:
    """Collect the times at which this rank writes checkpoints within the block."""
    from nn.checkpoints.folder import Folder

    spans: list[Span] = []
    add = Folder.add

    def timed(folder: Folder, checkpoint: Checkpoint) -> None:
        start = time.perf_counter()
        add(folder, checkpoint)
        spans.append((start, time.perf_counter()))

    with patch.object(Folder, "add", timed):
        yield spans


@dataclass(frozen=True)
class Measured:
    """What rank 0 has seen; seconds, those of steps and checkpoints are means."""

    network: str
    parameters: int
    nbytes: int
    """Of a checkpoint's file."""
    plain: float
    """A step of the run without checkpoints."""
    idle: float | None
    """A step between two writings; None where there was no time between them."""
    busy: float | None
    """A step while a checkpoint is written; None where an epoch takes longer than that."""
    snapshot: float
    """What steps wait for each time."""
    writing: float

    @property
    def slowdown(self) -> float | None:
        """Of steps while a checkpoint is written."""
        return self.busy / self.idle if self.busy is not None and self.idle is not None else None

    @property
    def share(self) -> float | None:
        """Of the time, with one checkpoint a minute."""
        if self.slowdown is None:
            return None
        return (self.snapshot + (self.slowdown - 1) * self.writing) / MINUTE


def steps_apart(
    epochs: Sequence[Span], writings: Sequence[Span], steps: int
) -> tuple[float | None, float | None]:
    """Seconds of a step between writings and within one, means over the epochs that lie there whole.

    An epoch with a snapshot is in neither: the writing begins in it.
    """
    idle, busy = [], []
    for start, end in epochs:
        if any(first <= start and end <= last for first, last in writings):
            busy.append((end - start) / steps)
        elif not any(start < last and first < end for first, last in writings):
            idle.append((end - start) / steps)
    return _mean(idle), _mean(busy)


def _mean(seconds: Sequence[float]) -> float | None:
    return statistics.mean(seconds) if seconds else None


def options_of(case: Case, device: str, folder: Path | None) -> Options:
    """Return options of a run with checkpoints in that folder; None: as long, without any."""
    from nn.app.options import Options

    return Options(
        hidden=case.hidden,
        batch=case.batch,
        samples=case.batch * case.steps,
        epochs=WARM_UP + CHECKPOINTS * case.epochs,
        lr=1e-4,  # so small that no network diverges: it is time that is measured
        momentum=0.9,
        val_fraction=0.0,
        print_every=case.steps,  # so that an epoch's end is told when it is there, not some steps later
        device=device,
        share_gpus=True,
        checkpoint=folder,
        checkpoint_every=f"{case.epochs}ep" if folder is not None else Options.checkpoint_every,
        keep=1 if folder is not None else Options.keep,
    )


def measure(job: Job, case: Case, device: str, folder: Path) -> Measured | None:
    """Train without checkpoints, then with them in that folder; on rank 0 what it has seen. Collective.

    Raises UserError, on all ranks, where what was written is no good checkpoint.
    """
    from nn.checkpoints.checkpointer import SNAPSHOT
    from train import train

    without, within = Watch(), Watch()
    train(options_of(case, device, None), job, console=without)
    with watched_writing() as writings:
        report = train(options_of(case, device, folder), job, console=within)
    with job.agree():
        nbytes = checked_size(folder) if job.rank == 0 else 0
    if job.rank > 0:
        return None
    (start, _), *_, (_, end) = without.epochs
    plain = (end - start) / (len(without.epochs) * case.steps)
    idle, busy = steps_apart(within.epochs, writings, case.steps)
    snapshot, writing = report.phase(SNAPSHOT).mean, statistics.mean(last - first for first, last in writings)
    assert snapshot is not None
    network, parameters = report.environment["network"].split(",")[0], report.environment["parameters"]
    return Measured(network, parameters, nbytes, plain, idle, busy, snapshot, writing)


def checked_size(folder: Path) -> int:
    """Bytes of the newest checkpoint there, which is read back; UserError where it is damaged."""
    from nn.checkpoints import files

    path = max(folder.glob("step-*.npz"))
    files.load(path)
    return path.stat().st_size


def table(rows: Sequence[Measured]) -> str:
    """Tabulate a line per network."""
    body = [
        [
            row.network,
            f"{row.parameters:,}",
            row.nbytes / 1e6,
            row.plain * 1e3,
            row.idle * 1e3 if row.idle is not None else None,
            row.busy * 1e3 if row.busy is not None else None,
            row.slowdown,
            row.snapshot * 1e3,
            row.writing,
            row.share * 100 if row.share is not None else None,
        ]
        for row in rows
    ]
    headers = ["network", "parameters", "MB", "step ms", "between ms", "writing ms", "slowdown"]
    headers += ["snapshot ms", "written in s", "share %"]
    formats = ("", "", ".1f", ".3f", ".3f", ".3f", ".2f", ".1f", ".3f", ".3f")
    return tabulate(body, headers=headers, floatfmt=formats, missingval="-")


def main(job: Job) -> int:
    with job.agree():
        parser = Parser("checkpoints.py", __doc__)
        parser.add_argument("--device", choices=tuple(CASES), default="cuda", help="(default: cuda)")
        parser.add_argument("--folder", metavar="DIR", help="where to write (default: for temporary files)")
        wanted = parser.parse_args(sys.argv[1:])
        if wanted.folder is not None and job.rank == 0 and not Path(wanted.folder).is_dir():
            raise UserError(f"--folder {wanted.folder}: is no folder")
    with tempfile.TemporaryDirectory(dir=wanted.folder) if job.rank == 0 else nullcontext("") as made:
        folder = Path(job.comm.bcast(made))
        cases = enumerate(CASES[wanted.device])
        rows = [measure(job, case, wanted.device, folder / str(number)) for number, case in cases]
    found = [row for row in rows if row is not None]
    if found:
        title = f"{job.size} rank(s), {wanted.device}, checkpoints in {folder.parent}"
        print(f"{title}\n{table(found)}", flush=True)
    return 0


if __name__ == "__main__":
    run(main)
