"""conv/sliding.cu: few channels at stride 1, on any device, against loops in float64."""

import numpy as np
import pytest

from nn.launch.conv import sliding
from nn.launch.conv.sliding import bind_sliding
from nn.launch.kernels import Kernels
from tests import spread
from tests.kernels.test_convolution import KINDS, Case

CASES = {
    "one pixel": ((1, 1, 1), (3, 3), 1, 1, 1, 1),
    "lenet5's first": ((28, 28, 1), (5, 5), 1, 2, 6, 3),
    "lenet5's second": ((14, 14, 6), (5, 5), 1, 0, 16, 5),
    "colours": ((9, 11, 3), (3, 3), 1, 1, 8, 2),
    "one row": ((6, 7, 2), (1, 3), 1, 0, 3, 2),
    "more rows than columns": ((9, 7, 2), (4, 3), 1, 1, 9, 2),
    "larger than the image": ((2, 3, 2), (5, 5), 1, 2, 4, 9),
    "8 channels, 17 filters": ((5, 7, 8), (3, 3), 1, 1, 17, 3),
    "wide": ((3, 61, 3), (3, 5), 1, 2, 10, 1),
}
"""Shape of an image, size of the window, stride, padding, filters, samples."""


@pytest.fixture
def kernels(library):
    return Kernels(library, "float32", conv="direct")


@pytest.mark.sanitizer
@pytest.mark.parametrize(
    ("name", "kind", "shared"), spread(list(CASES), list(KINDS), [72, 30, 24], by=5), ids=str
)
def test_same_bits_twice(kernels, device, rng, monkeypatch, name, kind, shared):
    """With little shared memory, in KB, a tile is a few rows of one image."""
    case = Case(rng, np.float32, *CASES[name])
    (first, result), (second, again) = (case.bind(kind, device.array) for _ in range(2))
    monkeypatch.setattr(sliding, "_SHARED_BYTES", shared << 10)
    if sliding.tiles_of(first, shared << 10, 1) is None:
        pytest.skip("no row fits into so little")
    device.run(bind_sliding(kernels, first), bind_sliding(kernels, second))
    case.check(kind, result)
    assert result.to_host().tobytes() == again.to_host().tobytes()
