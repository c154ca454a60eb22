"""nn/filters.py: the filters on the CPU and by kernels against loops in float64; its files and its errors."""

import sys

import numpy as np
import pytest

from nn import filters
from nn.filters import FILTERS, STRIDES
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from tests.mpi import mpirun

pytest.importorskip("matplotlib", reason="make test installs it")


def drawing():
    """The image of docs/figures/filters.png: discs, a ring, stripes and noise, (160, 160, 1) uint8."""
    y, x = np.mgrid[:160, :160]
    image = 40 + 60 * (x / 160)
    for row, column, radius, grey in ((45, 45, 32, 230), (52, 110, 22, 150)):
        image[np.hypot(y - row, x - column) < radius] = grey
    image[abs(np.hypot(y - 52, x - 110) - 34) < 2.5] = 255
    image[95:150, 12:72] = np.where(x[95:150, 12:72] // 5 % 2, 240, 20)
    stripes = (x + y)[95:150, 88:148]
    image[95:150, 88:148] = np.where(stripes // 5 % 2, 240, 20)
    image += np.random.default_rng(0).normal(0, 12, image.shape)
    return image.clip(0, 255).astype(np.uint8)[..., np.newaxis]


def loops(image, name, stride):
    """Each output one by one, float64; and the sum of what is added up, without signs."""
    weights = np.array(FILTERS[name])[..., np.newaxis]
    pixels = image.astype(np.float64) / 255
    rows, columns = ((size - 3) // stride + 1 for size in image.shape[:2])
    result, magnitude = np.empty((2, rows, columns, image.shape[2]))
    for y in range(rows):
        for x in range(columns):
            window = pixels[y * stride : y * stride + 3, x * stride : x * stride + 3]
            result[y, x] = (window * weights).sum(axis=(0, 1))
            magnitude[y, x] = (window * abs(weights)).sum(axis=(0, 1))
    return result, magnitude


def check(driver, image):
    """A pixel and a weight are rounded, multiplied, and nine are added: at most 12 roundings."""
    for stride in STRIDES:
        filtered = filters.apply(driver, image, stride)
        assert list(filtered) == list(FILTERS)
        for name, after in filtered.items():
            expected, magnitude = loops(image, name, stride)
            assert after.shape == expected.shape
            assert np.all(abs(after - expected) <= 12 * np.finfo(np.float32).eps / 2 * magnitude)


@pytest.fixture(params=[(3, 3, 1), (23, 17, 1), (12, 20, 3)], ids=str)
def image(request):
    return np.random.default_rng(1).integers(0, 256, request.param, dtype=np.uint8)


def test_on_the_cpu(image):
    check(CpuDriver(), image)


def test_by_kernels(driver, image):
    check(driver, image)


def test_what_each_filter_is_for():
    """Means keep a grey area; a gradient sees a slope along its direction alone, eight times."""
    slope = np.tile(np.arange(0, 250, 10, dtype=np.uint8)[:, np.newaxis], (9, 1, 1))
    filtered = filters.apply(CpuDriver(), slope, 1)
    for name in ("box", "Gaussian"):
        np.testing.assert_allclose(filtered[name], slope[1:-1, 1:-1] / 255, atol=1e-6)
    np.testing.assert_allclose(filtered["horizontal gradient"], 8 * 10 / 255, atol=1e-6)
    np.testing.assert_allclose(filtered["vertical gradient"], 0, atol=1e-6)
    down = filters.apply(CpuDriver(), slope.transpose(1, 0, 2), 1)
    np.testing.assert_allclose(down["vertical gradient"], 8 * 10 / 255, atol=1e-6)
    np.testing.assert_allclose(down["horizontal gradient"], 0, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "ending"),
    [*((mode, "png") for mode in ("1", "L", "LA", "P", "RGB", "RGBA")), ("L", "jpg"), ("RGB", "jpg")],
)
def test_images_are_grey_or_have_three_colours(tmp_path, mode, ending):
    from PIL import Image

    path = tmp_path / f"image.{ending}"
    Image.fromarray(np.repeat(drawing()[:20, :30], 3, axis=2)).convert(mode).save(path)
    pixels = filters.read(path)
    assert (pixels.shape, pixels.dtype) == ((20, 30, 1 if mode in ("1", "L", "LA") else 3), np.uint8)
    if (mode, ending) == ("L", "png"):
        assert np.array_equal(pixels, drawing()[:20, :30])


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "cannot be read"),
        (b"", "no PNG or JPEG"),
        (b"\x89PNG\r\n\x1a\n and no more", "no PNG or JPEG"),
        ((2, 5), "smaller than 3 x 3"),
    ],
)
def test_files_that_are_no_images(tmp_path, content, error):
    from PIL import Image

    path = tmp_path / "image.png"
    if isinstance(content, tuple):
        Image.fromarray(np.zeros(content, np.uint8)).save(path)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=error):
        filters.read(path)


def test_without_an_image_a_digit_is_drawn(tmp_path):
    from PIL import Image

    image = filters.digit()
    assert (image.shape, image.dtype) == ((224, 224, 1), np.uint8) and image.max() > 200
    picture = tmp_path / "picture.png"
    picture.write_bytes(filters.draw(image, {3: filters.apply(CpuDriver(), image, 3)}))
    assert filters.read(picture).shape[2] == 3
    Image.open(picture).verify()


def test_the_program_writes_a_picture(tmp_path):
    """On two ranks: one of them writes."""
    from PIL import Image

    image, out = tmp_path / "image.png", tmp_path / "out.png"
    Image.fromarray(drawing()[..., 0]).save(image)
    command = sys.executable, "-m", "nn.filters", "--device", "cpu", "--out", str(out)
    done = mpirun(2, *command, str(image))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("4 filters on ") and done.stdout.count("\n") == 1
    with Image.open(out) as picture:
        assert picture.width > 2 * picture.height > 800


@pytest.mark.long
def test_a_mistake_is_one_line(tmp_path):
    """On two ranks."""
    done = mpirun(2, sys.executable, "-m", "nn.filters", "--device", "cpu", str(tmp_path / "none.png"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "none.png: cannot be read" in done.stderr
