"""nn/input/cifar.py: CIFAR's binary files in a folder and in an archive, good and bad."""

import gzip
import tarfile
from pathlib import Path

import numpy as np
import pytest

from nn.input import Wanted, cifar, load
from tests import few
from tests.memory import peak_below
from tests.nn.input.made import CIFAR_NAMES, cifar_files, cifar_images, pack_cifar, pack_tar

both = pytest.mark.parametrize("classes", [10, 100])


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@both
@pytest.mark.parametrize("packed", [False, True])
def test_images_have_their_channels_last_and_fine_labels(tmp_path, classes, packed):
    """Files are taken in the order of their numbers."""
    if packed:
        source = put(tmp_path / "SET.TAR.GZ", pack_cifar(classes, n=3))
    else:
        source = fill(tmp_path / "folder", cifar_files(classes, n=3))
    found = load(str(source))
    count = len(CIFAR_NAMES[classes]) - 1
    expected = np.concatenate([cifar_images(3, seed) for seed in range(count)])
    np.testing.assert_array_equal(found.images, expected.reshape(3 * count, 3072))
    np.testing.assert_array_equal(found.test_images, cifar_images(3, count).reshape(3, 3072))
    assert found.labels.tolist() == [0, 1, 2] * count and found.test_labels.tolist() == [0, 1, 2]
    assert (found.name, found.image_shape) == (str(source), (32, 32, 3))
    assert found.images.dtype == np.uint8 and found.images.flags.c_contiguous


@both
def test_the_test_file_may_be_missing(tmp_path, classes):
    files = cifar_files(classes)
    del files[CIFAR_NAMES[classes][-1]]
    assert load(str(fill(tmp_path / "folder", files))).test_images is None
    assert load(str(put(tmp_path / "set.tar.gz", pack_tar(files)))).test_images is None


def test_a_training_file_is_missing(tmp_path, refused):
    files = cifar_files(10)
    del files["data_batch_2.bin"], files["data_batch_5.bin"]
    for source in (fill(tmp_path / "folder", files), put(tmp_path / "set.tar.gz", pack_tar(files))):
        with refused(source, "lacks data_batch_2.bin, data_batch_5.bin"):
            load(str(source))


def test_two_sets_and_none(tmp_path, refused):
    files = cifar_files(10) | cifar_files(100)
    for source in (fill(tmp_path / "folder", files), put(tmp_path / "set.tar.gz", pack_tar(files))):
        with refused(source, "CIFAR-10 and CIFAR-100: keep one"):
            load(str(source))
    with refused("no CIFAR here", "data_batch_1.bin", "train.bin"):
        load(str(put(tmp_path / "other.tar.gz", pack_tar({"a.txt": b"nothing"}))))


@both
@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b""])
def test_files_of_another_length(tmp_path, refused, classes, change):
    files = cifar_files(classes)
    name = CIFAR_NAMES[classes][0]
    files[name] = change(files[name])
    words = name, f"{len(files[name])} bytes are no whole number of records of {3073 + (classes == 100)}"
    for source in (fill(tmp_path / "folder", files), put(tmp_path / "set.tar.gz", pack_tar(files))):
        with refused(source, *words):
            load(str(source))


def test_channels_are_not_for_the_user_to_say(tmp_path, refused):
    source = fill(tmp_path / "folder", cifar_files(10))
    with refused("--channels first", source, "leave it out"):
        load(str(source), Wanted(channels="first"))


def test_what_else_is_in_an_archive_is_left_alone(tmp_path):
    """Links, folders, devices and paths out of the folder too: only names count, and nothing is written."""
    source = tmp_path / "in" / "set.tar.gz"
    source.parent.mkdir()
    with tarfile.open(source, "w:gz") as archive:
        for name, kind in (("train.bin", tarfile.SYMTYPE), ("d/test.bin", tarfile.DIRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        for name, content in cifar_files(10).items():
            path = tmp_path / name
            path.write_bytes(content)
            archive.add(path, f"../../{name}")
            path.unlink()
        long = tmp_path / "long"
        long.write_bytes(bytes(1000))
        archive.add(long, f"{'x' * 150}/train.bin")  # a longer name than a tar's header holds
        long.unlink()
    assert load(str(source)).images.shape == (10, 3072)
    assert sorted(tmp_path.rglob("*")) == [source.parent, source]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda data: data[:-10], "damaged or cut short"),
        (lambda data: data[: len(data) // 2], "damaged or cut short"),
        (lambda data: data[:-8] + b"abcd" + data[-4:], "damaged or cut short"),  # gzip's checksum
        (lambda data: gzip.compress(gzip.decompress(data)[:20_000]), "damaged, or no tar"),
        (lambda data: gzip.compress(gzip.decompress(data)[:300]), "damaged, or no tar"),
        (lambda data: gzip.compress(b"x" + gzip.decompress(data)), "damaged, or no tar"),
        (lambda data: gzip.compress(b""), "damaged, or no tar"),
        (lambda data: gzip.decompress(data), "damaged or cut short"),  # a .tar by that name
    ],
)
def test_damaged_archives(tmp_path, refused, change, word):
    path = put(tmp_path / "set.tar.gz", change(pack_cifar(10)))
    with refused(path, word):
        cifar.load_archive(path)


@pytest.mark.parametrize(
    "size", [b"77777777777", b"-0000000001", b"99999999999", b"00000000000", b"\x80" + b"\xff" * 10]
)
def test_sizes_that_lie(tmp_path, refused, size):
    """They are refused before memory is set aside for them."""
    tar = bytearray(pack_tar(cifar_files(100), packed=False))
    tar[124:135] = size
    tar[148:156] = b" " * 8
    tar[148:156] = b"%06o\0 " % sum(tar[:512])
    path = put(tmp_path / "set.tar.gz", gzip.compress(tar))
    with peak_below(4_000_000), refused(path):
        cifar.load_archive(path)


@pytest.mark.parametrize("name", few(["train.bin"], of=["other", "train.bin"]))
def test_what_inflates_to_more_than_cifar_has_is_not_held(tmp_path, refused, name, monkeypatch):
    monkeypatch.setattr(cifar, "MOST", 1 << 20)
    monkeypatch.setattr(cifar, "MOST_ARCHIVE", 1 << 25)
    path = put(tmp_path / "set.tar.gz", pack_tar({name: bytes(1 << 26)}))
    with peak_below(4_000_000), refused(path, "damaged, or no tar"):
        cifar.load_archive(path)
