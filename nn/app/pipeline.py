"""Trains or evaluates once all is decided; checks and saves the result, and keeps checkpoints on the way."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nn.app import load
from nn.app.console import Console
from nn.app.options import Options
from nn.app.recording import recorded_steps
from nn.app.report import Report
from nn.checkpoints.checkpointer import Checkpointer
from nn.files import onnx, parameters
from nn.files.write import write_whole
from nn.parallel import plan_files
from nn.parallel.plan import Plan
from nn.problem.progress import Epoch, Progress
from nn.train import check
from nn.train.diverged import require_finite_scores
from nn.train.evaluation import Scores, score
from nn.train.latency import Latency, counts, measure
from nn.train.trainer import Trainer
from nn.train.watcher import Watcher
from nn.train.workers import LostRank
from pyrt.job import Job


class ConsoleWatcher(Watcher):
    """Shows on a console how a training goes on."""

    def __init__(self, console: Console, steps: int, done: int) -> None:
        self._console, self.bar = console, console.bar(steps)
        self.bar.update(done)

    def queued(self, steps: int) -> None:
        self.bar.update(steps)

    def loss(self, step: int, epoch: int, loss: float) -> None:
        self._console.say(f"step {step:6d}  epoch {epoch}  loss {loss:.6f}")

    def lost(self, rank: LostRank) -> None:
        self._console.tell(f"{rank.line}: the others go on")


def save_plan(options: Options, plan: Plan, job: Job) -> None:
    """Write the plan to the file of --save-plan. Collective."""
    with job.agree():
        if job.rank == 0 and options.save_plan is not None:
            plan_files.save(options.save_plan, plan)


@dataclass(frozen=True)
class Pipeline:
    """A run with its trainer; the report describes what it uses."""

    options: Options
    trainer: Trainer
    report: Report
    console: Console

    @property
    def _job(self) -> Job:
        return self.trainer.runtime.job

    def run(self) -> Report:
        """Give the trainer its parameters, then train or evaluate."""
        # NumPy's warnings of overflow would come from every rank: a loss that is not finite says it once.
        with np.errstate(all="ignore"):
            initial = self._initial_parameters()
            steps, done = self.trainer.problem.schedule.steps, self.trainer.resumed.progress.step
            watcher = ConsoleWatcher(self.console, steps, done)
            with closing(watcher.bar):
                record = partial(recorded_steps, self.options, self.trainer)
                self.trainer.start(initial, self.options.check, watcher, record)
                for line in self.report.environment["header"]:
                    self.console.say(line)
                return self._evaluate() if self.options.evaluate else self._train()

    def _initial_parameters(self) -> dict[str, np.ndarray] | None:
        """Return the parameters of --init on all ranks, which may have been read before; None without it."""
        problem = self.trainer.problem
        if problem.light is not None:
            return dict(problem.light.parameters)
        with self.trainer.runtime.phases.phase("train setup"):
            return load.initial_parameters(self.options, problem.network, self._job)

    def _train(self) -> Report:
        """Train, score, check, save; or stop before the end, where the job is asked to."""
        schedule = self.trainer.problem.schedule
        if self.options.resume:
            self.console.say(f"resumed at step {self.trainer.resumed.progress.step}")
        checkpointer = self.trainer.keep_checkpoints(self.report.environment, self.console.warn)
        with closing(self.trainer.setup):
            for epoch in self.trainer.training.epochs(schedule.steps, checkpointer):
                self.console.say(epoch.line(schedule.epochs))
            told = self.trainer.training.asynchronous_report()
        for line in told.lines if told is not None else []:
            self.console.say(line)
        trained = replace(self, report=replace(self.report, asynchronous=told))
        return trained._end(self.trainer.progress, checkpointer)

    def _end(self, progress: Progress, checkpointer: Checkpointer | None) -> Report:
        """Conclude a training that has come to its end, or was asked to stop."""
        if checkpointer is None:
            return self._conclude(progress)
        checkpointer.end(progress)
        if checkpointer.is_preempted:
            return self._preempted(progress, checkpointer.written)
        report = self._conclude(progress)
        checkpointer.finish()
        return report

    def _preempted(self, progress: Progress, written: int) -> Report:
        """Say that the run stops, and return its report; the newest checkpoint is of step ``written``."""
        where = "" if written == progress.step else f" from step {written}"
        self.console.tell(
            f"preempted at step {progress.step} of {self.trainer.problem.schedule.steps}: "
            f"the same command with --resume goes on{where}"
        )
        losses = self.trainer.training.printed
        return replace(self.report, epochs=progress.epochs, losses=losses, preempted=True)

    def _conclude(self, progress: Progress) -> Report:
        """Score, check and save what was trained."""
        epochs, test = progress.epochs, self.trainer.setup.test
        self.trainer.require_finite_parameters()
        scores = test.scores() if test is not None else None
        require_finite_scores(scores)
        result = self._check(scores, epochs) if self.options.check else None
        self._save(epochs, scores)
        losses = self.trainer.training.printed
        return replace(self.report, epochs=epochs, losses=losses, test=scores, check=result)

    def _evaluate(self) -> Report:
        """Train nothing: score the test set, write the predictions, and the network as ONNX."""
        test = self.trainer.setup.test
        assert test is not None  # nn/app/load.py has seen to it
        logits = test.logits()
        loss = self.trainer.problem.network.loss
        scores = score(logits, test.labels, loss) if logits is not None else None
        scores = self._job.comm.bcast(scores)
        require_finite_scores(scores)
        path = self.options.predictions
        with self.trainer.runtime.phases.phase("save"), self._job.agree():
            if logits is not None and path is not None:
                lines = "".join(f"{label}\n" for label in logits.argmax(axis=1))
                write_whole("--predictions", path, lambda file: file.write(lines.encode()))
        self._save(None, scores)
        return replace(self.report, test=scores, latency=self._latency())

    def _latency(self) -> list[Latency]:
        """Time inference with the images of the test set, if that is asked for."""
        inference, test = self.trainer.setup.inference, self.trainer.problem.test
        if inference is None or test is None:
            return []
        with self.trainer.runtime.phases.phase("latency"):
            return measure(inference, test[0], counts(inference.batch))

    def _check(self, test: Scores | None, epochs: list[Epoch]) -> check.Check:
        """Run the check on rank 0 while other ranks sleep; return its result on all ranks."""
        result = None
        with self.trainer.runtime.phases.phase("check"):
            trained = self.trainer.parameters()
            if self._job.rank == 0:
                precision = test.precision if test else epochs[-1].validation_precision if epochs else None
                result = check.compare(trained, self.trainer.initial, self.trainer.problem, precision)
            self._job.wait_for_all()
            return self._job.comm.bcast(result)

    def _save(self, epochs: list[Epoch] | None, scores: Scores | None) -> None:
        """Write the parameters to the files that are asked for; None for epochs that are not known."""
        save, export = self.options.save, self.options.export
        if save is None and export is None:
            return
        phase = self.trainer.runtime.phases.phase("save")
        with phase:
            trained = self.trainer.parameters()
        metadata = {
            "options": self.options.as_json(),
            "environment": self.report.environment,
            "epochs": len(epochs) if epochs is not None else None,
            "test_precision": scores.precision if scores is not None else None,
        }
        with phase, self._job.agree():
            if self._job.rank == 0 and save is not None:
                parameters.save(save, trained, metadata)
            if self._job.rank == 0 and export is not None:
                onnx.export(export, self.trainer.problem.network, trained, metadata)
