"""nn/input/idx.py: IDX files good and bad, and finding a data set in a directory."""

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from nn.input import idx
from tests.memory import peak_below

DTYPES = ["u1", "i1", "i2", "i4", "f4", "f8"]


def write(path: Path, data: bytes, packed: bool) -> Path:
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


# --- one file ----------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_type_comes_back_as_written(tmp_path, idx_bytes, dtype, packed):
    array = np.array([[1, 2, 100], [4, 5, 6]], dtype) - (dtype != "u1") * np.array(3, dtype)
    read = idx.read(write(tmp_path / "file", idx_bytes(array), packed))
    assert read.dtype == array.dtype
    assert read.dtype.isnative
    np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("shape", [(5,), (5, 2), (5, 2, 3), (5, 2, 3, 4), (0, 2, 3)])
def test_any_shape_of_one_to_four_dimensions(tmp_path, idx_bytes, shape):
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    np.testing.assert_array_equal(idx.read(write(tmp_path / "file", idx_bytes(array), False)), array)


@pytest.mark.parametrize("packed", [False, True])
def test_gzip_is_told_by_content_not_by_name(tmp_path, idx_bytes, packed):
    array = np.arange(7, dtype=np.uint8)
    path = write(tmp_path / ("raw-name" if packed else "name.gz"), idx_bytes(array), packed)
    np.testing.assert_array_equal(idx.read(path), array)


def test_more_than_one_chunk(tmp_path, idx_bytes, monkeypatch):
    monkeypatch.setattr(idx, "CHUNK", 5)
    array = np.arange(101, dtype=np.uint8)
    np.testing.assert_array_equal(idx.read(write(tmp_path / "file", idx_bytes(array), True)), array)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda data: b"", "is empty"),
        (lambda data: data[:3], "not an IDX file"),
        (lambda data: data[:9], "cut short in its header"),
        (lambda data: data[:-1], "the file holds 23"),
        (lambda data: data + b"x", "the file holds more"),
        (lambda data: b"<!DOCTYPE html>", "not an IDX file"),
        (lambda data: b"\x01\0" + data[2:], "not an IDX file"),
        (lambda data: b"\0\x01" + data[2:], "not an IDX file"),
        (lambda data: data[:2] + b"\x0a" + data[3:], "not an IDX file"),  # no such element type
        (lambda data: data[:3] + b"\0" + data[4:], "not an IDX file"),  # no dimension
        (lambda data: data[:3] + b"\x05" + data[4:], "not an IDX file"),  # five
    ],
)
def test_bad_file(tmp_path, idx_bytes, refused, spoil, word, packed):
    data = idx_bytes(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    path = write(tmp_path / "bad-file", spoil(data), packed)
    with refused(path, word):
        idx.read(path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("sizes", "held"), [((1 << 20,) * 2, "at most"), ((0xFFFFFFFF,) * 4, "at most"), ((100, 100, 100), "")]
)
def test_a_header_that_lies_allocates_nothing(tmp_path, refused, sizes, held, packed):
    """The last sizes are within gzip's ratio of this file: it is read, but only what is there is kept."""
    header = bytes([0, 0, 0x0E, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes)
    path = write(tmp_path / "liar", header + os.urandom(10_000), packed)
    with peak_below(4_000_000), refused(path, "header promises", f"holds {held}"):
        idx.read(path)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sizes", [(0xFFFFFFFF, 0xFFFFFFFF, 0), (0, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF)])
def test_no_elements_of_a_shape_that_no_array_has(tmp_path, refused, sizes, packed):
    header = bytes([0, 0, 0x08, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes)
    path = write(tmp_path / "liar", header, packed)
    with refused(path, f"shape {sizes} is that of no array"):
        idx.read(path)


def test_a_gzip_bomb_is_read_no_further_than_its_header_says(tmp_path, idx_bytes, refused):
    path = write(tmp_path / "bomb", idx_bytes(np.zeros(10, np.uint8)) + bytes(50_000_000), True)
    with peak_below(4_000_000), refused(path, "the file holds more"):
        idx.read(path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-12],  # cut short
        lambda data: data[:-8] + b"abcd" + data[-4:],  # wrong checksum
        lambda data: data[:12] + bytes(len(data) - 12),  # not deflate's bits
        lambda data: data[:2] + b"\xff" + data[3:],  # no such method
        lambda data: data + b"rubbish after the end",
        lambda data: data[:2],
    ],
)
def test_corrupt_gzip(tmp_path, idx_bytes, refused, spoil):
    path = tmp_path / "corrupt.gz"
    path.write_bytes(spoil(gzip.compress(idx_bytes(np.arange(100, dtype=np.uint8)))))
    with refused(path, "damaged"):
        idx.read(path)


def test_missing_directory_and_pipe_are_named(tmp_path, refused):
    with refused(tmp_path / "nothing", "No such file"):
        idx.read(tmp_path / "nothing")
    with refused(tmp_path, "not a file"):
        idx.read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with refused(tmp_path / "pipe", "not a file"):
        idx.read(tmp_path / "pipe")


def test_file_without_permission(tmp_path, idx_bytes, refused, monkeypatch):
    path = write(tmp_path / "secret", idx_bytes(np.arange(3, dtype=np.uint8)), False)
    path.chmod(0)

    def deny(*_: object) -> None:  # root may read everything, so the permission bits alone prove nothing
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", deny)
    with refused(path, "Permission denied"):
        idx.read(path)


def test_a_name_with_a_newline_stays_one_line(tmp_path, refused):
    path = write(tmp_path / "two\nlines", b"", False)
    with refused(r"two\nlines"):
        idx.read(path)


# --- a directory ----------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("prefix", ["", "emnist-balanced-"])
@pytest.mark.parametrize("test", ["t10k", "test"])
def test_directory(tmp_path, data_set, prefix, test, packed):
    data_set(tmp_path, prefix, "train", packed, n=6)
    data_set(tmp_path, prefix, test, packed, n=4)
    (tmp_path / "emnist-balanced-mapping.txt").write_text("0 48")
    found = idx.load(tmp_path)
    assert found.name == str(tmp_path)
    assert found.images.shape == (6, 12)
    assert found.test_images.shape == (4, 12)
    assert found.image_shape == (4, 3)
    assert found.images.dtype == found.test_images.dtype == np.uint8
    assert found.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert found.test_labels.tolist() == [0, 1, 2, 0]
    assert found.classes == 3


def test_directory_with_the_dotted_names(tmp_path, data_set):
    data_set(tmp_path)
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))
    assert idx.load(tmp_path).images.shape == (6, 12)


