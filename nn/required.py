"""Which kernels a run needs, so that one rank a node compiles them before the others load them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from nn.gemm_versions import NARROW
from nn.launches import Kernels
from nn.mma import MMA_TERMS, mma_product, parts_sum
from nn.narrow_head import NARROW_CLASSES, narrow_head_constants
from nn.tensor_cores import SPLIT, TERMS, tensor_product
from pyrt.exchange.peer import MOST_RANKS, most_ranks
from pyrt.kernels import Constants

Wanted = list[tuple[str, Constants]]
"""Files and their constants, for `KernelLibrary.compile`."""


def is_apart(kernels: Kernels, hidden: Sequence[int], classes: int, rows: int, profile: bool) -> bool:
    """Whether a step of ``rows`` samples a rank has other products than those of a network with one wide
    hidden layer and an output layer that `Kernels.prefers_narrow_head`.
    """
    narrow = min(*hidden, rows) <= NARROW
    return profile or len(hidden) > 1 or narrow or not kernels.prefers_narrow_head(hidden[-1], classes)


def required(
    kernels: Kernels,
    activation: str,
    head: str,
    classes: int,
    pixel: DTypeLike,
    apart: bool = False,
    exchange: str = "local",
    peers: int = 1,
    moves: str = "local",
    group: int = 1,
) -> Wanted:
    """What training and evaluation need. ``pixel`` is the dtype of the images; for ``apart`` see `is_apart`.

    The products are X W^T, dZ^T X and dZ W. Some exchanges have kernels of their own, those of
    ``peers`` ranks a node; and so have the ways in which matrices move (pyrt/moves) within a ``group`` of
    ranks that share layers.
    """
    real, pixel = kernels.real, np.dtype(pixel)
    result: Wanted = [
        ("gemm", {"REAL": real, "TRANSPOSE_A": a, "TRANSPOSE_B": b}) for a, b in ((0, 1), (1, 0), (0, 0))
    ]
    if _can_use_mma(kernels):
        result += _for_mma(kernels, activation, apart)
    if kernels.uses_terms:
        result += _for_terms(kernels, activation, pixel, apart)
    if kernels.uses_tensor_cores and classes <= NARROW_CLASSES[-1]:
        result.append(("narrow_head", narrow_head_constants(real, head, activation, classes)))
    if exchange == "device":
        result.append(("exchange", {"REAL": real}))
    if exchange in ("peer", "hierarchical") and peers <= MOST_RANKS[-1]:
        result.append(("peer", {"REAL": real, "MOST_RANKS": most_ranks(peers)}))
    if moves in ("host", "device"):
        result.append(("packing", {"REAL": real}))
    if moves == "device" and exchange != "device":
        result.append(("exchange", {"REAL": real}))
    if moves == "peer" and 1 < group <= MOST_RANKS[-1]:
        result.append(("moves", {"REAL": real, "MOST_RANKS": most_ranks(group)}))
    return [
        *result,
        *(("activation", {"REAL": real, "ACTIVATION": word}) for word in (activation, "identity")),
        ("head", {"REAL": real}),
        ("reduce", {"REAL": real}),
        ("sgd", {"REAL": real}),
        ("pixels", {"REAL": real, "PIXEL": pixel.name, "NUMBER": real}),
        ("batch", {"REAL": real}),
    ]


def _can_use_mma(kernels: Kernels) -> bool:
    """For all products on tensor cores, or for the narrow ones."""
    return kernels.uses_tensor_cores and kernels.math in MMA_TERMS


def _for_mma(kernels: Kernels, activation: str, apart: bool) -> Wanted:
    terms = kernels.mma.terms
    words = ["identity"] if kernels.uses_terms else ["identity", activation]
    result = [mma_product(False, True, terms, word) for word in words]
    result += [parts_sum(word) for word in words]
    if apart or not kernels.uses_terms:
        result += [mma_product(transposed, False, terms, "identity") for transposed in (True, False)]
    return result


def _for_terms(kernels: Kernels, activation: str, pixel: np.dtype, apart: bool) -> Wanted:
    terms, input_terms = kernels.terms, 1 if pixel == np.uint8 else kernels.terms
    result = [
        SPLIT,
        tensor_product(False, True, input_terms, terms, activation),
        tensor_product(True, False, terms, input_terms, "identity"),
    ]
    if pixel == np.uint8:
        result.append(("pixels", {"REAL": kernels.real, "PIXEL": "uint8", "NUMBER": "bfloat16"}))
    if apart or not _can_use_mma(kernels):
        result.append(tensor_product(False, True, terms, terms, "identity"))
    if apart:
        result += [
            tensor_product(True, False, terms, terms, "identity"),
            tensor_product(False, False, terms, terms, "identity"),
            tensor_product(False, True, terms, terms, activation),
        ]
    if apart and terms == TERMS["tf32"]:
        result.append(tensor_product(False, True, 1, 1, "identity", "tf32"))
    return result
