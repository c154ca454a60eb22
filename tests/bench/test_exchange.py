"""bench/exchange.py: every way is checked, then timed; the table has what was timed."""

from __future__ import annotations

import math
import re

import pytest

from bench import exchange as bench
from bench.timing import Times
from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from pyrt.exchange import Bucket
from pyrt.exchange.device import verdict
from pyrt.job import Job, join
from tests import few

BUCKETS = [Bucket(800, 1024), Bucket(0, 700)]
"""What lies between belongs to none."""

MORE_GPUS = 99
"""Than any machine has."""


@pytest.fixture
def job() -> Job:
    return join()


def test_graphs_are_as_long_on_every_rank_and_shorter_for_more_bytes():
    counts = [bench.repetitions(nbytes) for nbytes in bench.SIZES]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 64 and counts[-1] == 2


def test_the_table_has_microseconds_and_gigabytes_a_second():
    times = {"peer": {4096: Times(2.0, 1.0, 3.0)}, "NCCL": {}}
    rows = bench.table(times).splitlines()
    assert rows[0].split() == ["bytes", "peer", "us", "peer", "GB/s", "NCCL", "us", "NCCL", "GB/s"]
    assert rows[2].split() == ["4096", "2.0", "2.0", "-", "-"]
    assert rows[3].split() == ["65536", "-", "-", "-", "-"]


def test_ways_of_the_command_line():
    assert bench.asked([]) == bench.WAYS
    assert bench.asked(["peer", "peer flags"]) == ["peer", "peer flags"]
    with pytest.raises(UserError, match=r"flags is no WAY: take root or .* peer or 'peer flags'"):
        bench.asked(["peer", "flags"])


@pytest.mark.long
@pytest.mark.parallel([2])
def test_every_way_is_timed(driver: Driver, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 2)
    monkeypatch.setattr(bench, "repetitions", lambda nbytes: 2)
    for way in few(["host", "peer flags"], of=bench.WAYS):
        if way != "device" or verdict(job, driver).is_proven:
            times = bench.measure(way, driver, job, BUCKETS)
            assert 0 < times.least <= times.median <= times.most


@pytest.mark.parallel([2])
@pytest.mark.parametrize("way", few(["host"], of=["root", "blocking", "host"]))
def test_numpy_updates_where_there_are_no_kernels(way: str, job: Job) -> None:
    contender = bench.Contender(way, CpuDriver(), job, BUCKETS)
    contender.check()
    contender.free()


@pytest.mark.parametrize(
    ("once", "longest", "count"),
    [
        (1e-3, math.inf, bench.ROUNDS),
        (1e-3, 1.0, bench.ROUNDS),
        (0.05, 0.5, 10),
        (2.0, 0.5, bench.LEAST_ROUNDS),
    ],
)
def test_slow_steps_are_repeated_less_often(once: float, longest: float, count: int) -> None:
    assert bench.rounds(once, longest) == count


def test_nccl_that_is_not_there_is_named() -> None:
    times, why = bench.nccl(MORE_GPUS)
    assert times == {}
    assert re.match(r"PyTorch (is not installed|sees \d+ GPU)", why)


@pytest.mark.parallel([2])
def test_a_way_that_sums_wrongly_is_not_timed(
    driver: Driver, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    contender = bench.Contender("peer", driver, job, BUCKETS)
    monkeypatch.setattr(bench, "RATE", 2 * bench.RATE)
    with pytest.raises(bench.WrongSum, match="peer, 3696 bytes"):
        contender.check()
    contender.free()


@pytest.mark.parallel([2])
def test_each_bucket_is_exchanged_once_a_step_and_nothing_else(
    driver: Driver, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    contender = bench.Contender("host", driver, job, BUCKETS)
    contender.check()
    ready = []
    monkeypatch.setattr(contender.exchange, "ready", ready.append)
    monkeypatch.setattr(contender.exchange, "finish", lambda: None)
    contender.step()
    assert ready == [0, 1]
    contender.free()
