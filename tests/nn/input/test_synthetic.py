"""nn/input/synthetic.py: images that are made up are the same each time, and can be learned."""

import numpy as np
import pytest

from nn.input import Wanted, load, suspicious, synthetic


@pytest.mark.parametrize(
    ("source", "image", "tested"),
    [
        ("synthetic:32x24x3:10:200", (32, 24, 3), 20),
        ("synthetic:28x28x1:4:39", (28, 28), 3),
        ("synthetic:1x1x17:2:9", (1, 1, 17), 0),
        ("synthetic:3x5x2:7:100", (3, 5, 2), 10),
    ],
)
def test_shapes(source, image, tested):
    classes, n = map(int, source.split(":")[2:])
    found = load(source)
    assert (found.name, found.image_shape, found.classes) == (source, image, classes)
    assert found.images.shape == (n, np.prod(image)) and found.images.dtype == np.uint8
    assert (0 if found.test_images is None else len(found.test_images)) == tested
    counts = np.bincount(found.labels, minlength=classes)
    assert counts.max() - counts.min() <= 1


def test_more_classes_than_images():
    found = load("synthetic:2x2x1:1000:20")
    assert found.classes == 1000 and len(np.unique(found.labels)) == 20


def test_the_same_images_each_time_whatever_else_is_drawn():
    first = load("synthetic:9x7x3:5:50")
    np.random.default_rng(0).integers(0, 9, 100)
    again = load("synthetic:9x7x3:5:50")
    np.testing.assert_array_equal(first.images, again.images)
    np.testing.assert_array_equal(first.test_images, again.test_images)
    assert not np.array_equal(first.images[:5], first.test_images)


def test_images_that_are_made_in_chunks_differ_from_each_other(monkeypatch):
    whole = load("synthetic:8x8x3:5:50")
    monkeypatch.setattr(synthetic, "CHUNK", 3 * 192)
    found = load("synthetic:8x8x3:5:50")
    assert len(np.unique(found.images, axis=0)) == 50
    np.testing.assert_array_equal(found.images, whole.images)  # of a multiple of 8 values an image


def test_they_can_be_learned():
    """The nearest of the training set's class means is right for nearly all test images."""
    found = load("synthetic:16x16x3:10:1000")
    means = np.stack([found.images[found.labels == label].mean(axis=0) for label in range(10)])
    apart = ((found.test_images[:, None].astype(float) - means) ** 2).sum(axis=2)
    assert (apart.argmin(axis=1) == found.test_labels).mean() > 0.99
    assert [*suspicious.of_pixels(found, 255.0), *suspicious.of_labels(found, 900, 900, "tail")] == []


def test_patterns_are_squares_of_the_image():
    place = synthetic._places((16, 24, 2)).reshape(16, 24, 2)
    assert place[0, 0].tolist() == place[1, 2].tolist() == [0, 1]
    assert place[2, 0, 0] == 8 * 2 and place[0, 3, 0] == 2 and place[15, 23, 1] == 8 * 8 * 2 - 1


@pytest.mark.parametrize(
    "source",
    [
        "synthetic:",
        "synthetic:32x32:10:100",
        "synthetic:32x32x3:10",
        "synthetic:0x32x3:10:100",
        "synthetic:32x32x3:0:100",
        "synthetic:32x32x3:10:0",
        "synthetic:32x32x3:10:-1",
        "synthetic:32x32x3:10:1e3",
        "synthetic:32x32x3:10:100:5",
        "synthetic:３x3x3:10:100",
        "synthetic:32x32x3:10:100\n",
    ],
)
def test_words_that_are_not_of_this_form(refused, source):
    with refused("synthetic:HxWxC:CLASSES:N, as synthetic:32x32x3:10:5000"):
        load(source)


def test_too_many(refused):
    with refused("at most 65536 classes"):
        load("synthetic:8x8x1:65537:100")
    with refused("does not fit into memory"):
        load("synthetic:999999x999999x999999:2:999999999")
    with refused("--classes 3", "give 5 or more"):
        load("synthetic:8x8x1:5:100", Wanted(classes=3))
    assert load("synthetic:8x8x1:5:100", Wanted(classes=8)).classes == 8
