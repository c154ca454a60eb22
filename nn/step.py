"""The one description of a training step: a list of operations over arrays that stay where they are.

Built once for each number of samples that a rank gets (a full batch, the short last one), and bound to
the device once: running it makes no decisions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from nn import operations
from nn.activations import Activations
from nn.launches import Kernels
from nn.operations import BACKWARD, FORWARD, FinishMove, Item, Operation, StartMove, SumGradients, charged
from nn.panels import LOSS, Panel
from nn.plan import BY_UNITS, RankPart
from nn.source import Source
from pyrt.exchange import Exchange
from pyrt.memory import Arena, DeviceArray
from pyrt.moves import Bound, Links, Move
from pyrt.phases import Phases
from pyrt.streams import Streams


@dataclass(frozen=True)
class Pass:
    """What the passes through the network are made of; each is a list for so many samples of the group."""

    part: RankPart
    parameters: Arena
    activations: Activations
    source: Source
    scale: float
    """Pixels are divided by it."""

    def logits(self, samples: int) -> list[Item]:
        """From the images to the logits, where the head takes them."""
        items = self._forward(samples)
        if not self._adds_bias:
            depth = self.part.network.depth
            Z, b = self.activations.taken(depth, samples), self._output_bias
            items += _of_layer(depth, [operations.bias_activation("output bias", Z, b, "identity")])
        return _without_empty(items)

    def gradients(self, gradients: Arena, panels: Sequence[Panel], samples: int, batch: int) -> list[Item]:
        """From the images to this rank's part of all gradients, for so many of the ``batch``'s samples."""
        items = [*self._forward(samples), *self._head(gradients, panels, samples, batch)]
        return _without_empty([*items, *self._backward(gradients, panels, samples)])

    @property
    def _adds_bias(self) -> bool:
        """Whether each rank adds its units' part of the output bias before the logits come together."""
        return self.part.plan.makes(self.part.network.depth) == BY_UNITS

    @property
    def _output_bias(self) -> DeviceArray:
        return self.parameters[f"b{self.part.network.depth}"]

    def _forward(self, samples: int) -> list[Item]:
        """To Z_L = A_{L-1} W_L^T, without its bias unless `_adds_bias`."""
        items: list[Item] = [self.source.scaled(self.activations.made(0, samples), self.scale)]
        for layer in self.part.network.layers:
            items += _of_layer(layer, self._layer(layer, samples))
        return items

    def _layer(self, layer: int, samples: int) -> list[Item]:
        part, activations = self.part, self.activations
        product = f"forward GEMM {layer}"
        A, Z = activations.taken(layer - 1, samples), activations.made(layer, samples)
        W, b = self.parameters[f"W{layer}"], self.parameters[f"b{layer}"]
        items: list[Item] = [operations.gemm(product, FORWARD, Z, A, W, transpose_b=True)]
        items += _Moved.of(f"sum of {product}", FORWARD, part.sum_move(layer, samples), Z, Z).at_once
        if layer < part.network.depth:
            name = f"bias and activation {layer}"
            items.append(operations.bias_activation(name, Z, b, part.network.activation))
        elif self._adds_bias:
            items.append(operations.bias_activation("output bias", Z, b, "identity"))
        move, taken = part.forward_move(layer, samples), activations.taken(layer, samples)
        return [*items, *_Moved.of(f"move of activations {layer}", FORWARD, move, Z, taken).at_once]

    def _head(self, gradients: Arena, panels: Sequence[Panel], samples: int, batch: int) -> list[Item]:
        """Logits to dZ_L, where the output layer made Z_L, and to the loss."""
        part, activations, depth = self.part, self.activations, self.part.network.depth
        Z, losses = activations.taken(depth, samples), activations.losses(samples)
        first = part.rows(depth + 1, samples)[0] - part.rows(1, samples)[0]
        labels = self.source.labels.rows(first, first + Z.shape[0])
        b = activations.no_bias if self._adds_bias else self._output_bias
        items: list[Item] = [
            operations.head(part.network.head, Z, b, labels, losses, 1 / batch),
            operations.column_sums(
                "sum of losses", FORWARD, losses.reshape(losses.size, 1), gradients["loss"]
            ),
        ]
        items += [
            _leaves(gradients, bucket, panel, FORWARD)
            for bucket, panel in enumerate(panels)
            if panel.layer == LOSS
        ]
        move, made_back = part.backward_move(depth, samples), activations.made_back(depth, samples)
        items += _Moved.of(f"move of gradients {depth}", FORWARD, move, Z, made_back).at_once
        return _of_layer(depth, items)

    def _backward(self, gradients: Arena, panels: Sequence[Panel], samples: int) -> list[Item]:
        """dZ_L to all gradients. W_l is read before the first bucket of its layer may leave and update it."""
        items: list[Item] = []
        products = (f"backward GEMM {number}" for number in itertools.count(1))
        for layer in reversed(self.part.network.layers):
            dZ = self.activations.made_back(layer, samples)
            bias = gradients[f"b{layer}"]
            sums = operations.column_sums(f"bias gradient {layer}", BACKWARD, dZ, bias)
            moved = self._below(layer, samples, next(products)) if layer > 1 else _Moved()
            weights = self._weights(gradients, panels, layer, samples, next(products))
            items += _of_layer(layer, [sums, *moved.start, *weights, *moved.finish])
        return items

    def _below(self, layer: int, samples: int, product: str) -> _Moved:
        """dZ_{l-1}; while it moves the gradients of W_l can be made."""
        activations, below = self.activations, layer - 1
        dZ, W = activations.made_back(layer, samples), self.parameters[f"W{layer}"]
        taken, made = activations.taken_back(below, samples), activations.made_back(below, samples)
        move = self.part.backward_move(below, samples)
        moved = _Moved.of(f"move of gradients {below}", BACKWARD, move, taken, made)
        multiply = operations.gemm(product, BACKWARD, taken, dZ, W)
        through = operations.activation_backward(
            f"activation gradient {below}",
            activations.made(below, samples),
            made,
            self.part.network.activation,
        )
        if move is None:
            return _Moved([multiply, through])
        return _Moved([multiply, *moved.start], [*moved.finish, through])

    def _weights(
        self, gradients: Arena, panels: Sequence[Panel], layer: int, samples: int, product: str
    ) -> list[Item]:
        """dW_l, and where its buckets may leave."""
        dZ = self.activations.made_back(layer, samples)
        below = self.activations.taken(layer - 1, samples)
        items: list[Item] = []
        for bucket, panel in enumerate(panels):
            if panel.layer == layer:
                dW = gradients[f"W{layer}"].rows(panel.start, panel.stop)
                columns = dZ.columns(panel.start, panel.stop)
                items.append(operations.gemm(product, BACKWARD, dW, columns, below, transpose_a=True))
                items.append(_leaves(gradients, bucket, panel, BACKWARD))
        return items


