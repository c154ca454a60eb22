"""What a run is to learn: its options and the data set, and what follows from both: network and batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nn import data
from nn.batches import Schedule
from nn.data import Dataset, Wanted, suspicious
from nn.evaluation import Samples
from nn.held_out import TAIL, held_out_last, split
from nn.network import Network
from nn.options import Options
from pyrt.errors import UserError


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


def load(options: Options) -> tuple[Dataset, list[str]]:
    """Read the data set of a run, the rows that validate last, and say what is suspicious in it, a line each.

    Raises UserError where it cannot be read, or is no valid data set.
    """
    found = data.load(options.data, Wanted(options.dtype, options.classes))
    lines = [*found.warnings, *suspicious.of_pixels(found, options.pixel_scale)]
    if options.evaluate:
        if found.test_images is None:
            raise UserError(f"--evaluate: {found.name} has no test images: give data that has them")
        return found, lines
    if options.val_split != TAIL:
        order = held_out_last(found.labels, options.val_fraction, options.val_split, options.seed)
        found = replace(found, images=found.images[order], labels=found.labels[order])
    rows = split(len(found.images), options.val_fraction)
    used = min(options.samples or rows, rows)
    return found, lines + suspicious.of_labels(found, used, rows, options.val_split)
