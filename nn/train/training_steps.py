"""Makes the steps of a training, for each size of batch: launched one by one, or replayed from graphs."""

from __future__ import annotations

from dataclasses import dataclass

from nn.input.source import Batches
from nn.program.operations import Item, skip_batch
from nn.program.rank_model import RankModel, TrainingArrays
from nn.program.step import EmptyStep, TrainingStep, Wrap, bind
from nn.train.rank_resources import RankResources
from nn.train.replay import Gate, GatedLinks, Launched, Replayed, Steps
from pyrt.exchange import Exchange
from pyrt.graphs import Recorder
from pyrt.redistribute import Redistributor


@dataclass(frozen=True)
class StepMaker:
    """Makes this rank's steps from its model, arrays, batches and exchange."""

    model: RankModel
    arrays: TrainingArrays
    resources: RankResources
    batches: Batches
    exchange: Exchange
    wrap: Wrap
    """Wraps the queueing of each operation, as --check-each does."""

    def launched(self, batch: int) -> Steps:
        """Make steps with batches of this size whose kernels the host launches."""
        return Launched(self._step(batch, self.exchange, self.resources.links), self.exchange)

    def replayed(self, batch: int, recorder: Recorder, most: int) -> Steps:
        """Make steps with batches of this size that are captured into graphs of up to ``most`` steps."""
        gate = Gate(self.exchange, recorder, len(self.arrays.panels))
        step = self._step(batch, gate, GatedLinks(self.resources.links, recorder, gate))
        return Replayed(step, self.exchange, recorder, most)

    def items(self, batch: int) -> list[Item]:
        """List a step's operations, from its images to this rank's gradients."""
        source = self.batches.source(self.model.shard.own_samples(batch)[0])
        return self.arrays.step(source, batch)

    def _step(self, batch: int, exchange: Exchange, links: Redistributor) -> TrainingStep | EmptyStep:
        """Make this rank's part of a step; an empty one where its group gets no sample."""
        resources, arrays = self.resources, self.arrays
        streams, phases, kernels = resources.streams, resources.phases, resources.kernels
        start, stop = self.model.shard.group_samples(batch)
        if start == stop:
            skipped = [skip_batch(self.batches.cursor), *arrays.count_step()]
            skip = [bind(operation, streams, kernels) for operation in skipped]
            return EmptyStep(arrays.gradients, len(arrays.panels), streams, phases, exchange, skip)
        return TrainingStep(self.items(batch), streams, phases, kernels, exchange, links, self.wrap)
