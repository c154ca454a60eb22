"""What a run is to learn: its options and the data set, and what follows from both: network and batches."""

from __future__ import annotations

from dataclasses import dataclass

from nn.batches import Schedule, split
from nn.data import Dataset
from nn.evaluation import Samples
from nn.network import Network
from nn.options import Options


@dataclass(frozen=True)
class Problem:
    """The same on every rank."""

    options: Options
    dataset: Dataset
    network: Network
    schedule: Schedule

    @classmethod
    def of(cls, options: Options, dataset: Dataset) -> Problem:
        """Raises UserError for a network that cannot be."""
        sizes = (dataset.images.shape[1], *options.hidden, dataset.classes)
        network = Network(sizes, options.activation, options.head)
        rows = split(len(dataset.images), options.val_fraction)
        samples = options.samples or rows
        schedule = Schedule(rows, samples, options.batch, options.epochs, options.shuffle, options.seed)
        return cls(options, dataset, network, schedule)

    @property
    def validation(self) -> Samples | None:
        """What of the training set is held out, if anything."""
        images, first = self.dataset.images, self.schedule.available
        return (images[first:], self.dataset.labels[first:]) if first < len(images) else None

    @property
    def test(self) -> Samples | None:
        """The test set, if there is one."""
        images, labels = self.dataset.test_images, self.dataset.test_labels
        return (images, labels) if images is not None and labels is not None else None
