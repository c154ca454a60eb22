"""Inference with a network's light weights as they are: which layers have them, and the rule for the list.

- The product of a dense layer, or a convolution, becomes one with the light weights; its bias and activation
  go into it.

Weights that are light are not there as floats: nothing but what the rule replaces may read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nn.launch.conv.convolution import Convolution
from nn.launch.conv.gathered import result_of
from nn.launch.gemm.product import Product
from nn.launch.light import InsteadOf, LightMatrix, QuantisedWeights, SparseWeights, StaysDense
from nn.model.dense import Dense
from nn.model.network import Network
from nn.program.known_components import epilogue_of
from nn.program.operations import Item, Operation
from nn.program.rewrite import Replacement, rewrite, same
from pyrt.arrays import Arena, DeviceArray, Layout
from pyrt.driver import Driver
from pyrt.errors import UserError

WAYS = DENSE, SPARSE, INT8, BINARY = ("dense", "sparse", "int8", "binary")
"""How inference has the weights."""

_MAKE: dict[str, Callable[[np.ndarray], LightMatrix]] = {
    SPARSE: SparseWeights.of,
    INT8: QuantisedWeights.of_bytes,
    BINARY: QuantisedWeights.of_signs,
}


@dataclass(frozen=True, eq=False)
class LightWeights:
    """The weights of a network on the host, light where they can be."""

    way: str
    """One of `WAYS`, not dense."""
    parameters: Mapping[str, np.ndarray]
    """All as they were given."""
    layers: Mapping[int, LightMatrix]
    """The light ones, by layer."""
    dense: Mapping[int, str]
    """Why each other layer's weights stay as they are."""

    @classmethod
    def of(cls, way: str, network: Network, parameters: Mapping[str, np.ndarray]) -> LightWeights | None:
        """Make a network's weights W1, .. light in one of the `WAYS`; None for dense ones."""
        if way == DENSE:
            return None
        layers: dict[int, LightMatrix] = {}
        dense: dict[int, str] = {}
        for layer in network.numbers:
            W = np.asarray(parameters[f"W{layer}"], np.float32).reshape(network.matrix(layer))
            try:
                _require_light(way, network, layer)
                layers[layer] = _MAKE[way](W)
            except StaysDense as error:
                dense[layer] = str(error)
        return cls(way, parameters, layers, dense)

    @property
    def text(self) -> str:
        """Say what each layer has, and what the light weights weigh."""
        light = sum(matrix.nbytes for matrix in self.layers.values())
        whole = sum(4 * self.parameters[f"W{layer}"].size for layer in self.layers)
        parts = [f"layer {layer} stays dense: {why}" for layer, why in self.dense.items()]
        if self.layers:
            names = f"layer{'s' * (len(self.layers) > 1)} {', '.join(map(str, self.layers))}"
            parts.insert(0, f"{self.way} in {names}: {light / 1e3:.1f} kB for {whole / 1e3:.1f} kB")
        return "; ".join(parts)


def require_way(way: str, dtype: str) -> None:
    """Raise UserError unless inference can have its weights so in a dtype."""
    if way not in WAYS:
        raise UserError(f"--weights {way}: must be one of {', '.join(WAYS)}")
    if way != DENSE and dtype != "float32":
        raise UserError(f"--weights {way}: computes in float32: leave out --dtype {dtype}")


def _require_light(way: str, network: Network, layer: int) -> None:
    """Raise StaysDense for a layer whose weights stay as they are, whatever their values.

    Of signs these are the first and the last one, as in Rastegari et al. (2016), 4.1.
    """
    if way == SPARSE and not isinstance(network.layer(layer), Dense):
        raise StaysDense("a convolution")
    if way == BINARY and layer in (1, network.depth):
        raise StaysDense(f"the {'first' if layer == 1 else 'last'} one")


class LightArena(Arena):
    """Parameters of which light weights are not there: their arrays have no memory."""

    def __init__(self, driver: Driver, layout: Layout, absent: Mapping[str, DeviceArray]) -> None:
        """``layout`` is of those that are there."""
        super().__init__(driver, layout)
        self._absent = absent

    def __getitem__(self, name: str) -> DeviceArray:
        return self._absent[name] if name in self._absent else super().__getitem__(name)


class LightRule:
    """The rule for lists of one model."""

    def __init__(self, driver: Driver, light: LightWeights, weights: Arena) -> None:
        """Copy the light weights to the device; ``weights`` has the arrays that operations name."""
        self._driver = driver
        self._light: list[tuple[DeviceArray, InsteadOf]] = [
            (weights[f"W{layer}"], matrix.on_device(driver, layer)) for layer, matrix in light.layers.items()
        ]

    def applied(self, items: Sequence[Item]) -> list[Item]:
        """Rewrite a list."""
        return rewrite(items, [self.layer], self._driver)

    def layer(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Make a layer's product or convolution with light weights, and its bias and activation."""
        match rest[0]:
            case Operation(work=Product(transpose_a=False, transpose_b=True) as plain) as first:
                W, result = plain.B, plain.D
            case Operation(work=Convolution() as plain) as first:
                W, result = plain.filters, result_of(plain)
            case _:
                return None
        instead_of = next((found for array, found in self._light if same(array, W)), None)
        if instead_of is None:
            return None
        after, count = epilogue_of(result, rest[1:2])
        return Replacement(count, [replace(first, work=work) for work in instead_of(plain, after)])
