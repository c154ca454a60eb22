"""Data larger than memory: an .npz that is not packed stays in its file, on every rank."""

from __future__ import annotations

import io
import re
import resource
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from nn.app import load
from nn.files import npz as files
from nn.input import Dataset, Wanted, mapped, npz
from pyrt.errors import UserError
from pyrt.job import join
from pyrt.job.cores import BLAS_VARIABLES
from tests import few
from tests.fuzz.packing import pack_npy
from tests.memory import peak_below
from tests.mpi import mpirun

IMAGES = np.random.default_rng(0).integers(0, 256, (50, 4, 3, 2), np.uint8)
LABELS = np.arange(50) % 5


@pytest.fixture
def all_are_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "LEAST", 1)


def read_and_mapped(path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Wanted) -> tuple[Dataset, Dataset]:
    read = npz.load(path, wanted)
    monkeypatch.setattr(npz, "LEAST", 1)
    return read, npz.load(path, wanted)


@pytest.mark.parametrize("before", [{}, {"other": np.arange(7.0), "x": np.array("é")}])
@pytest.mark.parametrize("shape", [(50, 4, 3, 2), (50, 24), (50, 8, 3)])
def test_what_is_mapped_is_what_is_read(tmp_path, monkeypatch, shape, before):
    images, path = IMAGES.reshape(shape), tmp_path / "set.npz"
    np.savez(path, **before, x_train=images, y_train=LABELS, x_test=images[:9], y_test=LABELS[:9])
    read, found = read_and_mapped(path, monkeypatch, Wanted())
    for name in ("images", "test_images"):
        assert mapped.place_of(getattr(read, name)) is None
        assert mapped.place_of(getattr(found, name)).path == str(path)
        np.testing.assert_array_equal(getattr(found, name), getattr(read, name))
    assert found.image_shape == read.image_shape


@pytest.mark.parametrize(
    ("save", "images", "channels"),
    [
        (np.savez_compressed, IMAGES, "last"),
        (np.savez, IMAGES.astype(np.int16), "last"),
        (np.savez, IMAGES / 2, "last"),
        (np.savez, np.asfortranarray(IMAGES), "last"),
        (np.savez, IMAGES, "first"),
    ],
)
def test_what_cannot_be_used_as_it_lies_is_read(tmp_path, monkeypatch, save, images, channels):
    save(tmp_path / "set.npz", x_train=images, y_train=LABELS)
    read, found = read_and_mapped(tmp_path / "set.npz", monkeypatch, Wanted(channels=channels))
    assert mapped.place_of(found.images) is None
    np.testing.assert_array_equal(found.images, read.images)


def test_a_place_is_that_of_the_part(tmp_path, all_are_mapped):
    np.savez(tmp_path / "set.npz", x_train=IMAGES, y_train=LABELS)
    images = npz.load(tmp_path / "set.npz").images
    part = images[7:20]
    again = mapped.map_at(mapped.place_of(part), part.shape, part.dtype)
    np.testing.assert_array_equal(again, IMAGES.reshape(50, 24)[7:20])
    assert mapped.place_of(images[[1, 2]]) is None and mapped.place_of(IMAGES) is None


def test_another_file_is_not_mapped(tmp_path, all_are_mapped):
    path = tmp_path / "set.npz"
    np.savez(path, x_train=IMAGES, y_train=LABELS)
    images = npz.load(path).images
    place = mapped.place_of(images)
    assert mapped.map_at(place._replace(changed=place.changed + 1), images.shape, images.dtype) is None
    assert mapped.map_at(place._replace(length=place.length + 1), images.shape, images.dtype) is None
    assert mapped.map_at(place, (10**9, 24), images.dtype) is None
    path.unlink()
    assert mapped.map_at(place, images.shape, images.dtype) is None


@pytest.mark.parametrize("change", [1, -200, 2**20])
def test_a_member_that_is_not_where_it_should_be(tmp_path, all_are_mapped, change):
    """The central directory tells where; the member's own header may say otherwise."""
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("y_train.npy", pack_npy(LABELS))
        archive.writestr("x_train.npy", pack_npy(IMAGES))
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\x01\x02") + 42
    offset = int.from_bytes(data[place : place + 4], "little")
    data[place : place + 4] = max(0, offset + change).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(UserError, match=re.escape(str(path))):
        npz.load(path)


def test_a_length_of_the_own_header_that_leads_past_the_end(tmp_path, all_are_mapped):
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("y_train.npy", pack_npy(LABELS))
        archive.writestr("x_train.npy", pack_npy(IMAGES))
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("x_train.npy")
        size = path.stat().st_size
        start = files.mapped(path, archive, info, size)
        with pytest.raises(UserError, match="is cut short"):
            files.mapped(path, archive, info, info.header_offset + info.file_size)
    np.testing.assert_array_equal(start, IMAGES)


