"""What an operation of a step does: one piece of work on device arrays, as a kernel or in NumPy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch

if TYPE_CHECKING:
    from nn.launch.conv.convolution import ConvolutionWork
    from nn.launch.gemm.components import Components
    from nn.launch.gemm.product import Product
    from nn.launch.kernels import Kernels

Compute = Callable[[], object]
"""Does the work in NumPy."""


class Work(ABC):
    """One piece of work. Both ways to do it bind their arrays once, when a step is built."""

    kind = ""
    """The word by which a cost model times such work; empty: its operation's name."""

    @property
    @abstractmethod
    def reads(self) -> tuple[DeviceArray, ...]:
        """The arrays that it reads."""

    @property
    @abstractmethod
    def writes(self) -> tuple[DeviceArray, ...]:
        """The arrays that it writes."""

    @property
    def results(self) -> tuple[DeviceArray | Components, ...]:
        """What both ways to do it leave alike, but for roundings: components count by their sum."""
        return self.writes

    @property
    @abstractmethod
    def flops(self) -> int:
        """Count the arithmetic operations of its equation."""

    @property
    def tensor_flops(self) -> int:
        """Count the flops of bf16 in which tensor cores do a product, whose own are among ``flops``."""
        return 0

    @property
    def products(self) -> tuple[Product, ...]:
        """The matrix products in it."""
        return ()

    @property
    def convolution(self) -> ConvolutionWork | None:
        """The convolution in it, if there is one."""
        return None

    def workspace(self, kernels: Kernels) -> int:
        """Count the bytes that its kernels use beside its arrays while they run: see `Kernels.workspace`.

        What they need beyond that they allocate, and keep.
        """
        return 0

    @abstractmethod
    def on_device(self, kernels: Kernels) -> Launch:
        """Bind the kernels that do it."""

    @abstractmethod
    def in_numpy(self) -> Compute:
        """Bind NumPy to the same memory, on a device whose memory the host can use."""


@dataclass(frozen=True)
class Fused(Work):
    """Several pieces of work in one kernel. What they leave for each other is not kept.

    ``launch`` is a ``partial``, so that its arrays are found (nn/launch/arrays_of.py).
    """

    parts: Sequence[Work]
    inputs: tuple[DeviceArray, ...]
    outputs: tuple[DeviceArray, ...]
    launch: Callable[[Kernels], Launch]

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.inputs

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return self.outputs

    @property
    def flops(self) -> int:
        return sum(part.flops for part in self.parts)

    @property
    def tensor_flops(self) -> int:
        return sum(part.tensor_flops for part in self.parts)

    @property
    def products(self) -> tuple[Product, ...]:
        return tuple(product for part in self.parts for product in part.products)

    @property
    def convolution(self) -> ConvolutionWork | None:
        return next((found for part in self.parts if (found := part.convolution) is not None), None)

    def on_device(self, kernels: Kernels) -> Launch:
        return self.launch(kernels)

    def in_numpy(self) -> Compute:
        calls = [part.in_numpy() for part in self.parts]

        def compute() -> None:
            for call in calls:
                call()

        return compute
