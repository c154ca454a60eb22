"""All that a run allocates before its first step: on its device or, to see what it takes, on paper."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass

from nn.parallel.shard import Shard
from nn.problem.problem import Problem
from nn.program.rank_model import Numbers, RankModel
from nn.train.evaluation import Evaluator, Samples
from nn.train.host_to_host import HostToHost
from nn.train.latency import counts
from nn.train.rank_resources import RankResources
from nn.train.training import Training


@dataclass(frozen=True)
class Setup:
    """What a run works with; the model is still to be started."""

    model: RankModel
    training: Training | None
    """None where the run only evaluates."""
    validation: Evaluator | None
    test: Evaluator | None
    inference: HostToHost | None = None
    """The calls that --latency times, bound."""

    def close(self) -> None:
        """Free what is shared with other processes, and end threads. Safe to call twice."""
        if self.training is not None:
            self.training.close()


def set_up(problem: Problem, shard: Shard, resources: RankResources, placement: str, graphs: bool) -> Setup:
    """``placement`` is where the training set lies, ``graphs`` whether steps are replayed from graphs.

    Collective. Raises UserError, on all ranks, where one has no memory left, or an exchange cannot work.
    """

    settings = problem.settings

    def evaluator(samples: Samples | None) -> Evaluator | None:
        return Evaluator(model, samples, resources) if samples is not None else None

    with ExitStack() as opened:
        with resources.job.agree():
            numbers = Numbers(
                settings.dtype,
                resources.kernels,
                not settings.fuses,
                settings.check_each is not None,
                settings.pixel_scale,
                settings.seed,
            )
            samples = max(problem.schedule.batch, problem.latency or 0)
            model = RankModel(resources.driver, shard, numbers, samples, problem.light)
        training = None
        if problem.trains:
            training = Training(problem, model, resources, placement, graphs)
            opened.enter_context(closing(training))
        with resources.job.agree():
            validation = evaluator(problem.validation) if problem.trains else None
            test = evaluator(problem.test)
            inference = _inference(problem, model, resources, graphs)
        opened.pop_all()
    return Setup(model, training, validation, test, inference)


def _inference(
    problem: Problem, model: RankModel, resources: RankResources, graphs: bool
) -> HostToHost | None:
    """Make what --latency times, if it is asked for."""
    if problem.latency is None:
        return None
    pixels, stream = problem.dataset.images.dtype, resources.streams.compute
    inference = HostToHost(model, stream, problem.latency, pixels, graphs)
    for count in reversed(counts(problem.latency)):  # the largest first: the others lie in its memory
        inference.bind(count)
    return inference
