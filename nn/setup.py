"""All that a run allocates before its first step: on its device or, to see what it takes, on paper."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass

from nn.batches import Schedule, split
from nn.data import Dataset
from nn.evaluation import Evaluator, Samples
from nn.machine import Machine
from nn.model import Model
from nn.options import Options
from nn.plan import RankPart
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


def set_up(
    options: Options,
    part: RankPart,
    machine: Machine,
    dataset: Dataset,
    schedule: Schedule,
    placement: str,
    graphs: bool,
) -> Setup:
    """``placement`` is where the training set lies, ``graphs`` whether steps are replayed from graphs.

    Collective. Raises UserError, on all ranks, where one has no memory left, or an exchange cannot work.
    """

    def evaluator(samples: Samples | None) -> Evaluator | None:
        return Evaluator(model, samples, options.pixel_scale, machine) if samples is not None else None

    with ExitStack() as opened:
        with machine.job.together():
            model = Model(options, part, machine, schedule.batch)
        training = None
        if not options.evaluate:
            training = Training(options, model, machine, dataset, schedule, placement, graphs)
            opened.enter_context(closing(training))
        with machine.job.together():
            validation = None if options.evaluate else evaluator(validation_set(dataset, options))
            test = evaluator(test_set(dataset))
        opened.pop_all()
    return Setup(model, training, validation, test)


def validation_set(dataset: Dataset, options: Options) -> Samples | None:
    """What of the training set is held out, if anything."""
    first = split(len(dataset.images), options.val_fraction)
    return (dataset.images[first:], dataset.labels[first:]) if first < len(dataset.images) else None


def test_set(dataset: Dataset) -> Samples | None:
    """The test set, if there is one."""
    images, labels = dataset.test_images, dataset.test_labels
    return (images, labels) if images is not None and labels is not None else None
