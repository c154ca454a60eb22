"""Rules for tensor cores that multiply bf16 components (kernels/gemm/wgmma.cu).

Each matrix is split once, before the first product that reads it, unless what makes it leaves its components.
Pixels are gathered as a component, and the update keeps the components of weights. Products too narrow for
components are fused with what follows as everywhere (nn/program/fuse_arrays.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from nn.launch.gemm.components import Components, TakeComponents
from nn.launch.kernels import Kernels
from nn.launch.pixels import GatherBatch, ScalePixels
from nn.program.fuse_arrays import FuseColumnSums, FuseEpilogue
from nn.program.fuse_classifier import FuseClassifier
from nn.program.fuse_convolutions import ConvolutionRules
from nn.program.fuse_dense import DenseRules
from nn.program.known_components import KnownComponents
from nn.program.operations import Item, Operation
from nn.program.rewrite import Replacement, Rule
from pyrt.arrays import DeviceArray


class ComponentRules:
    """The rules for one list; ``known`` are matrices that are there as components when it begins."""

    def __init__(
        self,
        kernels: Kernels,
        take_components: TakeComponents,
        known: Sequence[tuple[DeviceArray, Components]],
    ) -> None:
        self._known = KnownComponents(kernels, take_components, known)
        there = self._known
        self._classifier = FuseClassifier(kernels, there.feeds_products_alone, there.leave, self._as_it_is)

    @property
    def rules(self) -> list[Rule]:
        """In the order in which they are tried."""
        dense, convolutions = DenseRules(self._known, self._classifier), ConvolutionRules(self._known)
        return [
            self.classifier,
            self.pixels,
            convolutions.gradient,
            dense.way_back,
            dense.product,
            partial(self._known.apply, FuseEpilogue(self._known.kernels)),
            partial(self._known.apply, FuseColumnSums(self._known.kernels)),
            convolutions.convolution,
            convolutions.pooling,
            self.other,
        ]

    def classifier(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Make the end of the network one kernel; dZ is components if only products from these read it."""
        return self._known.apply(self._classifier, rest, done)

    def _as_it_is(self, array: DeviceArray) -> Components | None:
        """Find the components whose sum a matrix is."""
        found = self._known.find(array)
        return found.components if found is not None and found.scale == 1 else None

    def pixels(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Pixels that bf16 holds, as they are, where only products read them: these scale their results."""
        operation, *later = rest
        work = operation.work if isinstance(operation, Operation) else None
        if not isinstance(operation, Operation) or not isinstance(work, ScalePixels | GatherBatch):
            return None
        if not work.is_exact or not self._known.feeds_products_alone(work.X, later):
            return None
        components = self._known.room(*work.X.shape, count=1)
        self._known.forget([operation])
        self._known.add(work.X, components, 1 / work.scale)
        return Replacement(1, [replace(operation, work=replace(work, components=components))])

    def other(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        """Leave any other item as it is; forget the components of what it writes."""
        self._known.forget(rest[:1])
        return None