def test_test_files_may_be_missing(tmp_path, data_set):
    data_set(tmp_path)
    found = idx.load(tmp_path)
    assert found.test_images is None
    assert found.test_labels is None


def test_raw_is_read_before_gz_and_a_file_before_a_directory(tmp_path, data_set):
    data_set(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"never read")
    (tmp_path / "train-labels-idx1-ubyte").rename(tmp_path / "train-labels.idx1-ubyte")
    (tmp_path / "train-labels-idx1-ubyte").mkdir()
    (tmp_path / "._train-images-idx3-ubyte").write_bytes(b"what macOS leaves behind")
    (tmp_path / "._x-train-images-idx3-ubyte").write_bytes(b"what macOS leaves behind")
    assert idx.load(tmp_path).images.shape == (6, 12)


@pytest.mark.parametrize("missing", ["images-idx3", "labels-idx1"])
def test_half_a_test_set(tmp_path, data_set, refused, missing):
    data_set(tmp_path)
    data_set(tmp_path, split="t10k")
    (tmp_path / f"t10k-{missing}-ubyte").unlink()
    with refused(tmp_path / "t10k-", f"no test {missing[:6]}"):
        idx.load(tmp_path)


@pytest.mark.parametrize("missing", ["images-idx3", "labels-idx1"])
def test_half_a_training_set(tmp_path, data_set, refused, missing):
    data_set(tmp_path, "emnist-letters-")
    (tmp_path / f"emnist-letters-train-{missing}-ubyte").unlink()
    with refused(tmp_path, f"add emnist-letters-train-{missing}-ubyte"):
        idx.load(tmp_path)


def test_several_data_sets(tmp_path, data_set, refused):
    for prefix in ("", "emnist-balanced-", "emnist-letters-"):
        data_set(tmp_path, prefix)
    with refused(
        tmp_path, "3 data sets", "train-images", "emnist-balanced-*", "emnist-letters-*", "keep one"
    ):
        idx.load(tmp_path)


def test_directory_without_data(tmp_path, refused):
    (tmp_path / "notes.txt").write_text("nothing here")
    with refused(tmp_path, "train-images-idx3-ubyte", "t10k-labels-idx1-ubyte", "emnist-balanced-"):
        idx.load(tmp_path)


def test_directory_that_cannot_be_listed(tmp_path, refused):
    with refused(tmp_path / "gone", "No such file"):
        idx.load(tmp_path / "gone")


def test_a_directory_in_place_of_a_file(tmp_path, data_set, refused):
    data_set(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    (tmp_path / "train-images-idx3-ubyte").mkdir()
    with refused(tmp_path / "train-images-idx3-ubyte", "not a file"):
        idx.load(tmp_path)


def test_swapped_files(tmp_path, data_set, refused):
    data_set(tmp_path)
    images, labels = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"
    images.rename(tmp_path / "aside")
    labels.rename(images)
    (tmp_path / "aside").rename(labels)
    with refused(f"{images}: ", "are the two swapped"):
        idx.load(tmp_path)


def test_mismatched_counts(tmp_path, data_set, idx_bytes, refused):
    data_set(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(np.zeros(5, np.uint8)))
    with refused(tmp_path / "train-images-idx3-ubyte", labels, "6 images", "5 labels"):
        idx.load(tmp_path)
