"""All that a run allocates before its first step: on its device or, to see what it takes, on paper."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass

from nn.evaluation import Evaluator, Samples
from nn.machine import Machine
from nn.model import Model
from nn.plan import RankPart
from nn.problem import Problem
from nn.training import Training


@dataclass(frozen=True)
class Setup:
    """What a run works with; the model is still to be started."""

    model: Model
    training: Training | None
    """None where the run only evaluates."""
    validation: Evaluator | None
    test: Evaluator | None

    def close(self) -> None:
        """Let go of what is not this process's own, and of threads. Safe to call twice."""
        if self.training is not None:
            self.training.close()


def set_up(problem: Problem, part: RankPart, machine: Machine, placement: str, graphs: bool) -> Setup:
    """``placement`` is where the training set lies, ``graphs`` whether steps are replayed from graphs.

    Collective. Raises UserError, on all ranks, where one has no memory left, or an exchange cannot work.
    """

    options = problem.options

    def evaluator(samples: Samples | None) -> Evaluator | None:
        return Evaluator(model, samples, options.pixel_scale, machine) if samples is not None else None

    with ExitStack() as opened:
        with machine.job.together():
            model = Model(options, part, machine, problem.schedule.batch)
        training = None
        if not options.evaluate:
            training = Training(problem, model, machine, placement, graphs)
            opened.enter_context(closing(training))
        with machine.job.together():
            validation = None if options.evaluate else evaluator(problem.validation)
            test = evaluator(problem.test)
        opened.pop_all()
    return Setup(model, training, validation, test)
