"""The kernels of a device for one dtype and accuracy, and the choice of a kernel for each operation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import DTypeLike

from nn.launch.classifier import FusedClassifier, fused_classifier_fits
from nn.launch.conv.convolution import ConvolutionWork
from nn.launch.conv.implicit import fits_implicit
from nn.launch.conv.narrow import fits_narrow
from nn.launch.conv.shared import shared_fits
from nn.launch.conv.versions import CONV_VERSIONS, fastest_convolution
from nn.launch.conv.winograd import fits_winograd, gains_by_winograd
from nn.launch.fused_step import fused_step_fits
from nn.launch.gemm.components import COMPONENTS
from nn.launch.gemm.few_rows import takes_few_rows
from nn.launch.gemm.mma import MMA_COMPONENTS
from nn.launch.gemm.product import Product
from nn.launch.gemm.versions import GEMM_VERSIONS, TENSOR_ARCHITECTURES, fastest_gemm, version_for
from nn.launch.tensor_classifier import tensor_classifier_fits
from nn.launch.work import Work
from pyrt.arrays import DeviceArray, aligned
from pyrt.driver import Driver
from pyrt.kernels import REALS, Kernel, KernelLibrary

FUSED, APART = "fused", "apart"
"""What `Kernels.choose` says of the end of a network: one kernel, or its operations by themselves."""


class Kernels:
    """The project's kernels for one dtype.

    Parameters
    ----------
    library: where the kernels come from
    dtype: float32 or float64, of all numbers
    gemm: ``auto`` (see `fastest_gemm`) or one of `GEMM_VERSIONS`
    math: the accuracy of ``wgmma``, one of `COMPONENTS`, or of ``mma``, of `MMA_COMPONENTS`; what
        runs on ``mma`` beside ``wgmma`` in bf16 is TF32
    conv: ``auto`` (see `fastest_convolution`) or one of `CONV_VERSIONS`
    """

    def __init__(
        self,
        library: KernelLibrary,
        dtype: DTypeLike,
        gemm: str = "auto",
        math: str = "float32",
        conv: str = "auto",
    ) -> None:
        """Raise ValueError for words that are none of these."""
        if gemm not in ("auto", *GEMM_VERSIONS):
            raise ValueError(f"gemm is auto, {', '.join(GEMM_VERSIONS)}, not {gemm!r}")
        if conv not in ("auto", *CONV_VERSIONS):
            raise ValueError(f"conv is auto, {', '.join(CONV_VERSIONS)}, not {conv!r}")
        self.library = library
        best = fastest_convolution(dtype, library.driver.architecture)
        self.conv_version, self._may_take_winograd = (
            (best, math == "float32") if conv == "auto" else (conv, False)
        )
        self.real = REALS[np.dtype(dtype)]
        self.gemm_version = fastest_gemm(dtype, library.driver.architecture) if gemm == "auto" else gemm
        if self.gemm_version == "mma" and math not in MMA_COMPONENTS:
            raise ValueError(f"math of mma is {', '.join(MMA_COMPONENTS)}, not {math!r}")
        self._names_no_product = gemm == "auto"  # who names one wants to see it
        self.math, self.components = math, COMPONENTS[math]
        self.mma_components = MMA_COMPONENTS.get(math, MMA_COMPONENTS["tf32"])
        self._lent = DeviceArray(library.driver, 0, (0,), np.dtype(np.uint8), 0)

    @property
    def driver(self) -> Driver:
        return self.library.driver

    @property
    def uses_tensor_cores(self) -> bool:
        return self.gemm_version in ("mma", "wgmma")

    @property
    def uses_components(self) -> bool:
        """Whether products read their operands as bf16 components, not as they are."""
        return self.gemm_version == "wgmma"

    def choose(self, work: Product | FusedClassifier | ConvolutionWork) -> str:
        """Choose the kernel of an operation on this device, by its sizes.

        For a product: one of `GEMM_VERSIONS`; for a convolution: see `convolution_for`. For the end
        of a network: `FUSED`, or `APART` where separate kernels are faster or one does not fit.
        """
        if isinstance(work, Product):
            return self.gemm_for(*work.sizes)
        if isinstance(work, ConvolutionWork):
            return self.convolution_for(work)
        _, hidden, classes = work.sizes
        return FUSED if self.fuses_classifier(hidden, classes) else APART

    def gemm_for(self, M: int, N: int, K: int) -> str:
        """Choose the version of a matrix product of these sizes."""
        return version_for(self.gemm_version, M, N, K, self.math)

    def convolution_for(self, work: ConvolutionWork) -> str:
        """Choose the version of a convolution: one of `CONV_VERSIONS`, or one of its variants.

        Where a window is too large for ``shared``: ``direct``. For ``implicit``: ``narrow`` for few channels,
        and ``implicit_mma`` where there are no tensor cores of sm_90, or products run on those of ``mma``, or
        its operands do not fit. ``auto`` takes F(2x2) of Winograd where it is faster and as accurate.
        Where windows are not 3 x 3 at stride 1, for ``winograd``: ``im2col``, which has the same products.
        """
        if self.conv_version == "shared" and not shared_fits(work):
            return "direct"
        if self.conv_version == "winograd" and not fits_winograd(work):
            return "im2col"
        if self.conv_version != "implicit":
            return self.conv_version
        if fits_narrow(work):
            return "narrow"
        has_wgmma = self.driver.architecture in TENSOR_ARCHITECTURES and self.gemm_version != "mma"
        if not has_wgmma or not fits_implicit(work):
            return "implicit_mma"
        return "winograd_2x2" if self._may_take_winograd and gains_by_winograd(work) else "implicit"

    def fuses_classifier(self, hidden: int, classes: int) -> bool:
        """Return whether one kernel does the end of a network with so many hidden units and classes."""
        limit = self.driver.shared_memory
        return self.uses_tensor_cores and fused_classifier_fits(hidden, classes, np.float32, limit)

    def classifier_reads_components(self, hidden: int, classes: int) -> bool:
        """Return whether that kernel reads the hidden layer as one bf16 component, on tensor cores."""
        fits = tensor_classifier_fits(hidden, classes, self.driver.shared_memory)
        return self.uses_components and self.components == 1 and fits

    def takes_few_rows(self, product: Product) -> bool:
        """Return whether a product of inference is done by the kernel for few rows."""
        return self._names_no_product and takes_few_rows(product, self.math)

    def fuses_step(self, sizes: tuple[int, int, int, int]) -> bool:
        """Return whether one kernel does a step of so many rows, inputs, hidden units and classes."""
        driver, may = self.driver, self._names_no_product and self.uses_tensor_cores
        return may and fused_step_fits(sizes, driver.multiprocessors, driver.shared_memory)

    @contextmanager
    def lent(self, memory: DeviceArray | None) -> Iterator[None]:
        """Within it workspaces lie in this memory, uint8 (n,), as far as it goes."""
        before = self._lent
        if memory is not None:
            self._lent = memory
        try:
            yield
        finally:
            self._lent = before

    def may_run_beside(self, work: Work) -> bool:
        """Return whether the work may run on a stream beside others.

        Not a convolution of few channels, whose blocks would crowd some multiprocessors. Nor if it makes
        large matrices on the way, which can share the memory of others'.
        """
        alone = ("narrow", "im2col", "winograd", "winograd_2x2")
        return work.convolution is None or self.choose(work.convolution) not in alone

    def fills_device(self, work: Work) -> bool:
        """Return whether the work's blocks are as many as run at once, each with as much to do.

        Beside other work some of them would be held up, and so all.
        """
        convolution = work.convolution
        if convolution is None or convolution.samples <= self.driver.multiprocessors:
            return False
        return self.choose(convolution) == "narrow"

    def workspace(self, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """Make room for what kernels leave for each other within a launch: lent to them, or new memory."""
        dtype = np.dtype(dtype)
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > self._lent.nbytes:
            return DeviceArray.empty(self.driver, shape, dtype)
        flat, taken = self._lent, min(aligned(nbytes), self._lent.nbytes)
        self._lent = flat.rows(taken, flat.size)
        return DeviceArray(self.driver, flat.pointer, shape, dtype, shape[-1] if shape else 1)

    def kernel(self, file: str, name: str, **constants: str | int) -> Kernel:
        """Return a kernel of a file for this dtype; loaded once."""
        return self.library.kernel(file, name, REAL=self.real, **constants)

    def upload(self, packed: bytes) -> DeviceArray:
        """Copy structs that kernels read to the device, (n,) uint8."""
        return DeviceArray.from_host(self.driver, np.frombuffer(packed, np.uint8))
