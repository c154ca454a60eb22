"""Dense layers of few bits (kernels/quantised): W is quantised once, samples in each call, by rows."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from nn.launch.elementwise import ACTIVATE_IN_PLACE
from nn.launch.shapes import MAX_GRID_Y, matrix_shape, require_shape
from nn.launch.work import Compute, Work
from pyrt.arrays import DeviceArray, aligned
from pyrt.driver import Driver
from pyrt.kernels import Launch, blocks, in_order

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels

WARP, ROWS, THREADS = 32, 8, 256
"""Lanes; rows of a block with a warp a row; threads of a block with a thread a result, or of one row."""


FOR_FEW = ("thread", "warp")
"""The versions that read W for each sample anew."""


@dataclass(frozen=True, eq=False)
class QuantisedRows:
    """A matrix (rows, columns) with a scale for each row: row i is ``scales[i]`` times small numbers.

    ``numbers`` (rows, length) lie without gaps, filled up with zeros; ``scales`` (rows,) float32.
    """

    columns: int
    numbers: DeviceArray
    scales: DeviceArray

    @classmethod
    def from_host(
        cls, driver: Driver, columns: int, numbers: np.ndarray, scales: np.ndarray
    ) -> QuantisedRows:
        """Copy them to the device."""
        return cls(columns, *(DeviceArray.from_host(driver, array) for array in (numbers, scales)))

    @property
    def rows(self) -> int:
        return self.numbers.shape[0]


@dataclass(frozen=True)
class QuantisedProduct(Work):
    """Y = f(X' W^T + bias), X' the quantised X; X (samples, inputs), Y (samples, units), bias (units,).

    ``bias`` may be None. Subclasses choose numbers, kernels and versions; X and Y are float32.
    """

    Y: DeviceArray
    X: DeviceArray
    W: QuantisedRows
    bias: DeviceArray | None = None
    activation: str = "identity"
    version: str = "auto"

    file: ClassVar[str]
    """The kernel file of versions ``thread`` and ``warp``, and the first part of their names."""
    number: ClassVar[type[np.generic]]

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        bias = (self.bias,) if self.bias is not None else ()
        return self.X, self.W.numbers, self.W.scales, *bias

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return (self.Y,)

    @property
    def flops(self) -> int:
        return 2 * self.X.size * self.W.rows + 4 * self.Y.size

    @abstractmethod
    def choose(self, kernels: Kernels) -> str:
        """Return the version that runs."""

    @abstractmethod
    def quantise(self, kernels: Kernels, X: QuantisedRows) -> Launch:
        """Bind the kernel that quantises the samples."""

    @abstractmethod
    def bind_many(self, kernels: Kernels, X: QuantisedRows) -> Launch:
        """Bind the version for many samples, once they are quantised."""

    @abstractmethod
    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Return the exact sums (samples, units) of numbers of X and W in NumPy."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """Lengths of rows, as the kernels for few samples take them."""

    @abstractmethod
    def quantised(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers and scales of rows in NumPy."""

    def many_workspace(self, kernels: Kernels) -> int:
        """Count the bytes that the version for many samples uses beside the quantised samples."""
        return 0

    def workspace(self, kernels: Kernels) -> int:
        samples, length = self.X.shape[0], self.W.numbers.shape[1]
        quantised = aligned(samples * length * np.dtype(self.number).itemsize) + aligned(4 * samples)
        return quantised + (0 if self.choose(kernels) in FOR_FEW else self.many_workspace(kernels))

    def on_device(self, kernels: Kernels) -> Launch:
        """Raise ValueError for another dtype than float32, or arrays that do not fit."""
        samples, inputs = matrix_shape(self.file, X=self.X)
        if kernels.real != "float" or inputs != self.W.columns or not 0 < samples <= MAX_GRID_Y:
            raise ValueError(
                f"{self.file}: X {self.X.shape} of {kernels.real} and W of {self.W.columns} inputs of float"
            )
        require_shape(self.file, (samples, self.W.rows), Y=self.Y)
        if self.bias is not None:
            require_shape(self.file, (self.W.rows,), bias=self.bias)
        X = QuantisedRows(
            inputs,
            kernels.workspace((samples, self.W.numbers.shape[1]), self.number),
            kernels.workspace((samples,), np.float32),
        )
        version = self.choose(kernels)
        bind = self._bind_few(kernels, X, version) if version in FOR_FEW else self.bind_many(kernels, X)
        return in_order([self.quantise(kernels, X), bind])

    def _bind_few(self, kernels: Kernels, X: QuantisedRows, version: str) -> Launch:
        """Bind a version whose blocks have units of one sample."""
        kernel = kernels.kernel(
            f"quantised/{self.file}", f"{self.file}_{version}", ACTIVATION=self.activation
        )
        rows, block = (THREADS, (THREADS,)) if version == "thread" else (ROWS, (WARP, ROWS))
        grid = blocks(self.W.rows, rows), X.rows
        return kernel.bind(grid, block, self.W.rows, *self.sizes, *self.operands(X), self.bias, self.Y)

    def operands(self, X: QuantisedRows) -> tuple[DeviceArray, ...]:
        """Return the arrays of both operands, as kernels take them."""
        return X.numbers, X.scales, self.W.numbers, self.W.scales

    def in_numpy(self) -> Compute:
        return self.in_numpy_of(self.X.host_view())

    def in_numpy_of(self, x: np.ndarray) -> Compute:
        """Bind NumPy to samples (samples, inputs) that lie elsewhere than X."""
        y = self.Y.host_view()
        w, scales = self.W.numbers.host_view(), self.W.scales.host_view()
        bias = self.bias.host_view() if self.bias is not None else np.float32(0)

        def compute() -> None:
            numbers, of_samples = self.quantised(x)
            np.multiply(scales * of_samples[:, None], self.product(numbers, w), out=y, dtype=np.float32)
            np.add(y, bias, out=y)
            ACTIVATE_IN_PLACE[self.activation](y)

        return compute
