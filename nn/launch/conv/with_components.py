"""Images that the kernel that makes them leaves as bf16 components too, for convolutions that read these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nn.launch.gemm.components import Components, Split
from nn.launch.work import Compute, Work
from pyrt.arrays import DeviceArray
from pyrt.kernels import Launch

if TYPE_CHECKING:
    from nn.launch.conv.convolution import ConvolutionWork
    from nn.launch.kernels import Kernels


@dataclass(frozen=True)
class WithComponents(Work):
    """What ``maker`` does and, in the same launch, ``split`` of images that it makes.

    ``launch`` binds the maker's kernel for `Kernels`, with ``components``; its arrays are found if it is a
    ``partial``.
    """

    maker: Work
    split: Split
    launch: Callable[..., Launch]
    kind: str = ""

    @property
    def reads(self) -> tuple[DeviceArray, ...]:
        return self.maker.reads

    @property
    def writes(self) -> tuple[DeviceArray, ...]:
        return *self.maker.writes, *self.split.writes

    @property
    def results(self) -> tuple[DeviceArray | Components, ...]:
        return *self.maker.results, *self.split.results

    @property
    def flops(self) -> int:
        return self.maker.flops + self.split.flops

    @property
    def tensor_flops(self) -> int:
        return self.maker.tensor_flops

    @property
    def convolution(self) -> ConvolutionWork | None:
        return self.maker.convolution

    def workspace(self, kernels: Kernels) -> int:
        return self.maker.workspace(kernels)

    def on_device(self, kernels: Kernels) -> Launch:
        (components,) = self.split.results
        return self.launch(kernels, components=components)

    def in_numpy(self) -> Compute:
        make, split = self.maker.in_numpy(), self.split.in_numpy()

        def compute() -> None:
            make()
            split()

        return compute


def component_arguments(
    components: Components | None, images: DeviceArray, at_once: int = 1
) -> tuple[DeviceArray | None, int, int]:
    """Return array, count and distance of packed components of images, as kernels take them.

    Raises ValueError where they do not fit the images (pixels, channels), or the kernel, which writes so many
    neighbours at once.
    """
    if components is None:
        return None, 0, 0
    rows, channels = images.shape
    if (components.rows, components.columns, components.ld) != (rows, channels, channels):
        raise ValueError(
            f"{components.rows} x {components.columns} components are not packed ones of {images.shape}"
        )
    if channels % at_once:
        raise ValueError(f"components of {channels} channels: the kernel writes {at_once} at once")
    return components.array, components.count, components.distance
