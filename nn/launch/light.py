"""The weights of one layer as inference multiplies with them: sparse ones that share values, bytes, signs.

Made on the host from the weights (units, inputs), or filters (filters, pixels); devices get copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Protocol

import numpy as np

from nn.launch.binary import BinaryProduct, binarise
from nn.launch.conv.convolution import Convolution
from nn.launch.conv.quantised import QuantisedConvolution
from nn.launch.csr import CODES, Csr, SparseMatrix, csr_of
from nn.launch.gemm.product import Epilogue, Product
from nn.launch.int8 import MOST_INPUTS, Int8Product, quantise
from nn.launch.quantised import QuantisedProduct, QuantisedRows
from nn.launch.shapes import launches
from nn.launch.sparse import FEW, SparseProduct
from nn.launch.work import Work
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver

InsteadOf = Callable[[Product | Convolution, Epilogue], Sequence[Work]]
"""Makes what takes the place of a layer's product or convolution, and of its bias and activation."""


class StaysDense(ValueError):
    """Says why a layer's weights stay as they are."""


class LightMatrix(Protocol):
    """The weights of a layer."""

    @property
    def nbytes(self) -> int:
        """The bytes that a product reads of them."""

    def on_device(self, driver: Driver, layer: int) -> InsteadOf:
        """Copy them to a device, as weights of that layer; return what multiplies with them there."""


@dataclass(frozen=True, eq=False)
class SparseWeights:
    """Weights of which most are zero, and the others share values."""

    csr: Csr

    @classmethod
    def of(cls, W: np.ndarray) -> SparseWeights:
        """Find the values that weights (units, inputs) float32 share; StaysDense: they are too many."""
        flat = W.reshape(-1)
        places = np.flatnonzero(flat)
        codebook, codes = np.unique(flat[places], return_inverse=True)
        if len(codebook) > CODES:
            raise StaysDense(f"{len(codebook)} different values, at most {CODES} are shared")
        return cls(csr_of((W.shape[0], W.shape[1]), places, codes, codebook))

    @property
    def nbytes(self) -> int:
        return self.csr.nbytes

    @cached_property
    def _interleaved(self) -> Csr:
        return self.csr.interleaved()

    def on_device(self, driver: Driver, layer: int) -> InsteadOf:
        """Copy them when a product first needs them, in the order that its number of samples wants."""

        @cache
        def matrix(for_few: bool) -> SparseMatrix:
            with driver.ledger.of("weights", layer):
                return SparseMatrix.from_host(driver, self._interleaved if for_few else self.csr)

        def instead_of(plain: Product | Convolution, after: Epilogue) -> Sequence[Work]:
            assert isinstance(plain, Product), "convolutions stay dense"
            return [
                SparseProduct(Y, X, matrix(X.shape[0] <= FEW), after.bias, after.activation)
                for Y, X in _parts(plain)
            ]

        return instead_of


@dataclass(frozen=True, eq=False)
class QuantisedWeights:
    """Weights (units, inputs) as small numbers, and a scale for each unit."""

    kind: type[QuantisedProduct]
    inputs: int
    numbers: np.ndarray
    scales: np.ndarray

    @classmethod
    def of_bytes(cls, W: np.ndarray) -> QuantisedWeights:
        """Round weights to signed bytes; StaysDense: their sums may be too large for int32."""
        if W.shape[1] > MOST_INPUTS:
            raise StaysDense(f"{W.shape[1]} inputs, whose sums may be too large for int32")
        return cls(Int8Product, W.shape[1], *quantise(W))

    @classmethod
    def of_signs(cls, W: np.ndarray) -> QuantisedWeights:
        """Keep the signs of weights."""
        return cls(BinaryProduct, W.shape[1], *binarise(W))

    @property
    def nbytes(self) -> int:
        return self.numbers.nbytes + self.scales.nbytes

    def on_device(self, driver: Driver, layer: int) -> InsteadOf:
        with driver.ledger.of("weights", layer):
            W = QuantisedRows.from_host(driver, self.inputs, self.numbers, self.scales)

        def instead_of(plain: Product | Convolution, after: Epilogue) -> Sequence[Work]:
            if isinstance(plain, Convolution):
                return [QuantisedConvolution(plain, W, self.kind, after.bias, after.activation)]
            return [self.kind(Y, X, W, after.bias, after.activation) for Y, X in _parts(plain)]

        return instead_of


def _parts(plain: Product) -> Iterator[tuple[DeviceArray, DeviceArray]]:
    """Yield the rows of D and A of each launch: D = A W^T."""
    for start, stop in launches(plain.D.shape[0]):
        yield plain.D.rows(start, stop), plain.A.rows(start, stop)
