"""A rank's steps with their batches, queued on its device; a parameter server has none."""

from __future__ import annotations

from functools import partial

from nn.input.schedule import Schedule
from nn.problem.settings import Settings
from nn.train.recorded_steps import RecordedSteps
from nn.train.replay import MOST, Run, Steps, next_run
from nn.train.slow_rank import SlowRank
from nn.train.training_steps import StepMaker
from pyrt.graphs import Recorder


class StepQueue:
    """The steps of each size of batch, made before the first one."""

    def __init__(self, maker: StepMaker, schedule: Schedule, settings: Settings, graphs: bool) -> None:
        """``graphs`` is whether steps are replayed from graphs."""
        self._maker, self._schedule, self._settings, self._graphs = maker, schedule, settings, graphs
        resources = maker.resources
        self._batches, self._phases = maker.batches, resources.phases
        self._iteration = resources.phases.phase("batch iteration", resources.streams.compute)
        self._slow = SlowRank.of(settings, resources)
        self._recorded: RecordedSteps | None = None
        self._steps = self._make_all_steps()
        ends = [self._batches.steps_at_once, settings.print_every, self._steps_between_checkpoints()]
        self._ends = [end for end in ends if end is not None]

    def _steps_between_checkpoints(self) -> int | None:
        if self._settings.checkpoint is None:
            return None
        return self._settings.steps_between_checkpoints(self._schedule.batches)

    def _steps_at_once(self) -> int:
        """Return the most steps that one graph holds: one, unless nothing in a step needs the host."""
        schedule, every = self._schedule, self._settings.print_every
        if not (self._maker.exchange.on_device and self._maker.resources.links.on_device):
            return 1
        return min(MOST, schedule.samples // schedule.batch, self._batches.steps_at_once, every or MOST)

    def _make_all_steps(self) -> dict[int, Steps]:
        """Make the steps of each size of batch."""
        self.most, sizes, full = 1, self._schedule.sizes, self._schedule.batch
        if not self._graphs:
            return {size: self._maker.launched(size) for size in sizes}
        self.most, resources = self._steps_at_once(), self._maker.resources
        recorder = Recorder(resources.driver, resources.streams.compute, resources.phases)
        return {
            size: self._maker.replayed(size, recorder, self.most if size == full else 1) for size in sizes
        }

    def start(self, step: int, recorded: RecordedSteps | None = None) -> None:
        """Begin with this step, if there is one left; ``recorded`` steps are launched kernel by kernel."""
        self._recorded = recorded
        if step < self._schedule.steps:
            self._batches.start(step)

    def next_run(self, step: int, stop: int, most: int) -> Run:
        """Choose the steps from this one on, up to ``most`` and not past ``stop``, to be queued at once."""
        if not self._graphs:
            return Run(step, 1, False)
        if self._recorded is not None:
            stop = self._recorded.limit(step, stop)
        return next_run(self._schedule, step, stop, min(most, self.most), self._ends)

    def queue(self, run: Run) -> None:
        """Queue the steps of a run."""
        batches, last = self._batches, run.stop - 1
        steps = self._steps[self._schedule.size(run.first)]
        is_recorded = self._recorded is not None and self._recorded.begin(run.first)
        start = steps.launch if is_recorded else partial(steps.start, run.steps, run.timed)
        self._iteration.weight = run.steps
        self._phases.barrier()
        with self._iteration:
            batches.begin(run.first)
            if self._slow is None:
                start()
            else:
                self._slow.make(run.steps, start)
            batches.end(last)
            batches.prefetch(last)
            steps.finish()

    def end(self, run: Run) -> None:
        """Note that the losses behind a run have been looked for: its record ends here. Collective."""
        if self._recorded is not None:
            self._recorded.end(run.first)