def _of_layer(layer: int, items: Sequence[Item]) -> list[Item]:
    return [replace(item, layer=layer) if isinstance(item, Operation) else item for item in items]


def _leaves(gradients: Arena, bucket: int, panel: Panel, part: str) -> SumGradients:
    return SumGradients(bucket, part, gradients.flat.rows(panel.bucket.start, panel.bucket.stop))


@dataclass(frozen=True)
class _Moved:
    """What starts a move, and what ends it."""

    start: list[Item] = field(default_factory=list)
    finish: list[Item] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, part: str, move: Move | None, source: DeviceArray, target: DeviceArray) -> _Moved:
        """Of none: nothing."""
        if move is None:
            return cls()
        start = StartMove(name, part, move, source, target)
        return cls([start], [FinishMove(start)])

    @property
    def at_once(self) -> list[Item]:
        return [*self.start, *self.finish]


def _without_empty(items: Sequence[Item]) -> list[Item]:
    """The list of a rank that perhaps gets no sample: what is made of none is zero, if it is anything."""
    result: list[Item] = []
    for item in items:
        if not isinstance(item, Operation) or all(array.size for array in item.reads):
            result.append(item)
        else:
            zeros = (operations.zeros(item.name, item.part, array) for array in item.writes if array.size)
            result += _of_layer(item.layer, list(zeros))
    return result


