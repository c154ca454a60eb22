"""Rewrites a step's list for tensor cores: the same results from fewer launches and faster products.

Fusing is a choice by shape: what does not fit stays as it was. A rule is a file of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from nn.launch.gemm.components import Components, TakeComponents
from nn.launch.kernels import Kernels
from nn.program.fuse_arrays import FuseColumnSums, FuseEpilogue
from nn.program.fuse_classifier import FuseClassifier
from nn.program.fuse_components import ComponentRules
from nn.program.fuse_images import FuseConvolution, FuseOutputGradient
from nn.program.fuse_step import FuseStep
from nn.program.operations import Item
from nn.program.rewrite import Rule, rewrite
from pyrt.arrays import DeviceArray


def fuse(
    items: Sequence[Item],
    kernels: Kernels | None,
    take_components: TakeComponents,
    known: Sequence[tuple[DeviceArray, Components]] = (),
    alone: bool = False,
) -> list[Item]:
    """Return the list as it runs with these kernels; NumPy's (None) as it is.

    ``known`` are matrices that are there as components when the list begins; ``take_components`` makes room
    for others. ``alone``: no other rank can have kernels on the same device.
    """
    if kernels is None or not kernels.uses_tensor_cores:
        return list(items)
    whole: list[Rule] = [FuseStep(kernels)] if alone else []  # whose blocks must all run at once
    if kernels.uses_components:
        rules = [*whole, *ComponentRules(kernels, take_components, known).rules]
    else:
        rules = [
            *whole,
            FuseClassifier(kernels),
            FuseOutputGradient(),
            FuseConvolution(kernels),
            FuseEpilogue(kernels),
            FuseColumnSums(kernels),
        ]
    return rewrite(items, rules, kernels.driver)
