"""A network on one rank: parameters, their bf16 components, activations; gradients for training.

Built on a device that is there or on the null device, where it tells what it would take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from nn.input.augment import Augmenter
from nn.input.source import Source
from nn.launch.gemm.components import Components, Split
from nn.launch.kernels import Kernels
from nn.launch.update import LossRing
from nn.model.constraint import Constraint
from nn.model.dense import Dense
from nn.optimisers.base import Optimiser
from nn.parallel.buckets import gradient_layout, panels
from nn.parallel.shard import Shard
from nn.program.activations import Activations
from nn.program.beside import place_beside
from nn.program.constraint import ConstrainedGradients
from nn.program.dropout import Draws, count_step
from nn.program.few_images import for_few_images
from nn.program.fuse import fuse
from nn.program.light_weights import LightArena, LightRule, LightWeights
from nn.program.operations import Item, Operation, StartRedistribution
from nn.program.passes import Pass
from nn.program.rewrite import with_array
from nn.program.step import Wrap
from nn.program.step_memory import Placed, StepMemory
from nn.program.update import OptimiserState, ParameterUpdate
from pyrt.arrays import Arena, DeviceArray, Layout
from pyrt.driver import Driver
from pyrt.exchange.registry import exchanges as facts
from pyrt.kernels import in_order


@dataclass(frozen=True)
class Numbers:
    """How a rank computes: the type of its numbers, and its kernels; None where NumPy computes."""

    dtype: str
    kernels: Kernels | None
    apart: bool = False
    """Whether each operation is to be seen by itself: nothing is fused, and nothing keeps components."""
    repeats: bool = False
    """Whether NumPy repeats operations on the same arrays, so that none may lie at the place of another."""
    pixel_scale: float = 255.0
    """Pixels are divided by it."""
    seed: int = 0
    """Of what layers draw while they train."""


class RankModel:
    """This rank's parameters on a device, and room for the activations of a ``batch``: to `start`."""

    def __init__(
        self,
        driver: Driver,
        shard: Shard,
        numbers: Numbers,
        batch: int,
        light: LightWeights | None = None,
    ) -> None:
        """``light`` are weights that are known, and stay as they are: then nothing trains."""
        self.shard, self.network, self.numbers = shard, shard.network, numbers
        self.driver, self.kernels = driver, numbers.kernels
        self._memory = StepMemory(driver, numbers.kernels, shares=not numbers.repeats)
        self._light_layers = light.layers.keys() if light is not None else frozenset[int]()
        self.parameters = self._room_for_parameters()
        self._light = LightRule(driver, light, self.parameters) if light is not None else None
        self.components = self._room_for_components()
        samples = shard.plan.largest_group(batch)
        self.activations = Activations(self.parameters, shard, samples, self._memory.empty)
        self._split_weights = None
        if self.kernels is not None and self.components:
            works = [Split((pair,)) for pair in self._known]
            self._split_weights = in_order([work.on_device(self.kernels) for work in works])

    def _room_for_parameters(self) -> Arena:
        """Make room for all but light weights."""
        shapes, dtype = dict(self.shard.shapes), self.numbers.dtype
        names = [f"W{layer}" for layer in self._light_layers]
        absent = {name: self._memory.empty(shapes.pop(name), dtype) for name in names}
        with self.driver.ledger.of("weights"):
            return LightArena(self.driver, Layout(shapes, dtype), absent)

    def _room_for_components(self) -> dict[int, Components]:
        """Components of the weights, for layers that run on tensor cores. The update keeps them current."""
        kernels, result = self.kernels, {}
        if kernels is None or not kernels.uses_components or self.numbers.apart:
            return {}
        for layer in layers_with_components(kernels, self.shard):
            if layer in self._light_layers:
                continue
            with self.driver.ledger.of("weights", layer):
                shape = self.parameters.layout.shapes[f"W{layer}"]
                result[layer] = Components.empty(self.driver, kernels.components, *shape)
        return result

    @property
    def _known(self) -> list[tuple[DeviceArray, Components]]:
        """The weights that are there as components, with these."""
        return [(self.parameters[f"W{layer}"], parts) for layer, parts in self.components.items()]

    def start(self, values: dict[str, np.ndarray]) -> None:
        """Give all parameters these values, of which this rank takes its part."""
        self.parameters.set(self.shard.cut(values))
        if self._split_weights is not None:
            stream = self.driver.create_stream()
            self._split_weights(stream)
            self.driver.synchronize_stream(stream)

    def forward(
        self, source: Source, samples: int, into: DeviceArray | None = None
    ) -> tuple[list[Item], DeviceArray]:
        """List the operations from images to logits, for so many samples of the group; and the logits.

        These are written ``into`` an array (samples, classes); by default they are there until another list
        runs.
        """
        logits = self.activations.taken(self.network.depth, samples)
        items = self.fused(self._for_inference(self.passes(source).logits(samples)))
        if into is not None:
            items, logits = [with_array(item, logits, into) for item in items], into
        placed = self.place(items, [logits])
        return placed.items, placed.results[0]

    def _for_inference(self, items: Sequence[Item]) -> list[Item]:
        """Rewrite a list for light weights, and for few images."""
        items = list(items) if self._light is None else self._light.applied(items)
        return items if self.numbers.apart else for_few_images(items, self.kernels)

    def fused(self, items: Sequence[Item]) -> list[Item]:
        """Rewrite a list for this device's kernels."""
        if self.numbers.apart:
            return list(items)
        take_components = partial(Components.within, self._memory.empty)
        return fuse(items, self.kernels, take_components, self._known, self.shard.plan.ranks == 1)

    def place(self, items: Sequence[Item], results: Sequence[DeviceArray] = ()) -> Placed:
        """Place the arrays of a list as it will run; lists run one after another, and share memory."""
        return self._memory.place(items, results)

    def passes(self, source: Source) -> Pass:
        """Return the pass over a batch that this source provides."""
        scale = self.numbers.pixel_scale
        return Pass(self.shard, self.parameters, self.activations, source, scale)


