"""nn/input/npz.py: archives in Keras's layout, good, damaged, and hostile."""

import io
import os
import pickle
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest

from nn.input import Wanted, npz
from pyrt.errors import UserError
from tests.memory import peak_below

X = np.random.default_rng(0).integers(0, 256, (6, 4, 3), np.uint8)
Y = np.arange(6, dtype=np.uint8) % 3
GOOD = {"x_train": X, "y_train": Y, "x_test": X[:4], "y_test": Y[:4]}


def save(path: Path, save_with=np.savez, **arrays: np.ndarray) -> Path:
    save_with(path, **arrays)
    return path


def npy(header: str, data: bytes, version: bytes = b"\x01\x00") -> bytes:
    """The bytes of a .npy file with any header."""
    text = header.encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + data


def archive(path: Path, x_train: bytes, packing: int = zipfile.ZIP_STORED) -> Path:
    """A good archive but for the bytes of x_train.npy."""
    y_train = io.BytesIO()
    np.save(y_train, Y)
    with zipfile.ZipFile(path, "w", packing) as file:
        file.writestr("x_train.npy", x_train)
        file.writestr("y_train.npy", y_train.getvalue())
    return path


@pytest.mark.parametrize("save_with", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("shape", [(4, 3), (12,), (4, 3, 1)])
def test_good_file(tmp_path, save_with, shape):
    arrays = GOOD | {"x_train": X.reshape(6, *shape), "x_test": X[:4].reshape(4, *shape)}
    path = save(tmp_path / "data.npz", save_with, **arrays, extra=np.array(["left alone"], object))
    found = npz.load(path)
    assert found.name == str(path)
    assert found.image_shape == ((12,) if shape == (12,) else (4, 3))
    np.testing.assert_array_equal(found.images, X.reshape(6, 12))
    np.testing.assert_array_equal(found.labels, Y)
    np.testing.assert_array_equal(found.test_images, X[:4].reshape(4, 12))
    np.testing.assert_array_equal(found.test_labels, Y[:4])


COLOURS = np.random.default_rng(1).integers(0, 256, (6, 4, 5, 3), np.uint8)


def test_colours_lie_behind_each_other_wherever_the_file_has_its_channels(tmp_path):
    last = save(tmp_path / "last.npz", x_train=COLOURS, y_train=Y, x_test=COLOURS[:4], y_test=Y[:4])
    planes = COLOURS.transpose(0, 3, 1, 2)
    first = save(tmp_path / "first.npz", x_train=planes, y_train=Y, x_test=planes[:4], y_test=Y[:4])
    for found in (npz.load(last), npz.load(first, Wanted(channels="first"))):
        assert found.image_shape == (4, 5, 3)
        np.testing.assert_array_equal(found.images, COLOURS.reshape(6, 60))
        np.testing.assert_array_equal(found.test_images, COLOURS[:4].reshape(4, 60))
        assert found.images.flags.c_contiguous and found.images.dtype == np.uint8
    grey = save(tmp_path / "grey.npz", x_train=COLOURS[:, None, :, :, 0] / 2, y_train=Y)
    found = npz.load(grey, Wanted(channels="first"))
    assert found.image_shape == (4, 5) and found.images.dtype == np.float32
    np.testing.assert_array_equal(found.images, COLOURS[..., 0].reshape(6, 20) / 2)


def test_channels_first_of_images_that_have_none(tmp_path, refused):
    path = save(tmp_path / "data.npz", **GOOD)
    with refused(path, "x_train", "(6, 4, 3), without channels", "leave out --channels first"):
        npz.load(path, Wanted(channels="first"))
    path = save(tmp_path / "other.npz", x_train=COLOURS.transpose(0, 3, 1, 2), y_train=Y, x_test=X, y_test=Y)
    with refused(path, "x_test", "leave out --channels first"):
        npz.load(path, Wanted(channels="first"))


def test_fortran_order_and_other_byte_order(tmp_path):
    found = npz.load(
        save(tmp_path / "data.npz", x_train=np.asfortranarray(X.astype(">i4")), y_train=Y.astype(">i8"))
    )
    np.testing.assert_array_equal(found.images, X.reshape(6, 12))
    np.testing.assert_array_equal(found.labels, Y)


def test_labels_as_keras_has_them_for_cifar(tmp_path):
    found = npz.load(save(tmp_path / "data.npz", **GOOD | {"y_train": Y[:, None], "y_test": Y[:4, None]}))
    np.testing.assert_array_equal(found.labels, Y)
    np.testing.assert_array_equal(found.test_labels, Y[:4])


def test_test_arrays_may_be_missing(tmp_path):
    found = npz.load(save(tmp_path / "data.npz", x_train=X, y_train=Y))
    assert found.test_images is None
    assert found.test_labels is None


@pytest.mark.parametrize("name", GOOD)
def test_missing_array(tmp_path, refused, name):
    path = save(tmp_path / "data.npz", **{key: array for key, array in GOOD.items() if key != name})
    with refused(
        path,
        f"no array {name}"
        if name.endswith("train")
        else f"no test {'images' if name[0] == 'x' else 'labels'}",
    ):
        npz.load(path)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x_train": X[0, 0]}, ["array x_train", "are the two swapped"]),
        ({"x_train": X[:5]}, ["array x_train", "5 images", "6 labels"]),
        ({"x_train": X.astype("U3")}, ["array x_train", "type <U3"]),
        ({"y_train": np.eye(6)}, ["array y_train", "one-hot", "shape (6, 6)"]),
        ({"x_test": X[:4, :2]}, ["array x_test", "(2, 3)"]),
        ({"y_test": Y[:3]}, ["array x_test", "3 labels"]),
    ],
)
def test_misshapen_array(tmp_path, refused, arrays, words):
    path = save(tmp_path / "data.npz", **GOOD | arrays)
    with refused(path, *words):
        npz.load(path)


