"""nn/checkpoints/stopping.py: all ranks stop after the same step, whichever of them are asked to."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from nn.checkpoints import stopping
from nn.checkpoints.stopping import Stopping
from pyrt.job import join
from tests import few

ASKED = [{0: 5}, {1: 40}, {0: 30, 1: 2}, {0: 0}]
"""Which ranks are asked to stop, each before one of its steps."""


@pytest.mark.parallel(few([3], of=[1, 3]))
def test_all_ranks_stop_after_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """They differ in pace."""
    job, steps, mine = join(), 0, 0
    monkeypatch.setattr(stopping, "stop_was_asked", lambda: steps >= mine)
    for asked in few(ASKED[2:3], of=ASKED):
        asked = {rank % job.size: step for rank, step in asked.items()}
        steps, mine = 0, asked.get(job.rank, 10**9)
        decision = Stopping(job, 0)
        while not decision.is_agreed(steps, steps):
            time.sleep(0.001 * job.rank)
            steps += 1
            assert steps < 100_000
        decision.close()
        assert set(job.comm.allgather(steps)) == {steps}
        assert steps > min(asked.values())


def test_it_is_a_matter_of_two_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes a hundredth of a second, so 20 of them are an interval."""
    job, steps, asked = join(), 0, 0
    monkeypatch.setattr(stopping, "time", SimpleNamespace(perf_counter=lambda: steps * 0.01))
    monkeypatch.setattr(stopping, "stop_was_asked", lambda: steps >= asked)
    for asked in (0, 1, 77, 500):
        steps = 0
        decision = Stopping(job, 0)
        while not decision.is_agreed(steps, steps):
            steps += 1
        decision.close()
        assert asked < steps <= asked + 2 * 20 + 2


@pytest.mark.parametrize("step_seconds", [1e-4, 0.01, 0.2])
def test_steps_that_are_queued_are_not_over(monkeypatch: pytest.MonkeyPatch, step_seconds: float) -> None:
    """A GPU: eight steps are queued in no time, and the host waits for those of the call but one before."""
    queued = done = 0
    now = asked = 0.0
    monkeypatch.setattr(stopping, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(stopping, "stop_was_asked", lambda: now >= asked)
    for asked in (0.0, 0.3, 3.0):
        queued, done, now = 0, 0, 0.0
        decision = Stopping(join(), 0)
        while not decision.is_agreed(queued, done):
            queued, done = queued + 8, max(0, queued - 8)
            now = max(now + 2e-4, done * step_seconds)
        decision.close()
        assert now - asked <= 2 * (stopping.SECONDS + 2 * 8 * step_seconds) + 0.01


@pytest.mark.parallel([2])
def test_nobody_stops_who_is_not_asked() -> None:
    decision = Stopping(join(), 3)
    assert not any(decision.is_agreed(step, step) for step in range(4, 300))
    decision.close()


@pytest.mark.parallel([2])
def test_closing_waits_but_a_moment_for_a_rank_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an exception; in the end the other one comes, so that this job can end."""
    monkeypatch.setattr(stopping, "_MOMENT", 0.05)
    job = join()
    decision = Stopping(job, 0)
    if job.rank == 0:
        decision.is_agreed(1, 1)
        decision.close()
    job.wait_for_all()
    if job.rank == 1:
        decision.is_agreed(1, 1)
    job.wait_for_all()
    monkeypatch.setattr(stopping, "_MOMENT", 60)
    decision.close()
