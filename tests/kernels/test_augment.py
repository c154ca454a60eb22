"""nn/augment.cu against NumPy, to the bit: the same pixels, in other places, are divided in the same way."""

import numpy as np
import pytest

from nn.input.augment import Augmenter
from nn.input.source import BatchCursor
from nn.launch.augment import Augmented, GatherAugmented
from nn.launch.gemm.components import Components
from nn.launch.kernels import Kernels
from tests import few, spread

SMALL = pytest.param((5, 7, 3), marks=pytest.mark.sanitizer)
IMAGES = [(1, 1), (28, 28), SMALL, (32, 32, 3), (3, 101), (40, 33, 1), (6, 4, 17)]


class Batch:
    """A batch to gather from 50 random images; what lies around its order and numbers is no row number."""

    def __init__(self, device, rng, pixel, image, rows, text):
        self.rows, self.pixels = rows, int(np.prod(image))
        self.augmenter = Augmenter.of(text, image, 2**35 + 11, 4)
        images = rng.integers(0, 256, (50, self.pixels)).astype(pixel)
        self.images = images if pixel == np.uint8 else (images / 3).astype(pixel)
        self.labels = rng.integers(0, 9, 50).astype(np.int32)
        self.order, self.numbers = (np.full(rows + 12, -(10**6), np.int32) for _ in range(2))
        self.order[7 : 7 + rows] = rng.integers(0, 50, rows)
        self.numbers[7 : 7 + rows] = rng.integers(0, 2**31 - 1, rows)
        self.device, self.y = device, device.array(np.full(rows, -1, np.int32))
        self.cursor = BatchCursor(device.array(np.array([7, 0], np.int32)), 13, 100)
        self.step = device.array(np.array([23], np.int32))  # of epoch 5

    def work(self, X, **changes):
        arrays = [self.device.array(array) for array in (self.images, self.labels, self.order)]
        changes["numbers"] = self.device.array(self.numbers)
        changes = {"augmented": Augmented(self.augmenter, self.step), **changes}
        return GatherAugmented(*arrays, self.cursor, X, self.y, 255.0, **changes)

    def truth(self):
        mine = slice(7, 7 + self.rows)
        return self.augmenter.augmented(self.images[self.order[mine]], self.numbers[mine], 5)

    def check_all_but_images(self):
        assert self.cursor.state.to_host().tolist() == [20, 0]
        assert self.step.to_host().tolist() == [24]
        assert np.array_equal(self.y.to_host(), self.labels[self.order[7 : 7 + self.rows]])


@pytest.mark.parametrize("image", few(IMAGES[:4], of=IMAGES), ids=str)
@pytest.mark.parametrize(("pixel", "rows"), spread(["uint8", "float32", "float64"], [1, 19], by=2))
def test_gathered(kernels, device, rng, dtype, pixel, rows, image):
    if pixel == "float64" and dtype == np.float32:
        pytest.skip("nn/input/dataset.py makes float64 pixels for float64 alone")
    batch = Batch(device, rng, pixel, image, rows, "flip,shift2" if min(image[:2]) > 2 else "flip")
    X = device.poisoned((rows, batch.pixels), dtype)
    device.run(batch.work(X, starts_early=rows > 1).on_device(kernels))
    batch.check_all_but_images()
    assert np.array_equal(X.to_host(), batch.truth().astype(dtype) / dtype.type(255))


@pytest.mark.parametrize("text", ["flip", "shift1", "flip,shift4"])
@pytest.mark.parametrize("image", [(28, 28), (5, 7, 3), (6, 4, 17)], ids=str)
def test_exact(library, device, rng, image, text):
    """As bf16 components, of which a thread writes four together where rows are a multiple of four."""
    kernels, rows = Kernels(library, np.float32), 9
    text = text if min(image[:2]) > 4 else text.replace("4", "3")
    batch = Batch(device, rng, np.uint8, image, rows, text)
    X, into = (
        device.poisoned((rows, batch.pixels), "f4"),
        Components.empty(device.driver, 1, rows, batch.pixels),
    )
    device.arrays.append(into.array)
    device.run(batch.work(X, components=into).on_device(kernels))
    batch.check_all_but_images()
    bits = into.matrix.to_host()[:, : batch.pixels]
    assert np.array_equal((bits.astype(np.uint32) << 16).view(np.float32), batch.truth())


def test_images_of_another_size_are_refused(kernels, device, rng, dtype):
    batch = Batch(device, rng, np.uint8, (4, 6), 3, "flip")
    X, other = device.poisoned((3, 24), dtype), Augmented(Augmenter.of("flip", (5, 6), 0, 1), batch.step)
    with pytest.raises(ValueError, match="has no images of 30 pixels"):
        batch.work(X, augmented=other).on_device(kernels)
