"""The one description of a training step: a list of operations over arrays that stay where they are.

Built once for each number of samples that a rank gets (a full batch, the short last one), and bound to
the device once: running it makes no decisions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

from nn import operations
from nn.launches import Kernels
from nn.network import LARGEST, Network
from nn.operations import BACKWARD, FORWARD, Item, Operation
from nn.plan import Panel
from nn.source import Source
from pyrt.errors import UserError
from pyrt.exchange import Exchange
from pyrt.memory import Arena, DeviceArray
from pyrt.phases import Phases
from pyrt.streams import Streams


class Activations:
    """Device arrays for the activations of up to ``rows`` samples, and for their gradients.

    ``A[0]`` (rows, D) is the scaled batch, ``A[l]`` (rows, H_l) the layers; ``A[L]`` holds the logits,
    then dZ_L in their place. ``dA[l]`` is there for hidden layers.
    """

    def __init__(self, parameters: Arena, network: Network, rows: int) -> None:
        driver, dtype = parameters.flat.driver, parameters.flat.dtype
        if rows * max(network.sizes) > LARGEST:
            raise UserError(
                f"{rows} samples a rank in layers of up to {max(network.sizes)} units are more than 2^31 "
                "activations: use a smaller --batch or more ranks"
            )
        self.rows = rows
        self.A = [DeviceArray.empty(driver, (rows, size), dtype) for size in network.sizes]
        self.dA = {
            layer: DeviceArray.empty(driver, (rows, network.sizes[layer]), dtype)
            for layer in range(1, network.depth)
        }
        self.losses = DeviceArray.empty(driver, (rows,), dtype)


def forward_items(
    network: Network, parameters: Arena, activations: Activations, source: Source, rows: int, scale: float
) -> list[Operation]:
    """From the images of a batch to Z_L = A_{L-1} W_L^T, still without its bias."""
    A = [array.rows(0, rows) for array in activations.A]
    items = [source.scaled(A[0], scale)]
    for layer in network.layers:
        product = f"forward GEMM {layer}"
        items.append(
            operations.gemm(
                product, FORWARD, A[layer], A[layer - 1], parameters[f"W{layer}"], transpose_b=True
            )
        )
        if layer < network.depth:
            name = f"bias and activation {layer}"
            items.append(
                operations.bias_activation(name, A[layer], parameters[f"b{layer}"], network.activation)
            )
    return items


def logits_items(
    network: Network, parameters: Arena, activations: Activations, source: Source, rows: int, scale: float
) -> list[Operation]:
    """From the images of a batch to the logits, in ``activations.A[L]``."""
    Z, b = activations.A[-1].rows(0, rows), parameters[f"b{network.depth}"]
    return [
        *forward_items(network, parameters, activations, source, rows, scale),
        operations.bias_activation("output bias", Z, b, "identity"),
    ]


def training_items(
    network: Network,
    parameters: Arena,
    gradients: Arena,
    activations: Activations,
    panels: Sequence[Panel],
    source: Source,
    rows: int,
    batch: int,
    scale: float,
) -> list[Item]:
    """From the images of a batch to all gradients of this rank's ``rows`` of the ``batch``'s samples."""
    Z, b = activations.A[-1].rows(0, rows), parameters[f"b{network.depth}"]
    losses = activations.losses.rows(0, rows)
    return [
        *forward_items(network, parameters, activations, source, rows, scale),
        operations.head(network.head, Z, b, source.labels.rows(0, rows), losses, 1 / batch),
        operations.column_sums("sum of losses", FORWARD, losses.reshape(rows, 1), gradients["loss"]),
        *_backward_items(network, parameters, gradients, activations, panels, rows),
    ]


def _backward_items(
    network: Network,
    parameters: Arena,
    gradients: Arena,
    activations: Activations,
    panels: Sequence[Panel],
    rows: int,
) -> list[Item]:
    """dZ_L to all gradients. W_l is read before the first bucket of its layer may leave and update it."""
    items: list[Item] = []
    products = itertools.count(1)
    dZ = activations.A[-1].rows(0, rows)
    for layer in reversed(network.layers):
        below, dZ_above = activations.A[layer - 1].rows(0, rows), dZ
        items.append(operations.column_sums(f"bias gradient {layer}", BACKWARD, dZ, gradients[f"b{layer}"]))
        if layer > 1:
            dZ = activations.dA[layer - 1].rows(0, rows)
            product = f"backward GEMM {next(products)}"
            items.append(operations.gemm(product, BACKWARD, dZ, dZ_above, parameters[f"W{layer}"]))
            name = f"activation gradient {layer - 1}"
            items.append(operations.activation_backward(name, below, dZ, network.activation))
        product = f"backward GEMM {next(products)}"
        for bucket, panel in enumerate(panels):
            if panel.layer == layer:
                dW = gradients[f"W{layer}"].rows(panel.start, panel.stop)
                columns = dZ_above.columns(panel.start, panel.stop)
                items.append(operations.gemm(product, BACKWARD, dW, columns, below, transpose_a=True))
                leaves = gradients.flat.rows(panel.bucket.start, panel.bucket.stop)
                items.append(operations.SumGradients(bucket, leaves=leaves))
    return items


class TrainingStep:
    """The items of a step bound to a device, each under its phase."""

    def __init__(
        self,
        items: Sequence[Item],
        streams: Streams,
        phases: Phases,
        kernels: Kernels | None,
        exchange: Exchange,
    ) -> None:
        """``kernels`` is None where NumPy computes."""
        self._parts = []
        for part in (FORWARD, BACKWARD):
            calls = [
                under_phase(item, streams, phases, kernels)
                if isinstance(item, Operation)
                else partial(exchange.ready, item.bucket)
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


def bind(operation: Operation, streams: Streams, kernels: Kernels | None) -> Callable[[], object]:
    """What queues the operation on the compute stream, or computes it in NumPy where there are no kernels."""
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