class TrainingStep:
    """The items of a step bound to a device, each under its phase."""

    def __init__(
        self,
        items: Sequence[Item],
        streams: Streams,
        phases: Phases,
        kernels: Kernels | None,
        exchange: Exchange,
        links: Links,
    ) -> None:
        """``kernels`` is None where NumPy computes."""
        moves: dict[int, Bound] = {}
        self._parts = []
        for part in (FORWARD, BACKWARD):
            calls = [
                under_phase(item, streams, phases, kernels)
                if isinstance(item, Operation)
                else partial(exchange.ready, item.bucket)
                if isinstance(item, SumGradients)
                else bind_move(item, links, moves)
                for item in items
                if item.part == part
            ]
            self._parts.append((phases.phase(part, streams.compute), calls))

    def run(self) -> None:
        """Queue all items on the compute stream (in NumPy: compute them)."""
        for phase, calls in self._parts:
            with phase:
                for call in calls:
                    call()


def bind_all(
    items: Sequence[Item], streams: Streams, kernels: Kernels | None, links: Links
) -> list[Callable[[], object]]:
    """What queues, or computes, a list that has no gradients to sum."""
    moves: dict[int, Bound] = {}
    return [
        bind(item, streams, kernels) if isinstance(item, Operation) else bind_move(item, links, moves)
        for item in items
        if not isinstance(item, SumGradients)
    ]


def bind_move(item: StartMove | FinishMove, links: Links, bound: dict[int, Bound]) -> Callable[[], None]:
    """What starts a move, or ends one; ``bound`` has those of the list that were started."""
    if isinstance(item, StartMove):
        with item.source.driver.ledger.of("moves"):
            move = bound[id(item)] = links.bind(item.name, item.move, item.source, item.target)
        return move.start
    return bound[id(item.started)].finish


def bind(operation: Operation, streams: Streams, kernels: Kernels | None) -> Callable[[], object]:
    """What queues the operation on the compute stream, or computes it in NumPy where there are no kernels."""
    with charged(operation.writes[0].driver, operation):
        if kernels is None:
            return operation.in_numpy()
        return partial(operation.on_device(kernels).call, streams.compute)


def under_phase(
    operation: Operation, streams: Streams, phases: Phases, kernels: Kernels | None
) -> Callable[[], None]:
    """As ``bind``, under the operation's phase."""
    phase = phases.phase(operation.name, streams.compute)
    call = bind(operation, streams, kernels)

    def timed() -> None:
        with phase:
            call()

    return timed


class EmptyStep:
    """The step of a rank that gets no samples of a batch: its gradients are zeros, and it takes part."""

    def __init__(
        self,
        gradients: Arena,
        buckets: int,
        streams: Streams,
        phases: Phases,
        exchange: Exchange,
        skip: Callable[[], object],
    ) -> None:
        """``skip`` queues what the source of batches wants instead of their samples."""
        self._gradients = gradients.flat
        self._buckets = buckets
        self._stream = streams.compute
        self._phase = phases.phase("backward", streams.compute)
        self._exchange = exchange
        self._skip = skip

    def run(self) -> None:
        """Queue zeros and offer them to the exchange."""
        with self._phase:
            self._skip()
            self._gradients.driver.fill(self._gradients.pointer, 0, self._gradients.nbytes, self._stream)
            for bucket in range(self._buckets):
                self._exchange.ready(bucket)