@pytest.mark.parallel([2])
@pytest.mark.parametrize("sees", [True, False])
def test_ranks_map_the_file_or_receive_what_they_do_not_see(shared, monkeypatch, sees):
    job, path = join(), shared / f"set-{sees}.npz"
    monkeypatch.setattr(npz, "LEAST", 1)
    dataset = None
    if job.rank == 0:
        np.savez(path, x_train=IMAGES, y_train=LABELS)
        dataset = npz.load(path)
    if job.rank == 1 and not sees:
        monkeypatch.setattr(mapped, "map_at", lambda *_: None)
    found = load._broadcast(dataset, job)
    np.testing.assert_array_equal(found.images, IMAGES.reshape(50, 24))
    assert found.labels.tolist() == LABELS.tolist()
    assert (mapped.place_of(found.images) is not None) == (sees or job.rank == 0)


def sparse_npz(path: Path, n: int, shape: tuple[int, ...]) -> None:
    """Write n images, all but the first of them zeros, that take no room on the disk."""
    first = np.random.default_rng(0).integers(0, 256, shape, np.uint8).tobytes()
    head = io.BytesIO()
    described = {"descr": "|u1", "fortran_order": False, "shape": (n, *shape)}
    np.lib.format.write_array_header_1_0(head, described)
    labels = pack_npy((np.arange(n) % 10).astype(np.uint8))
    members = (
        (b"y_train.npy", labels, len(labels), zipfile.crc32(labels)),
        (b"x_train.npy", head.getvalue() + first, len(head.getvalue()) + n * len(first), 0),
    )
    central = b""
    with open(path, "wb") as file:
        for name, content, size, checksum in members:
            start = file.tell()
            fields = struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 33, checksum, size, size, len(name), 0)
            central += b"PK\x01\x02\x14\0" + fields + struct.pack("<HHHII", 0, 0, 0, 0, start) + name
            file.write(b"PK\x03\x04" + fields + name + content)
            file.seek(start + 30 + len(name) + size)
        end = struct.pack("<HHHHIIH", 0, 0, 2, 2, len(central), file.tell(), 0)
        file.write(central + b"PK\x05\x06" + end)


def test_reading_takes_no_memory(tmp_path):
    path = tmp_path / "set.npz"
    sparse_npz(path, 100_000, (64, 64, 3))
    with peak_below(4_000_000):
        found = npz.load(path)
    assert found.images.shape == (100_000, 12_288) and found.images[0].any() and not found.images[-1].any()


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]),) * 2)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_DATA"), reason="needs a limit of memory")
@pytest.mark.parametrize("ranks", few([1], of=[1, 2]))
def test_a_run_stays_below_the_size_of_its_data(tmp_path, ranks):
    """A limit of the memory that is not a file's; the same data, read, are refused below it."""
    path = tmp_path / "set.npz"
    sparse_npz(path, 300_000, (64, 64, 3))  # 3.7 GB
    limited = [
        sys.executable,
        "-c",
        LIMITED,
        str(2 << 30),
        "train.py",
        "--data",
        str(path),
        "--device",
        "cpu",
    ]
    sizes = {"hidden": 4, "samples": 300, "batch": 100, "epochs": 1, "val-fraction": 0.001}
    command = [*limited, *(f"--{name}={value}" for name, value in sizes.items())]
    done = mpirun(ranks, *command, env=dict.fromkeys(BLAS_VARIABLES, "1"))
    assert done.returncode == 0, done.stderr
    assert "300 training (of 299700 in the set), 300 validation" in done.stdout
    refused = mpirun(ranks, *command, "--val-split", "random", env=dict.fromkeys(BLAS_VARIABLES, "1"))
    assert refused.returncode == 2 and "memory" in refused.stderr


@pytest.mark.long
@pytest.mark.skipif(not hasattr(resource, "RLIMIT_DATA"), reason="needs a limit of memory")
def test_ranks_hold_together_what_one_cannot(tmp_path):
    """All of the set is trained on; its bytes are more than a rank may have, its part is not."""
    path = tmp_path / "set.npz"
    sparse_npz(path, 96_000, (64, 64, 3))  # 1.2 GB
    sizes = ["--hidden=4", "--batch=800", "--epochs=1", "--val-fraction=0"]
    options = ["--device=cpu", *sizes, "--no-shuffle", "--distribute"]
    command = [sys.executable, "-c", LIMITED, str(1100 << 20), "train.py", "--data", str(path), *options]
    blas = dict.fromkeys(BLAS_VARIABLES, "1")
    done = mpirun(2, *command, "parts", env=blas)
    assert done.returncode == 0, done.stderr
    assert "96000 training, 0 validation" in done.stdout
    assert mpirun(1, *command, "parts", env=blas).returncode == 2
