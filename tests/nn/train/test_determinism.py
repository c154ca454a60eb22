"""The same command twice gives the same weights, bit for bit: on every device, in every exchange, all plans.

Whole jobs, whose processes start anew, are in tests/test_train.py and tests/test_faults.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nn.app.options import Options
from pyrt.driver import Driver
from pyrt.exchange.device import verdict
from pyrt.exchange.registry import choices
from pyrt.job import Job
from tests import LONG, few
from tests.nn.small_runs import saved
from train import train

SMALL = Options(hidden=(9, 7), epochs=1, batch=20, lr=0.5, momentum=0.5, val_fraction=0.1)
"""Ragged batches, and units that ranks cannot share evenly."""

ON_THE_CPU = [(exchange, grid) for exchange in ("root", "blocking", "host", "device") for grid in ("", "1x2")]
ON_A_DEVICE = [
    *((exchange, "") for exchange in ("host", "device", "peer", "hierarchical")),
    *(("host", "1x4"), ("device", "2x2"), ("peer", "1x4"), ("peer", "2x2"), ("hierarchical", "2x2")),
]
"""Exchanges, and grids of the plan ``model`` (none: ``data``)."""


@pytest.fixture
def options(tmp_path: Path, job: Job) -> Options:
    """Of a run on 50 random images, which saves its weights in a folder of all ranks."""
    folder: Path = job.comm.bcast(tmp_path)
    if job.rank == 0:
        images = np.random.default_rng(0).integers(0, 256, (50, 3, 4), np.uint8)
        np.savez(folder / "digits.npz", x_train=images, y_train=np.arange(50) % 5)
    job.comm.barrier()
    return dataclasses.replace(SMALL, data=str(folder / "digits.npz"), save=folder / "weights.npz")


def trained(options: Options, job: Job) -> dict[str, Any]:
    """The weights on rank 0; empty on others."""
    train(options, job)
    if job.rank > 0 or options.save is None:
        return {}
    return saved(options.save)


def differing(
    options: Options, job: Job, ways: Sequence[tuple[str, str]], **again: Any
) -> list[tuple[str, str]]:
    """Those ways in which a second run, changed by ``again``, has other bits."""
    found = []
    for exchange, grid in ways:
        first = dataclasses.replace(
            options, exchange=exchange, plan="model" if grid else "data", grid=grid or None
        )
        if exchange == "hierarchical":
            first = dataclasses.replace(first, ranks_per_node=2)
        if trained(first, job) != trained(dataclasses.replace(first, **again), job):
            found.append((exchange, grid))
    return job.comm.bcast(found)


def test_every_exchange_is_here() -> None:
    assert {exchange for exchange, _ in (*ON_THE_CPU, *ON_A_DEVICE)} == set(choices())


@pytest.mark.long
@pytest.mark.parallel([2])
def test_on_the_cpu(options: Options, job: Job) -> None:
    assert not differing(dataclasses.replace(options, device="cpu"), job, ON_THE_CPU)


@pytest.mark.kernels
@pytest.mark.parallel([4 if LONG else 2])
def test_on_a_device(options: Options, job: Job, driver: Driver) -> None:
    """On the emulated one threads, blocks and streams take their turns in another order the second time."""
    where = dataclasses.replace(options, device=driver.name, share_gpus=True)
    again = {"order_seed": 1} if driver.name == "emulated" else {}
    takes_device = verdict(job, driver).is_proven
    ways = [way for way in ON_A_DEVICE if way[0] != "device" or takes_device]
    assert not differing(where, job, few([("peer", "")], of=ways), **again)