class Trap:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("save_with", [np.savez, np.savez_compressed])
def test_object_arrays_are_never_unpickled(tmp_path, refused, save_with):
    trap = np.array([Trap(tmp_path / "sprung")] * 6, object)
    path = save(tmp_path / "data.npz", save_with, **GOOD | {"x_train": trap})
    with refused(path, "x_train", "never unpickled"):
        npz.load(path)
    assert not (tmp_path / "sprung").exists()


def test_a_pickle_called_npz_is_never_unpickled(tmp_path, refused):
    path = tmp_path / "data.npz"
    path.write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with refused(path, "not a whole .npz"):
        npz.load(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"<html>404</html>", b"\x93NUMPY\x01\x00" + bytes(100)])
def test_not_a_zip(tmp_path, refused, data):
    path = tmp_path / "data.npz"
    path.write_bytes(data)
    with refused(path, "not a whole .npz"):
        npz.load(path)


@pytest.mark.parametrize(
    "x_train",
    [
        b"",
        b"not a .npy",
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (6, 4", b""),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': 'six', }", bytes(72)),
        npy("{'descr': 'nonsense', 'fortran_order': False, 'shape': (6, 12), }", bytes(72)),
        npy("__import__('os').abort()", bytes(72)),
        npy("(", bytes(72)),
        npy("{[1]: 2}", bytes(72)),
        npy("-" * 9000 + "1", bytes(72)),
        npy("{'descr': 'i4,,', 'fortran_order': False, 'shape': (6, 12), }", bytes(72)),
        npy("{'descr': ('|u1',), 'fortran_order': False, 'shape': (6, 12), }", bytes(72)),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (-6, -12), }", bytes(72)),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (6, 12), }", bytes(72), version=b"\x09\x00"),
        # NumPy sums such sizes up in 64 bits, and takes truth for a number
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (9223372036854775808, 0), }", b""),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (%s, 0), }" % ("9" * 400), b""),
        npy("{'descr': '|u1', 'fortran_order': False, 'shape': (True, False), }", b""),
    ],
)
def test_member_that_is_no_array(tmp_path, refused, x_train):
    path = archive(tmp_path / "data.npz", x_train)
    with refused(path, "x_train.npy is damaged or no array"):
        npz.load(path)


@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("shape", [(1 << 20, 1 << 20), (6, 13), (6, 11)])
def test_a_header_that_lies_allocates_nothing(tmp_path, refused, shape, packing):
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    path = archive(tmp_path / "data.npz", npy(header, bytes(72)), packing)
    with peak_below(1_000_000), refused(path, "x_train.npy", "header promises"):
        npz.load(path)


def test_a_zip_directory_that_lies_too_allocates_nothing(tmp_path, refused):
    """Header and zip agree on 2 GiB, which the few bytes in the file cannot be the packed form of."""
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 1073741824), }"
    x_train = npy(header, bytes(72))
    path = archive(tmp_path / "data.npz", x_train, zipfile.ZIP_DEFLATED)
    told, lie = len(x_train).to_bytes(4, "little"), (len(x_train) - 72 + (1 << 31)).to_bytes(4, "little")
    data = path.read_bytes()
    assert data.count(told) == 2  # in the member's own header and in the directory
    path.write_bytes(data.replace(told, lie))
    with peak_below(1_000_000), refused(path, "x_train.npy", "header promises"):
        npz.load(path)