@dataclass(frozen=True)
class Role:
    """The use of a rank's gradients, and its share in the update."""

    is_alone: bool = False
    """Gradients are applied without a sum over ranks: the rank's part of a batch is a batch of its own."""
    updates: bool = True
    """The rank updates parameters, and keeps the optimiser's state of them."""


SUMMED = Role()


class TrainingArrays:
    """What training adds to a model: gradients, what the optimiser keeps, and the buckets that leave."""

    def __init__(
        self,
        model: RankModel,
        optimiser: Optimiser,
        exchanges: tuple[str, str],
        augmenter: Augmenter | None = None,
        constraint: Constraint | None = None,
        role: Role = SUMMED,
    ) -> None:
        """``exchanges`` are those over all ranks, and over the ranks of a shard."""
        driver, shard = model.driver, model.shard
        self._model, self._optimiser, self._augmenter = model, optimiser, augmenter
        with driver.ledger.of("gradients"):
            self.gradients = Arena(driver, gradient_layout(shard, model.numbers.dtype))
        with driver.ledger.of("momentum"):
            layout = model.parameters.layout
            self.state = OptimiserState(
                driver, optimiser, layout if role.updates else Layout({}, layout.dtype)
            )
        with driver.ledger.of("gradients"):
            self._constrained = (
                ConstrainedGradients(shard, constraint, model.parameters) if constraint is not None else None
            )
        draws = model.network.draws or augmenter is not None
        self._step = DeviceArray.from_host(driver, np.zeros(1, np.int32)) if draws else None
        self.panels = panels(shard, self.gradients.layout, *exchanges)
        in_one_graph = all(facts()[name].on_device and not facts()[name].overlaps for name in exchanges)
        self._role = role
        self._may_run_beside = model.kernels is not None and not model.numbers.apart and in_one_graph

    def step(self, source: Source, batch: int) -> list[Item]:
        """List the operations from the images to this rank's gradients, for its part of such a batch.

        They are those of the batch's mean loss or, where the part is a batch of its own, of the part's.
        """
        return self._model.place(self.step_without_places(source, batch)).items

    def step_without_places(self, source: Source, batch: int) -> list[Item]:
        """List the same to be looked at, not to run: activations have no memory yet."""
        model = self._model
        start, stop = model.shard.group_samples(batch)
        work = replace(model.passes(source), draws=self._draws(start), constrained=self._constrained)
        samples = stop - start
        mean_of = samples if self._role.is_alone else batch
        items = model.fused(work.gradients(self.gradients, self.panels, samples, mean_of))
        if self._may_run_beside and not any(isinstance(item, StartRedistribution) for item in items):
            assert model.kernels is not None
            items = place_beside(items, self.gradients.flat, model.kernels)
        return items

    def _draws(self, first: int) -> Draws | None:
        """Return what layers draw from, for a group whose samples begin at ``first`` of the batch."""
        if self._step is None:
            return None
        return Draws(self._model.numbers.seed, self._step, first, self._augmenter)

    def count_step(self) -> list[Operation]:
        """List what counts a step in which this rank has no samples."""
        return [count_step(self._step)] if self._step is not None else []

    def update(
        self, ring: LossRing | None = None, wrap: Wrap = lambda operation, queue: queue
    ) -> ParameterUpdate:
        """Make the update of the parameters; without a ``ring`` it does not end a step.

        ``wrap``: see `ParameterUpdate`.
        """
        model = self._model
        arrays = (model.parameters, self.gradients, self.state)
        return ParameterUpdate(
            model.network, self._optimiser, *arrays, model.kernels, ring, model.components, wrap
        )

    def set_state(self, whole: Mapping[str, Mapping[str, np.ndarray]], step: int, updates: int) -> None:
        """Take this rank's part of the optimiser's state after ``step`` steps and ``updates`` updates."""
        for name, arrays in whole.items():
            self.state.arenas[name].set(self._model.shard.cut(dict(arrays)))
        self.state.start(updates)
        if self._step is not None:
            self._step.set(np.array([step], np.int32))


def layers_with_components(kernels: Kernels, shard: Shard) -> list[int]:
    """Return the layers whose products read their weights as components."""
    result = []
    for layer in shard.network.numbers:
        units, inputs = shard.shapes[f"W{layer}"]
        if not isinstance(shard.network.layer(layer), Dense):
            if kernels.conv_version == "implicit":
                result.append(layer)
            continue
        below = shard.network.stages[layer - 1]
        ends = layer == shard.network.depth and shard.plan.is_data and not below.followers
        is_fused = ends and kernels.fuses_classifier(inputs, units)
        if not is_fused and kernels.gemm_for(units, units, inputs) == "wgmma":
            result.append(layer)
    return result
