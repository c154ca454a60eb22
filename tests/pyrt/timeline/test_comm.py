"""Calls of MPI on a traced communicator, and on those made from it, are recorded and do what they did."""

from __future__ import annotations

import time

import numpy as np
import pytest

from pyrt.driver.cpu import CpuDriver
from pyrt.job import Job
from pyrt.phases import Phases
from pyrt.streams import Streams
from pyrt.timeline import CALL, MPI, Span, Timeline


@pytest.mark.parallel([2])
def test_calls_are_recorded_while_the_timeline_is_on(job: Job, cpu: CpuDriver) -> None:
    timeline = Timeline()
    traced = timeline.traced_job(job)
    mine, total = np.full(5, 1.0 + job.rank), np.zeros(5)
    copy, part = traced.comm.Dup(), traced.comm.Split(0, job.rank)
    traced.comm.Barrier()
    timeline.begin(Streams(cpu), Phases(0.0))
    timeline.step = 2
    request = copy.Iallreduce(mine, total)
    time.sleep(0.01)
    while not request.Test():
        pass
    request.Test()  # once more: it has nothing new to tell
    assert total.tolist() == [3.0] * 5
    assert part.allgather(job.rank) == [0, 1]
    part.Bcast(total)
    records = timeline.end(traced)
    traced.comm.Barrier()
    assert not timeline.is_on
    copy.Free()
    part.Free()
    if job.rank > 0:
        assert records is None
        return
    assert records is not None and [record.rank for record in records] == [0, 1]
    for record in records:
        spans: list[Span] = record.spans
        assert all((span.track, span.kind, span.step) == (MPI, CALL, 2) for span in spans)
        names = [(span.name, span.nbytes) for span in spans]
        assert names == [("Iallreduce", 40), ("allgather", None), ("Bcast", 40)]
        assert spans[0].stop - spans[0].start >= 0.01  # from the call to the test that finds it done


@pytest.mark.parallel([2])
def test_a_request_that_began_before_is_not_recorded(job: Job, cpu: CpuDriver) -> None:
    timeline = Timeline()
    traced = timeline.traced_job(job)
    before = traced.comm.Ibarrier()
    timeline.begin(Streams(cpu), Phases(0.0))
    while not before.Test():
        pass
    records = timeline.end(traced)
    assert records is None or [record.spans for record in records] == [[], []]
