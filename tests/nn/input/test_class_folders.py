"""nn/input/class_folders.py: folders of PNG and JPEG, good and bad."""

import builtins
import io
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from nn.input import Wanted, load
from pyrt.errors import UserError

Image = pytest.importorskip("PIL.Image", reason="needs Pillow: make test installs it")

COLOURS = np.random.default_rng(0).integers(0, 256, (6, 5, 7, 3), np.uint8)


def packed(pixels: np.ndarray, form: str = "PNG", mode: str | None = None, **settings: object) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, form, **settings)
    return file.getvalue()


def fill(folder: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(folder)


def good(prefix: str = "") -> dict[str, bytes]:
    """Classes by name: b has two images, a one, and c three."""
    names = ("b/2.png", "b/10.PNG", "a/x.png", "c/1.png", "c/3.png", "c/2.png")
    return {prefix + name: packed(image) for name, image in zip(names, COLOURS, strict=True)}


IN_ORDER = [2, 1, 0, 3, 5, 4]
"""The images of `good` by the names of their classes, then by their own."""


def test_a_folder_of_class_folders(tmp_path):
    others = {"notes.txt": b"left alone", "b/Thumbs.db": b"", "b/.hidden.png": b"", ".git/x.png": b""}
    source = fill(tmp_path / "set", good() | others)
    found = load(source)
    assert (found.name, found.image_shape, found.test_images) == (source, (5, 7, 3), None)
    assert found.labels.tolist() == [0, 1, 1, 2, 2, 2]
    np.testing.assert_array_equal(found.images, COLOURS[IN_ORDER].reshape(6, 105))


@pytest.mark.parametrize("test", ["test", "val"])
def test_a_folder_with_a_test_set(tmp_path, test):
    """Classes are numbered by the training set's names, of which the test set may lack some."""
    tested = {f"{test}/c/1.png": packed(COLOURS[0]), f"{test}/b/1.png": packed(COLOURS[1])}
    found = load(fill(tmp_path, good("train/") | tested))
    assert found.labels.tolist() == [0, 1, 1, 2, 2, 2] and found.test_labels.tolist() == [1, 2]
    np.testing.assert_array_equal(found.test_images, COLOURS[[1, 0]].reshape(2, 105))


def test_a_folder_with_train_alone_and_one_with_all_three(tmp_path):
    assert load(fill(tmp_path / "a", good("train/"))).test_images is None
    files = good("train/") | {"val/a/1.png": packed(COLOURS[0]), "test/b/1.png": packed(COLOURS[1])}
    assert load(fill(tmp_path / "b", files)).test_labels.tolist() == [1]


@pytest.mark.parametrize(
    ("mode", "kept"), [("L", "L"), ("RGB", "RGB"), ("RGBA", "RGBA"), ("1", "L"), ("LA", "L"), ("P", "RGB")]
)
def test_kinds_of_pixels(tmp_path, mode, kept):
    source = fill(tmp_path, {f"{name}/1.png": packed(COLOURS[0], mode=mode) for name in "ab"})
    expected = np.asarray(Image.fromarray(COLOURS[0]).convert(mode).convert(kept))
    found = load(source)
    assert found.image_shape == expected.shape
    np.testing.assert_array_equal(found.images, np.stack([expected.ravel()] * 2))


def test_jpeg_and_png_together(tmp_path):
    files = {"a/1.jpg": packed(COLOURS[0], "JPEG"), "b/1.JPEG": packed(COLOURS[1], "JPEG", quality=95)}
    found = load(fill(tmp_path, files | {"b/2.png": packed(COLOURS[2])}))
    for row, content in zip(found.images, files.values(), strict=False):
        np.testing.assert_array_equal(row, np.asarray(Image.open(io.BytesIO(content))).ravel())


def test_images_of_one_colour_fill_few_bytes(tmp_path):
    white = np.full((1500, 2000), 255, np.uint8)
    files = {"a/1.png": packed(white, mode="1", optimize=True), "b/1.png": packed(white, optimize=True)}
    assert load(fill(tmp_path, files)).images.shape == (2, white.size)


def test_a_palette_with_opacity_is_no_warning(tmp_path):
    image = Image.fromarray(COLOURS[0]).convert("P")
    file = io.BytesIO()
    image.save(file, "PNG", transparency=bytes(range(20)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(fill(tmp_path, {"a/1.png": file.getvalue()})).image_shape == (5, 7, 3)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (packed(COLOURS[0, :4]), "4 x 7 pixels in RGB"),
        (packed(COLOURS[0, :, :, 0]), "5 x 7 pixels in grey"),
        (packed(COLOURS[0], mode="RGBA"), "5 x 7 pixels in RGBA"),
        (packed(COLOURS[0].transpose(1, 0, 2)), "7 x 5 pixels in RGB"),
    ],
)
def test_an_image_that_is_not_like_the_others_is_named(tmp_path, refused, other, words):
    source = fill(tmp_path, good() | {"b/5.png": other})
    with refused(
        tmp_path / "b" / "5.png", f"is {words}", f"{tmp_path / 'a' / 'x.png'} is 5 x 7 pixels in RGB"
    ):
        load(source)


def test_a_test_image_of_another_size(tmp_path, refused):
    source = fill(tmp_path, good("train/") | {"test/a/1.png": packed(COLOURS[0, :4])})
    with refused(tmp_path / "test", "(4, 7, 3), but (5, 7, 3)"):
        load(source)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "damaged or no PNG or JPEG"),
        (b"GIF89a nothing", "damaged or no PNG or JPEG"),
        (packed(COLOURS[0])[:-30], "damaged or no PNG or JPEG"),
        (packed(COLOURS[0], "JPEG")[:-30], "damaged or no PNG or JPEG"),
        (packed(COLOURS[0], "GIF"), "damaged or no PNG or JPEG"),
        (packed(COLOURS[0, :, :, 0].astype(np.uint16)), "pixels of kind I;16"),
        (packed(COLOURS[0], "JPEG", mode="CMYK"), "pixels of kind CMYK"),
    ],
)
def test_an_image_that_cannot_be_read(tmp_path, refused, content, words):
    source = fill(tmp_path, good() | {"c/4.png": content})
    with refused(tmp_path / "c" / "4.png", words):
        load(source)


