"""Clocks are compared as well as the answers' way allows, and say how well that is."""

from __future__ import annotations

import os
import time

import pytest

from pyrt.driver import Driver
from pyrt.job import Job
from pyrt.timeline.clocks import anchor, clock_name, compare_hosts


@pytest.mark.parallel([3])
def test_a_clock_that_is_ahead_is_found_out(job: Job) -> None:
    """Shift each clock by 1000 s a rank, which is known: the error that is told must cover it."""
    ahead = 1000.0 * job.rank
    found = compare_hosts(job.comm, lambda: time.perf_counter() + ahead, name=f"clock {job.rank}")
    assert abs(found.offset + ahead) <= found.error + 1e-12
    assert found.error < 0.5  # even on a machine with more to do
    assert job.rank > 0 or (found.offset, found.error) == (0, 0)


@pytest.mark.parallel([2])
def test_ranks_of_a_machine_read_the_same_clock(job: Job) -> None:
    found = compare_hosts(job.comm)
    assert (found.offset, found.error) == (0, 0)


def test_the_clock_of_a_machine_has_a_name() -> None:
    assert (clock_name() != "") == os.path.exists("/proc/sys/kernel/random/boot_id")
    assert clock_name() == clock_name()


def test_an_anchor_is_passed_when_it_says(driver: Driver) -> None:
    """Compare with the host's clock; the emulated device reads the same one."""
    stream = driver.create_stream()
    before = time.perf_counter()
    found = anchor(driver, stream)
    after = time.perf_counter()
    assert before <= found.time - found.error <= found.time + found.error <= after
    later = driver.create_event(timing=True)
    driver.record(later, stream)
    driver.synchronize_event(later)
    passed = found.time + driver.elapsed(found.event, later)
    assert after - found.error <= passed <= time.perf_counter() + found.error