def test_a_header_without_an_end_is_not_read_to_its_end(tmp_path, refused):
    """Version 2 says in 32 bits how long it is; the zip packs 64 MB into some 64 kB."""
    endless = b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(64_000_000)
    path = archive(tmp_path / "data.npz", endless, zipfile.ZIP_DEFLATED)
    del endless
    with peak_below(1_000_000), refused(path, "x_train.npy is damaged or no array"):
        npz.load(path)


def test_zeros_that_are_there_are_read(tmp_path):
    """Deflate packs them 1000 to 1: that alone makes no file a lie."""
    x = np.zeros((2, 500_000), np.uint8)
    found = npz.load(save(tmp_path / "data.npz", np.savez_compressed, x_train=x, y_train=Y[:2]))
    assert found.images.shape == x.shape and not found.images.any()


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '\\d', 'fortran_order': False, 'shape': (6, 12), }",  # no such escape
        "{'descr': '|u1', 'fortran_order': False, 'shape': (6, 12)if 1else(), }",
        "{'descr': 'a1', 'fortran_order': False, 'shape': (6, 12), }",  # an old name
        "{'descr': '|u1', 'fortran_order': False, 'shape': (6L, 12L), }",  # as Python 2 wrote it: good
    ],
)
def test_python_and_numpy_warn_of_no_header(tmp_path, recwarn, header):
    path = archive(tmp_path / "data.npz", npy(header, bytes(72)))
    try:
        npz.load(path)
    except UserError:
        assert "L" not in header
    assert not recwarn.list


@pytest.mark.parametrize("size", ["1", "9223372036854775807"])
def test_a_shape_of_hundreds_of_sizes_is_refused_in_a_short_line(tmp_path, size):
    """The product of the large ones has more digits than Python prints."""
    header = "{'descr': '|u1', 'fortran_order': False, 'shape': (%s), }" % (f"{size}, " * 450)
    path = archive(tmp_path / "data.npz", npy(header, bytes(72)))
    with pytest.raises(UserError, match=r"x_train\.npy is damaged or no array") as caught:
        npz.load(path)
    assert len(str(caught.value)) < len(str(path)) + 100


def test_packing_that_numpy_does_not_use(tmp_path, refused):
    x_train = io.BytesIO()
    np.save(x_train, X)
    path = archive(tmp_path / "data.npz", x_train.getvalue(), zipfile.ZIP_LZMA)
    with refused(path, "x_train.npy", "packed in a way"):
        npz.load(path)


@pytest.mark.parametrize("save_with", [np.savez, np.savez_compressed])
def test_changed_pixels_are_found_by_the_checksum(tmp_path, refused, save_with):
    path = save(tmp_path / "data.npz", save_with, **GOOD)
    data = bytearray(path.read_bytes())
    data[190] ^= 0xFF  # among x_train's pixels
    path.write_bytes(data)
    with refused(path, "damaged"):
        npz.load(path)


@pytest.mark.parametrize("save_with", [np.savez, np.savez_compressed])
def test_any_damage_is_a_user_error_or_harmless(tmp_path, save_with):
    """Random bytes changed or the end cut off: a ``UserError`` or a data set, never another exception."""
    good = save(tmp_path / "good.npz", save_with, **GOOD).read_bytes()
    path = tmp_path / "bad.npz"
    dice = random.Random(1)
    messages = []
    for _ in range(300):
        data = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        path.write_bytes(data[: dice.choice([len(data), dice.randrange(len(data))])])
        try:
            npz.load(path)
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > 200  # most damage is found
    assert all(str(path) in message and "\n" not in message for message in messages)


def test_file_without_permission(tmp_path, refused, monkeypatch):
    path = save(tmp_path / "data.npz", **GOOD)

    def deny(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("io.open", deny)  # root may read everything; this is what zipfile opens with
    with refused(path, "Permission denied"):
        npz.load(path)


def test_a_directory_and_a_missing_file(tmp_path, refused):
    with refused(tmp_path, "not a file"):
        npz.load(tmp_path)
    with refused(tmp_path / "gone.npz", "No such file"):
        npz.load(tmp_path / "gone.npz")