@pytest.mark.parametrize("size", [(4000, 4000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_a_header_that_lies_allocates_nothing(tmp_path, refused, size):
    import zlib

    data = bytearray(packed(COLOURS[0]))
    data[16:24] = size[0].to_bytes(4, "big") + size[1].to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    source = fill(tmp_path, good() | {"c/4.png": bytes(data)})
    with refused(tmp_path / "c" / "4.png", "damaged"):
        load(source)


@pytest.mark.parametrize(
    ("files", "place", "words"),
    [
        ({"a/1.png": packed(COLOURS[0]), "d/notes.txt": b""}, "d", "no PNG or JPEG file in it"),
        ({"d/e/1.png": b""}, "d", "no PNG or JPEG file in it"),
        (
            {"train/a/1.png": packed(COLOURS[0]), "test/z/1.png": b""},
            "test/z",
            "no training images are of this",
        ),
        ({"train/1.png": packed(COLOURS[0])}, "train", "no class folders"),
        ({"train/a/1.png": packed(COLOURS[0]), "test/1.png": b""}, "test", "no class folders"),
    ],
)
def test_folders_that_are_wrong(tmp_path, refused, files, place, words):
    with refused(tmp_path / place, words):
        load(fill(tmp_path, files))


@pytest.mark.parametrize("file", ["1.png", "a/notes.txt", "train/loop.py", "a/b/c/1.png", ".git/a.png"])
def test_a_folder_without_class_folders_says_what_was_looked_for(tmp_path, refused, file):
    """A folder called train is none: this project has one, of programs."""
    looked_for = (
        "train-images-idx3-ubyte",
        "data_batch_1.bin",
        "a folder of PNG or JPEG images for each class",
    )
    with refused(tmp_path, *looked_for):
        load(fill(tmp_path, {file: packed(COLOURS[0])}))


def test_without_pillow(tmp_path, monkeypatch):
    source, imported = fill(tmp_path, good()), builtins.__import__

    def without(name: str, *arguments: object) -> object:
        if name.partition(".")[0] == "PIL":
            raise ImportError(name)
        return imported(name, *arguments)

    for name in [name for name in sys.modules if name.partition(".")[0] == "PIL"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"needs the Python package Pillow.*python -m pip install Pillow"):
        load(source)


def test_channels_are_not_for_the_user_to_say(tmp_path, refused):
    with refused("--channels first", "leave it out"):
        load(fill(tmp_path, good()), Wanted(channels="first"))
