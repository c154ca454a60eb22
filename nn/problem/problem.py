"""A training problem: settings, data set, network, optimiser, and the batches that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nn.input import Dataset
from nn.input.augment import Augmenter
from nn.input.dataset import Samples
from nn.input.schedule import Schedule
from nn.input.validation_split import split
from nn.model.constraint import Constraint
from nn.model.network import Network
from nn.optimisers.base import Optimiser
from nn.problem.settings import Settings
from nn.program.light_weights import LightWeights


@dataclass(frozen=True)
class Problem:
    """The same on every rank."""

    settings: Settings
    dataset: Dataset
    """The rows that validate are its last."""
    network: Network
    optimiser: Optimiser
    schedule: Schedule
    description: Mapping[str, Any]
    """All that it was made from, in types that JSON has: what a checkpoint must agree with."""
    augmenter: Augmenter | None = None
    """What changes the images of training batches, if anything."""
    constraint: Constraint | None = None
    """What the weights keep, if anything."""
    trains: bool = True
    """False where the parameters are only scored."""
    light: LightWeights | None = None
    """Weights that are scored as they are; None: they are dense."""
    latency: int | None = None
    """Inference is timed, with up to so many images at a time; None: it is not."""

    @classmethod
    def of(
        cls,
        settings: Settings,
        dataset: Dataset,
        network: Network,
        optimiser: Optimiser,
        description: Mapping[str, Any],
    ) -> Problem:
        """Make the batches that follow from the settings. Raises UserError where --augment does not fit."""
        rows = split(len(dataset.images), settings.val_fraction)
        samples = settings.samples or rows
        schedule = Schedule(rows, samples, settings.batch, settings.epochs, settings.shuffle, settings.seed)
        augmenter = None
        if settings.augment is not None:
            known = [shape for shape in (dataset.image_shape, network.input_shape) if len(shape) > 1]
            image = known[0] if known else dataset.image_shape
            augmenter = Augmenter.of(settings.augment, image, settings.seed, schedule.batches)
        return cls(settings, dataset, network, optimiser, schedule, description, augmenter)

    @property
    def validation(self) -> Samples | None:
        """The part of the training set that is held out, if any."""
        images, first = self.dataset.images, self.schedule.available
        return (images[first:], self.dataset.labels[first:]) if first < len(images) else None

    @property
    def test(self) -> Samples | None:
        """The test set, if there is one."""
        images, labels = self.dataset.test_images, self.dataset.test_labels
        return (images, labels) if images is not None and labels is not None else None
