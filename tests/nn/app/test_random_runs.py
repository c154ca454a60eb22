"""Random runs agree with the reference, and with themselves broken off and resumed: random_runs.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from pyrt.driver import Driver
from pyrt.job import Job, join
from tests import LONG, few, standing_still
from tests.nn.random_runs import RandomRun

ON_THE_CPU = range(1000 if LONG else 1)
ON_A_DEVICE = range(200 if LONG else 1)


def check(numbers: Iterable[int], device: str, folder: Path) -> None:
    """Check these runs on all ranks; the first that fails is told by its command."""
    job = join()
    folder = job.comm.bcast(folder)
    for number in numbers:
        case = RandomRun.drawn(number, job.size, device)
        place = folder / str(number)
        if job.rank == 0:
            place.mkdir()
        standing_still.allow()
        with told(case, job):
            case.check(place, job)
            job.comm.barrier()


@contextlib.contextmanager
def told(case: RandomRun, job: Job) -> Iterable[None]:
    """Fail on all ranks, with the case's command, where one of them raises before the others wait for it."""
    try:
        yield
    except BaseException as error:
        pytest.fail(f"{case}\n\n{type(error).__name__}: {error}")


@pytest.mark.parallel(few([2], of=[2, 3, 4]))
def test_on_the_cpu(tmp_path: Path) -> None:
    check(ON_THE_CPU, "cpu", tmp_path)


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parallel(few([2], of=[2, 3, 4]))
def test_on_a_device(driver: Driver, tmp_path: Path) -> None:
    check(ON_A_DEVICE, driver.name, tmp_path)
