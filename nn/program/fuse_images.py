"""Rules for convolutions: fewer passes over images.

- Bias and activation go into a convolution on float32 arrays before them.
- The way back through pooling and activation, and the bias gradient, are one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from nn.launch.column_sums import ColumnSums
from nn.launch.conv.convolution import Convolution
from nn.launch.conv.gathered import result_of
from nn.launch.conv.implicit_mma import bind_implicit_mma
from nn.launch.conv.narrow import bind_narrow
from nn.launch.conv.output_gradient import OutputGradient, takes_nearest
from nn.launch.elementwise import ActivationBackward, BiasActivation
from nn.launch.gemm.components import Components
from nn.launch.gemm.product import Epilogue
from nn.launch.kernels import Kernels
from nn.launch.pool import PoolGradient
from nn.launch.work import Fused, Work
from nn.program.operations import Item, Operation
from nn.program.rewrite import Replacement, same, writes
from pyrt.arrays import DeviceArray

Kind = TypeVar("Kind", bound=Work)

ComponentsFor = Callable[[DeviceArray, Sequence[Item]], Components | None]
"""Makes components of a matrix that is about to be made, if what comes later reads nothing else of it."""

ComponentsOf = Callable[[DeviceArray, Sequence[Item]], Components | None]
"""Finds packed components of images that are there, if what comes later reads nothing else of these."""


_WITH_EPILOGUE = {"narrow": bind_narrow, "implicit_mma": bind_implicit_mma}
"""The versions of convolutions of float32 arrays that take bias and activation."""


@dataclass(frozen=True)
class FuseConvolution:
    """A convolution, then bias and activation of its result: one kernel."""

    kernels: Kernels

    def __call__(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        match rest[:2]:
            case [
                Operation(work=Convolution() as work) as first,
                Operation(work=BiasActivation() as after),
            ] if same(after.Z, result_of(work)):
                bind = _WITH_EPILOGUE.get(self.kernels.choose(work))
                if bind is None:
                    return None
                epilogue = Epilogue(bias=after.b, activation=after.activation)
                fused = Fused(
                    [work, after],
                    (*work.reads, after.b),
                    work.writes,
                    partial(bind, work=work, epilogue=epilogue),
                )
                return Replacement(2, [replace(first, work=fused)])
        return None


@dataclass(frozen=True)
class FuseOutputGradient:
    """Perhaps the gradient through max-pooling; that through an activation; later the sums of its columns."""

    components_for: ComponentsFor = lambda array, later: None
    components_of: ComponentsOf = lambda array, later: None

    def __call__(self, rest: Sequence[Item], done: Sequence[Item]) -> Replacement | None:
        pooling = _work(rest[0], PoolGradient)
        first = 0 if pooling is None else 1
        if len(rest) <= first or (pooling is not None and pooling.places is None):
            return None
        activation, operation = _work(rest[first], ActivationBackward), rest[first]
        if activation is None or not isinstance(operation, Operation):
            return None
        if pooling is not None and not same(pooling.images, activation.dA):
            return None
        place = _sums_of(activation.dA, rest[first + 1 :])
        if place is None:
            return None
        sums = _work(rest[first + 1 + place], ColumnSums)
        assert sums is not None
        later = [item for number, item in enumerate(rest[first + 1 :]) if number != place]
        work = OutputGradient(pooling, activation, sums, self.components_for(sums.X, later))
        if takes_nearest(activation.activation):
            work = replace(work, nearest=self.components_of(work.made, later))
        fused = replace(operation, work=work)
        return Replacement(first + 2 + place, [fused], later[:place])


def _work(item: Item, kind: type[Kind]) -> Kind | None:
    """Return the work of an operation if it is of this kind."""
    work = item.work if isinstance(item, Operation) else None
    return work if isinstance(work, kind) else None


def _sums_of(dZ: DeviceArray, later: Sequence[Item]) -> int | None:
    """Find the sums over all pixels of images whose gradient is dZ, a row a sample: their place, if any.

    Sums over a row a sample are a dense layer's, whose products make them.
    """
    for place, item in enumerate(later):
        sums = _work(item, ColumnSums)
        if sums is not None and sums.X.pointer == dZ.pointer and sums.X.size == dZ.size:
            return place if sums.X.shape != dZ.shape and sums.X.is_contiguous else None
        if writes(item, dZ):
            return None
    return None
