"""The steps of a training that a timeline records; their file is written when the last of them is over."""

from __future__ import annotations

import json
import time
from pathlib import Path

from nn.files.write import write_whole
from pyrt.job import AgreedError, Job
from pyrt.phases import Phases
from pyrt.streams import Streams
from pyrt.timeline import HOST, STEP, Timeline
from pyrt.timeline.chrome import trace

USUAL = 10, 14
"""The first and the last step recorded by default; in earlier ones caches fill."""


def chosen(asked: tuple[int, int] | None, done: int, steps: int) -> tuple[int, int]:
    """Choose the first and the last step to record, counted from 1, of a run of so many ``steps``.

    ``asked`` is what the user wants; None: `USUAL`, or the last ones of a shorter run. ``done`` steps were
    made before the run resumed. Raises UserError, on all ranks, if the run has no such steps.
    """
    if done >= steps:
        raise AgreedError("--timeline: the run has no steps left to record: leave it out")
    if asked is None:
        first, last = USUAL
        if done < first and last <= steps:
            return USUAL
        asked = max(done + 1, steps - (last - first)), steps
    first, last = asked
    if not done < first <= last <= steps:
        raise AgreedError(
            f"--timeline-steps {first}:{last}: the run has steps {done + 1} to {steps}: choose from these"
        )
    return asked


class RecordedSteps:
    """Begins and ends the recording. Steps count from 0 here, as in the training."""

    def __init__(
        self,
        timeline: Timeline,
        path: Path,
        steps: tuple[int, int],
        job: Job,
        streams: Streams,
        phases: Phases,
    ) -> None:
        """``steps`` are the first and the last one, counted from 1."""
        self._timeline, self._path = timeline, path
        self._first, self._last = steps[0] - 1, steps[1] - 1
        self._job, self._streams, self._phases = job, streams, phases
        self._began = 0.0

    def limit(self, step: int, stop: int) -> int:
        """Return where a run of steps from ``step`` on, up to ``stop`` otherwise, must end: each that is
        recorded is a run of its own."""
        if step > self._last:
            return stop
        return min(stop, self._first if step < self._first else step + 1)

    def begin(self, step: int) -> bool:
        """Note that this step begins; return whether it is recorded."""
        if not self._first <= step <= self._last:
            return False
        if step == self._first:
            self._timeline.begin(self._streams, self._phases)
        self._timeline.step = step + 1
        self._began = time.perf_counter()
        return True

    def end(self, step: int) -> None:
        """Note that this step is queued; after the last one write the file. Collective."""
        if not self._first <= step <= self._last:
            return
        self._timeline.add(HOST, STEP, f"step {step + 1}", self._began)
        if step < self._last:
            return
        records = self._timeline.end(self._job)
        with self._job.agree():
            if records is not None:
                text = json.dumps(trace(records), allow_nan=False)
                write_whole("--timeline", self._path, lambda file: file.write(text.encode()))
