"""nn/files/write.py: what cannot be written is found before the run; a file is whole or not there."""

import errno
import os

import numpy as np
import pytest

from nn.files.write import require_writable, write_arrays, write_whole
from pyrt.errors import UserError
from tests.memory import peak_below


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def refused(tmp_path):
    """Checks that ``--save path`` is refused in one line that names both, and that nothing changes."""

    def check(path, *words):
        before = contents(tmp_path)
        with pytest.raises(UserError) as caught:
            require_writable("--save", path)
        message = str(caught.value)
        assert message.startswith(f"--save {path}: ")
        assert "\n" not in message and "None" not in message
        assert all(word in message for word in words)
        assert contents(tmp_path) == before

    return check


def test_a_new_file_is_writable_and_not_made(tmp_path):
    require_writable("--save", tmp_path / "new.npz")
    assert not contents(tmp_path)


def test_an_existing_file_is_writable_and_left_alone(tmp_path):
    (tmp_path / "old.npz").write_bytes(b"old")
    require_writable("--save", tmp_path / "old.npz")
    assert contents(tmp_path) == {"old.npz": b"old"}


def test_a_name_without_a_folder_lies_in_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = type(tmp_path)("new.npz")
    require_writable("--save", path)
    write_whole("--save", path, lambda file: file.write(b"new"))
    assert contents(tmp_path) == {"new.npz": b"new"}


def test_a_folder(tmp_path, refused):
    refused(tmp_path, "folder")


def test_a_missing_folder_is_not_made(tmp_path, refused):
    refused(tmp_path / "missing" / "new.npz", "folder", "missing")
    assert not (tmp_path / "missing").exists()


def test_a_file_in_place_of_the_folder(tmp_path, refused):
    (tmp_path / "file").write_bytes(b"old")
    refused(tmp_path / "file" / "new.npz", "folder")


def test_a_place_where_nobody_can_write(tmp_path, refused):
    refused(type(tmp_path)("/proc/new.npz"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path, refused):
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o500)
    refused(folder / "new.npz", "Permission denied")
    folder.chmod(0o000)
    refused(folder / "new.npz", "Permission denied")
    folder.chmod(0o700)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_without_permission(tmp_path, refused):
    (tmp_path / "old.npz").touch(mode=0o400)
    refused(tmp_path / "old.npz", "Permission denied")


def test_a_name_that_is_too_long(tmp_path, refused):
    refused(tmp_path / ("a" * 300), "too long")


def test_a_name_that_just_fits_can_be_written_too(tmp_path):
    path = tmp_path / ("a" * 255)
    require_writable("--save", path)
    write_whole("--save", path, lambda file: file.write(b"new"))
    assert contents(tmp_path) == {path.name: b"new"}


def test_a_pipe_and_a_device_are_not_replaced_by_a_file(tmp_path, refused):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/null")
    for name in ("pipe", "device"):
        refused(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "device").is_char_device()


def test_a_link_that_leads_to_itself_is_replaced(tmp_path):
    path = tmp_path / "link"
    path.symlink_to(path)
    require_writable("--save", path)
    write_whole("--save", path, lambda file: file.write(b"new"))
    assert contents(tmp_path) == {"link": b"new"}


def test_the_file_is_replaced_with_the_permissions_of_new_files(tmp_path):
    (tmp_path / "file").write_bytes(b"something longer")
    mask = os.umask(0o027)
    try:
        write_whole("--json", tmp_path / "file", lambda file: file.write(b"new"))
    finally:
        os.umask(mask)
    assert contents(tmp_path) == {"file": b"new"}
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def write_half(error):
    """A writer that fails in the middle."""

    def write(file):
        file.write(b"half")
        file.flush()
        raise error

    return write


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(UserError, match=r"--json .*file: .*No space left"):
        write_whole("--json", tmp_path / "file", write_half(full))
    assert contents(tmp_path) == {"file": b"old"}


def test_any_other_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(MemoryError):
        write_whole("--json", tmp_path / "file", write_half(MemoryError()))
    assert contents(tmp_path) == {"file": b"old"}


@pytest.mark.parametrize("chunk", [1, 7, 1 << 22])
def test_arrays_are_written_as_numpy_does(tmp_path, monkeypatch, chunk):
    """Bit by bit, whatever their layout, dtype and size; NumPy reads them."""
    monkeypatch.setattr("nn.files.write._CHUNK", chunk)
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((5, 3))
    arrays = {
        "W1": matrix,
        "b1": matrix[:, 0],
        "turned": matrix.T,
        "every other": matrix.astype("f4")[::2],
        "swapped": matrix.astype(">f8"),
        "none": matrix[:0],
        "run": np.array("a text, \u00fc"),
    }
    with open(tmp_path / "ours.npz", "wb") as file:
        write_arrays(file, arrays)
    with np.load(tmp_path / "ours.npz", allow_pickle=False) as found:
        assert found.files == list(arrays)
        for name, array in arrays.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
            assert found[name].tobytes() == array.tobytes(), name
    with open(tmp_path / "numpy.npz", "wb") as file:
        np.savez(file, **{name: np.asarray(array, order="C") for name, array in arrays.items()})
    assert (tmp_path / "ours.npz").read_bytes() == (tmp_path / "numpy.npz").read_bytes()


def test_arrays_are_not_copied(tmp_path):
    array = np.ones(4_000_000, np.float32)
    with peak_below(1_000_000), open(tmp_path / "w.npz", "wb") as file:
        write_arrays(file, {"W1": array})
