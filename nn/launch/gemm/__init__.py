"""Matrix products: which rung of the ladder (docs/explain/gemm.md) one takes, and how it is launched.

============ ==========================================================================
``product``  the product, and what a kernel may do with it before it writes it
``versions`` which rungs there are, and which runs where
``ladder``   the rungs without tensor cores
``mma``      tensor cores of sm_80, operands as they are
``wgmma``    tensor cores of sm_90, operands split into bf16 components
``layer``    the same, with all that follows the products of dense layers
``batch``    many such products of one shape at once
``few_rows`` dense layers of a few images, for inference
============ ==========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nn.launch.gemm.ladder import bind_ladder
from nn.launch.gemm.layer import bind_split
from nn.launch.gemm.mma import bind_mma
from nn.launch.gemm.product import PLAIN, Epilogue, Product
from pyrt.kernels import Launch

if TYPE_CHECKING:
    from nn.launch.kernels import Kernels


def gemm(kernels: Kernels, product: Product, epilogue: Epilogue = PLAIN) -> Launch:
    """Bind the version of the product that its sizes and the device ask for."""
    version = kernels.choose(product)
    if version == "mma":
        return bind_mma(kernels, product, epilogue)
    if version == "wgmma":
        return bind_split(kernels, product, epilogue)
    return bind_ladder(kernels, version, product, epilogue)
