"""nn/files/parameters.py, npz_parameters.py: files of parameters, whole and damaged."""

import io
import json
import pickle
import zipfile

import numpy as np
import pytest

from nn.files import npz_parameters, parameters
from nn.model.initial import initial_values
from pyrt.errors import UserError
from tests import LONG, few
from tests.memory import peak_below
from tests.nn.files.made import NETWORK, load


@pytest.fixture
def file(tmp_path):
    return tmp_path / "parameters.npz"


# files


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_saved_parameters_come_back_bit_by_bit(file, dtype):
    saved = initial_values(NETWORK, dtype, 0)
    parameters.save(file, saved, {})
    loaded = load(file, dtype)
    assert list(loaded) == ["W1", "b1", "W2", "b2"]
    for name, array in loaded.items():
        assert (array.dtype, array.tobytes()) == (saved[name].dtype, saved[name].tobytes())


def test_the_metadata_of_the_run_is_saved_beside_them(file, arrays):
    metadata = {"options": {"hidden": [5]}, "test_precision": None}
    parameters.save(file, arrays, metadata)
    with np.load(file, allow_pickle=False) as saved:
        assert json.loads(str(saved["run"])) == metadata


def test_files_of_others_are_read_too(file, arrays):
    """Integers, another float, Fortran order, compressed, other names beside; under any file name."""
    arrays["b1"] = np.arange(5)
    arrays["W1"] = np.asfortranarray(arrays["W1"].astype(">f4"))
    with open(file, "wb") as stream:
        np.savez_compressed(stream, **arrays, Wide=np.ones(3), note=np.array("text"))
    loaded = load(file, "float32")
    for name, array in loaded.items():
        assert array.dtype == np.float32 and array.dtype.isnative
        np.testing.assert_array_equal(array, arrays[name].astype(np.float32))


def test_a_failing_save_leaves_the_old_file(file, arrays, monkeypatch):
    parameters.save(file, arrays, {})
    old = file.read_bytes()

    def fail(stream, arrays):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(npz_parameters, "write_arrays", fail)
    with pytest.raises(UserError, match=r"--save .*No space left"):
        parameters.save(file, arrays, {})
    assert file.read_bytes() == old
    assert list(file.parent.iterdir()) == [file]


def test_a_missing_array(file, arrays, refused):
    del arrays["b2"]
    np.savez(file, **arrays)
    refused("b2", "--hidden")


def test_a_layer_too_many(file, arrays, refused):
    np.savez(file, **arrays, W3=np.ones((3, 3)), b3=np.ones(3))
    refused("W3", "b3", "--hidden")


@pytest.mark.parametrize(
    ("name", "shape"),
    [("W1", (6, 5)), ("W1", (30,)), ("b1", (5, 1)), ("b1", ()), ("W2", (4, 5)), ("b2", (0,))],
)
def test_a_misshapen_array(file, arrays, refused, name, shape):
    arrays[name] = np.ones(shape)
    np.savez(file, **arrays)
    refused(name, str(shape), str(NETWORK.shapes[name]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(file, arrays, refused, value):
    arrays["W2"][1, 1] = value
    np.savez(file, **arrays)
    refused("W2", "finite")


def test_numbers_that_are_not_finite_in_the_dtype_of_the_run(file, arrays, refused):
    arrays["W2"][1, 1] = 1e300
    np.savez(file, **arrays)
    load(file, "float64")
    refused("W2", "finite", dtype="float32")


@pytest.mark.parametrize("kind", ["U3", "S3", "complex128", "datetime64[s]", "bool"])
def test_arrays_of_anything_but_numbers(file, arrays, refused, kind):
    arrays["b1"] = np.zeros(5, kind)
    np.savez(file, **arrays)
    refused("b1")


class Trap:
    """Leaves a trace where it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


def test_nothing_is_ever_unpickled(file, arrays, refused, tmp_path):
    trap = Trap(tmp_path / "trace")
    arrays["b1"] = np.array([trap] * 5, object)
    np.savez(file, **arrays)
    refused()
    file.write_bytes(pickle.dumps(trap))
    refused()
    assert not trap.trace.exists()


def test_a_missing_file_and_a_folder(file, refused):
    refused()
    file.mkdir()
    refused()


@pytest.mark.parametrize("content", [b"", b"W1 = 0", b"PK\x03\x04", b"PK\x05\x06" + bytes(18)])
def test_a_file_that_is_no_npz(file, refused, content):
    file.write_bytes(content)
    refused()


def test_a_single_npy(file, refused):
    with open(file, "wb") as stream:
        np.save(stream, np.zeros(3))
    refused()


def test_a_header_that_promises_more_than_the_file_holds_allocates_nothing(file, arrays, refused):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40, 784)}
    )
    np.savez(file, **{name: array for name, array in arrays.items() if name != "W1"})
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("W1.npy", header.getvalue() + bytes(80))
    refused()


@pytest.mark.parametrize("name", few(["W1"], of=["W1", "W9"]))
def test_arrays_larger_than_the_network_are_not_read(file, arrays, refused, name):
    """Zeros of 64 MB, which the file really holds."""
    np.savez_compressed(file, **{**arrays, name: np.zeros((1 << 23, 1))})
    with peak_below(1_000_000):
        refused(name, "--hidden")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_any_damage_is_refused_or_harmless(file, arrays, save):
    save(file, **arrays)
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    for trial in range(300 if LONG else 150):
        damaged = bytearray(whole[: rng.integers(len(whole))] if trial % 3 == 0 else whole)
        for place in rng.integers(len(damaged) or 1, size=trial % 4):
            damaged[place : place + 1] = bytes([rng.integers(256)])
        file.write_bytes(damaged)
        try:
            loaded = load(file)
        except UserError as error:
            assert str(error).startswith(f"--init {file}: ") and "\n" not in str(error)
        else:
            assert {name: array.shape for name, array in loaded.items()} == NETWORK.shapes
