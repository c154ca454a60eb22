"""conv/implicit_mma.cu: windows gathered by copies of 16 bytes and of 4, phases, parts of K, the epilogue.

On a GPU these tests run the instructions, on the emulated device their twins. Errors: `Case.check`.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nn.launch.conv import implicit_mma
from nn.launch.conv.convolution import Convolution, FilterGradient, InputGradient
from nn.launch.conv.implicit_mma import bind_implicit_mma
from nn.launch.gemm.mma import MmaTiling, has_mma
from nn.launch.gemm.product import Epilogue
from nn.launch.kernels import Kernels
from nn.model.window import Window
from tests import few
from tests.kernels.test_convolution import CASES, KINDS, WIDE, Case

MORE = {
    "quads of channels": ((5, 7, 12), (3, 3), 2, 1, 20, 3),
    "pairs of channels": ((6, 5, 10), (2, 3), 3, 1, 14, 3),
    "a stride larger than images": ((2, 3, 12), (4, 4), 5, 3, 9, 3),
    "phases of many sizes": ((7, 8, 20), (5, 3), 3, "same", 12, 5),
    "more than a tile of everything": ((6, 7, 68), (2, 2), 1, 1, 70, 2),
}
"""As `CASES` and `WIDE`."""

TILINGS = MmaTiling(64, 64, 1), MmaTiling(64, 64, 3), MmaTiling(128, 128, 1), MmaTiling(128, 128, 2)


@pytest.fixture
def kernels(library):
    if not has_mma(library.driver.architecture):
        pytest.skip("needs the tensor cores of sm_80")
    return Kernels(library, np.float32, "mma", conv="implicit")


@pytest.fixture
def cut(monkeypatch):
    """Makes all products be cut like this."""
    return lambda tiling: monkeypatch.setattr(implicit_mma, "choose", lambda kernels, work: tiling)


ALL = list(enumerate([*CASES, *WIDE, *MORE]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shift", few([0], of=range(len(TILINGS))))
@pytest.mark.parametrize("number, name", ALL, ids=[name for _, name in ALL])
def test_every_cut_same_bits_twice(kernels, device, rng, cut, number, name, shift, kind):
    """Of each case one cut; of all cases all."""
    cut(TILINGS[(number + list(KINDS).index(kind) + shift) % len(TILINGS)])
    case = Case(rng, "float32", *{**CASES, **WIDE, **MORE}[name])
    (first, result), (second, again) = (case.bind(kind, device.array) for _ in range(2))
    device.run(bind_implicit_mma(kernels, first), bind_implicit_mma(kernels, second))
    case.check(kind, result)
    assert result.to_host().tobytes() == again.to_host().tobytes()
