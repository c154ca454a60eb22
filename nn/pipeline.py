"""What a run does once all is set up: train, evaluate, check, save, and keep checkpoints on the way."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace

import numpy as np

from nn import check, parameters
from nn.checkpoints.past import Past
from nn.checkpoints.state import Checkpoint, Story
from nn.console import Console
from nn.evaluation import Evaluator, Scores, score
from nn.files import write_whole
from nn.machine import Machine
from nn.plan import files
from nn.problem import Problem
from nn.progress import Epoch, Progress
from nn.report import Report
from nn.setup import Setup
from nn.training import Diverged, Training
from nn.versions import code


class Pipeline:
    """A run whose device, data and arrays are there."""

    def __init__(
        self,
        problem: Problem,
        setup: Setup,
        initial: dict[str, np.ndarray],
        machine: Machine,
        past: Past,
        report: Report,
        console: Console,
    ) -> None:
        """The parameters have their ``initial`` values, or those of the past; the report says what the run
        stands on."""
        self._problem, self._options, self._schedule = problem, problem.options, problem.schedule
        self._setup, self._model, self._initial, self._past = setup, setup.model, initial, past
        self._report, self._console = report, console
        self._job, self._phases = machine.job, machine.phases

    def train(self) -> Report:
        """Train, score, check, save; or stop before the end, where the job is asked to."""
        training, validation, past = self._setup.training, self._setup.validation, self._past
        assert training is not None
        self._report = replace(self._report, losses=training.printed)
        if self._options.resume:
            self._console.say(f"resumed at step {past.progress.step}")
        every = self._options.steps_between_checkpoints(self._schedule.batches)
        keeper = past.keeper(self._options, every, self._console, self._phases)
        if keeper is None:
            return self._conclude(training.run(validation, self._console, past.progress, None))
        if self._job.rank == 0:
            code()  # asks git, once: not while steps wait for a snapshot
        with closing(keeper):
            keeper.begin(lambda progress: self._snapshot(training, validation, progress))
            progress = training.run(validation, self._console, past.progress, keeper)
            keeper.end(progress)
            if keeper.is_preempted:
                return self._preempted(progress, keeper.written)
            report = self._conclude(progress)
            keeper.finish()
        return report

    def _preempted(self, progress: Progress, written: int) -> Report:
        """The run stops after these steps; the newest checkpoint is after those that are ``written``."""
        where = "" if written == progress.step else f" from step {written}"
        self._console.tell(
            f"preempted at step {progress.step} of {self._schedule.steps}: "
            f"the same command with --resume goes on{where}"
        )
        return replace(self._report, epochs=progress.epochs, preempted=True)

    def _conclude(self, progress: Progress) -> Report:
        """Score, check and save what was trained."""
        epochs, test = progress.epochs, self._setup.test
        self._require_finite_parameters()
        scores = test.scores() if test is not None else None
        _require_finite(scores)
        result = self._check(scores, epochs) if self._options.check else None
        self._save(epochs, scores)
        return replace(self._report, epochs=epochs, test=scores, check=result)

    def _snapshot(
        self, training: Training, validation: Evaluator | None, progress: Progress
    ) -> Checkpoint | None:
        """A checkpoint of now on rank 0. Collective; Diverged where parameters are not finite."""
        ends_epoch = progress.step % self._schedule.batches == 0
        if validation is None:
            precision = None
        elif ends_epoch and progress.epochs:
            precision = progress.epochs[-1].validation_precision
        else:
            precision = validation.scores().precision
        parameters, velocity = self._model.whole_parameters(), training.whole_velocity()
        self._agree_on_finite(all(np.isfinite(array).all() for array in parameters.values()))
        if self._job.rank > 0:
            return None
        environment = {**self._report.environment, **code()}
        plan = files.as_json(self._model.part.plan)
        digests = self._past.data, self._past.initial
        story = Story(progress, precision, self._options.as_json(), environment, plan, *digests)
        return Checkpoint(story, parameters, velocity)

    def _require_finite_parameters(self) -> None:
        """The loss of a step is that of the parameters before it: the last step's are looked at."""
        self._agree_on_finite(bool(np.isfinite(self._model.parameters.flat.to_host()).all()))

    def _agree_on_finite(self, finite: bool) -> None:
        """Diverged on all ranks, unless those that each knows of are."""
        if not all(self._job.comm.allgather(finite)):
            raise Diverged(
                "the last step left parameters that are not finite: no result was written; try a smaller --lr"
            )

    def evaluate(self) -> Report:
        """Train nothing: score the test set, write the predictions."""
        test = self._setup.test
        assert test is not None  # nn/run.py has seen to it
        logits = test.logits()
        scores = score(logits, test.labels, self._options.head) if logits is not None else None
        scores = self._job.comm.bcast(scores)
        _require_finite(scores)
        path = self._options.predictions
        with self._phases.phase("save"), self._job.together():
            if logits is not None and path is not None:
                lines = "".join(f"{label}\n" for label in logits.argmax(axis=1))
                write_whole("--predictions", path, lambda file: file.write(lines.encode()))
        return replace(self._report, test=scores)

    def _check(self, test: Scores | None, epochs: list[Epoch]) -> check.Check:
        """The check on rank 0, while the others sleep; its result on all."""
        result = None
        with self._phases.phase("check"):
            trained = self._model.whole_parameters()
            if self._job.rank == 0:
                precision = test.precision if test else epochs[-1].validation_precision if epochs else None
                result = check.compare(trained, self._initial, self._problem, precision)
            self._job.wait_for_all()
            return self._job.comm.bcast(result)

    def _save(self, epochs: list[Epoch], scores: Scores | None) -> None:
        if self._options.save is None:
            return
        with self._phases.phase("save"):
            trained = self._model.whole_parameters()
        with self._phases.phase("save"), self._job.together():
            if self._job.rank == 0:
                story = {
                    "options": self._options.as_json(),
                    "environment": self._report.environment,
                    "epochs": len(epochs),
                    "test_precision": scores.precision if scores is not None else None,
                }
                parameters.save(self._options.save, trained, story)


def _require_finite(scores: Scores | None) -> None:
    if scores is not None and not math.isfinite(scores.loss):
        raise Diverged(
            f"the loss on the test set is {scores.loss}: no result was written; the parameters are too large"
        )
