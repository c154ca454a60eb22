"""nn/files/safetensors.py: parameters in .safetensors files, whole, damaged and hostile."""

import json
import struct
import sys
from functools import partial

import numpy as np
import pytest

from nn.files import parameters, safetensors
from nn.model.initial import initial_values
from pyrt.errors import UserError
from tests.nn.files.made import NETWORK, load, require_failing_save_leaves_the_old_file

package = pytest.importorskip("safetensors", reason="make test installs it")

RUN = {"options": {"hidden": [5]}, "test_precision": None}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "parameters.safetensors"


def pack(header, content=b""):
    """A file of any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


def packed(arrays, kinds=None, run=None):
    """A file of these arrays, whose types the header may call anything."""
    header, content = {}, b""
    for name, array in arrays.items():
        kind = (kinds or {}).get(name, {"f": "F", "i": "I", "u": "U"}[array.dtype.kind])
        kind = kind if kind[-1].isdigit() or kind == "BOOL" else f"{kind}{8 * array.dtype.itemsize}"
        places = [len(content), len(content) + array.nbytes]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": places}
        content += array.tobytes()
    if run is not None:
        header["__metadata__"] = {"run": json.dumps(run)}
    return pack(header, content)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_saved_parameters_come_back_bit_by_bit(file, dtype):
    saved = initial_values(NETWORK, dtype, 0)
    saved["W1"] = np.asfortranarray(saved["W1"])
    parameters.save(file, saved, {})
    loaded = load(file, dtype)
    assert list(loaded) == ["W1", "b1", "W2", "b2"]
    for name, array in loaded.items():
        assert array.dtype == saved[name].dtype
        np.testing.assert_array_equal(array, saved[name])


def test_the_package_reads_the_parameters_and_their_metadata(file, arrays):
    parameters.save(file, arrays, RUN)
    with package.safe_open(file, framework="numpy") as opened:
        assert sorted(opened.keys()) == sorted(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(opened.get_tensor(name), array)
        told = json.loads(opened.metadata()["run"])
    assert told.keys() == {*RUN, "sha256"} and told["sha256"].keys() == arrays.keys()
    assert {name: told[name] for name in RUN} == RUN
    assert parameters.run_metadata(file) == told


def test_the_same_parameters_make_the_same_file(file, arrays):
    parameters.save(file, arrays, RUN)
    first = file.read_bytes()
    parameters.save(file, arrays, RUN)
    assert file.read_bytes() == first


@pytest.mark.parametrize("name", ["P.SAFETENSORS", "two.npz.safetensors"])
def test_the_end_of_the_name_says_the_format(tmp_path, arrays, name):
    parameters.save(tmp_path / name, arrays, {})
    assert (tmp_path / name).read_bytes()[8:9] == b"{"
    assert load(tmp_path / name).keys() == arrays.keys()


def test_files_of_others_are_read_too(file, arrays):
    """Other types of numbers, other names beside, no metadata."""
    arrays["b1"] = np.arange(5, dtype=np.uint8)
    arrays["W1"] = arrays["W1"].astype(np.float16)
    file.write_bytes(packed({**arrays, "Wide": np.ones(3)}))
    loaded = load(file, "float32")
    assert parameters.run_metadata(file) == {}
    for name, array in loaded.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, arrays[name].astype(np.float32))


def test_a_failing_save_leaves_the_old_file(file, arrays, monkeypatch):
    parameters.save(file, arrays, {})
    save = partial(parameters.save, file, arrays, {})
    require_failing_save_leaves_the_old_file(file, safetensors, save, "--save", monkeypatch)


def test_arrays_that_do_not_fit_the_network(file, arrays, refused):
    file.write_bytes(packed({name: array for name, array in arrays.items() if name != "b2"}))
    refused("b2", "--hidden")
    file.write_bytes(packed({**arrays, "W3": np.ones((3, 3)), "b3": np.ones(3)}))
    refused("W3", "b3", "--hidden")
    file.write_bytes(packed({**arrays, "W1": arrays["W1"].T.copy()}))
    refused("W1", "(6, 5)", "(5, 6)")


def test_numbers_that_are_not_finite_in_the_dtype_of_the_run(file, arrays, refused):
    arrays["W2"][1, 1] = 1e300
    file.write_bytes(packed(arrays))
    load(file, "float64")
    refused("W2", "finite", dtype="float32")
    arrays["W2"][1, 1] = np.nan
    file.write_bytes(packed(arrays))
    refused("W2", "finite")


@pytest.mark.parametrize(
    ("kind", "dtype"), [("BF16", "u2"), ("F8_E4M3", "u1"), ("BOOL", "u1"), ("C64", "f8")]
)
def test_arrays_of_anything_but_numbers_of_numpy(file, arrays, refused, kind, dtype):
    arrays["b1"] = np.zeros(5, dtype)
    file.write_bytes(packed(arrays, {"b1": kind}))
    refused()  # by name where the package knows the type


def test_a_missing_file_and_a_folder(file, refused):
    refused("cannot be read")
    file.mkdir()
    refused("is not a file")


ENTRY = {"dtype": "F64", "shape": [5], "data_offsets": [0, 40]}

HEADERS = {
    "empty": b"",
    "short": bytes(7),
    "an .npz": b"PK\x03\x04" + bytes(100),
    "a header longer than the file": struct.pack("<Q", 10**8) + b"{}",
    "a header longer than memory": struct.pack("<Q", 2**63) + b"{}",
    "no JSON": pack(b"[" * 100_000),
    "no object": pack([]),
    "shapes beyond 64 bits": pack({"b1": {**ENTRY, "shape": [2**40, 2**40]}}, bytes(40)),
    "a gap": pack({"b1": {**ENTRY, "data_offsets": [8, 48]}}, bytes(48)),
    "more behind": pack({"b1": ENTRY}, bytes(48)),
    "less": pack({"b1": ENTRY}, bytes(39)),
    "the same bytes twice": pack({"b1": ENTRY, "b2": ENTRY}, bytes(40)),
    "places backwards": pack({"b1": {**ENTRY, "data_offsets": [40, 0]}}, bytes(40)),
    "metadata that is no text": pack({"__metadata__": {"run": [1]}, "b1": ENTRY}, bytes(40)),
    "half a surrogate": pack(b'{"__metadata__":{"run":"\\ud800"}}'),
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS.keys())
def test_a_file_that_is_no_safetensors(file, refused, content):
    file.write_bytes(content)
    refused("is not a whole .safetensors file")


@pytest.mark.parametrize("shape", [[0, 2**63], [1] * 100])
def test_shapes_that_numpy_cannot_have(file, shape, arrays, refused):
    size = 0 if 0 in shape else 8
    file.write_bytes(pack({"W1": {"dtype": "F64", "shape": shape, "data_offsets": [0, size]}}, bytes(size)))
    refused("W1")
    with pytest.raises(UserError, match="W1 is damaged or no array"):
        safetensors.arrays(file, lambda name: True)


def test_names_are_shown_in_one_printable_line(file, arrays, refused):
    file.write_bytes(packed({**arrays, "W²": np.ones(3), "b" + "9" * 5000: np.ones(1)}))
    refused("too: give the --hidden")


def test_an_array_that_is_not_what_was_saved_is_refused(file, arrays, refused):
    parameters.save(file, arrays, RUN)
    whole = file.read_bytes()
    for place in (1, 8, 41, 300):  # within the arrays, which end the file
        damaged = bytearray(whole)
        damaged[-place] ^= 1
        file.write_bytes(damaged)
        refused("is damaged")
    file.write_bytes(whole.replace(b'"F64"', b'"I64"', 1))  # the same bytes, as other numbers
    refused("is damaged")


@pytest.mark.parametrize("digests", [None, [], "x", 1, {}])
def test_digests_that_are_none_are_not_looked_at(file, arrays, digests):
    file.write_bytes(packed(arrays, run={"sha256": digests}))
    assert load(file).keys() == arrays.keys()


@pytest.mark.parametrize("digests", [{"W1": "x"}, {"W1": None}, {"W1": [1]}, {"W9": "x"}])
def test_digests_of_something_else_are_refused(file, arrays, refused, digests):
    file.write_bytes(packed(arrays, run={"sha256": digests}))
    refused("is damaged")


def test_any_damage_is_refused_or_harmless(file, arrays):
    """Of one byte, or a file that is cut: of several bytes one may hide the digest of another's array."""
    parameters.save(file, arrays, RUN)
    whole = file.read_bytes()
    rng, refusals = np.random.default_rng(0), 0
    for trial in range(400):
        damaged = bytearray(whole[: rng.integers(len(whole))] if trial % 4 == 0 else whole)
        for place in rng.integers(len(damaged) or 1, size=trial % 4):
            damaged[place : place + 1] = bytes([rng.integers(256)])
        file.write_bytes(damaged)
        try:
            loaded = load(file)
        except UserError as error:
            assert str(error).startswith(f"--init {file}: ") and str(error).isprintable()
            refusals += 1
        else:
            assert {name: array.shape for name, array in loaded.items()} == NETWORK.shapes
            if trial % 4 < 2:
                assert all(array.tobytes() == arrays[name].tobytes() for name, array in loaded.items())
    assert refusals > 300


def test_without_the_package_one_line_says_what_to_install(file, arrays, refused, monkeypatch):
    parameters.save(file, arrays, {})
    monkeypatch.setitem(sys.modules, "safetensors", None)
    refused("needs the Python package safetensors", "python -m pip install safetensors")
    with pytest.raises(
        UserError, match=r"^--save .*parameters\.safetensors: needs the Python package"
    ) as caught:
        parameters.save(file, arrays, {})
    assert caught.value.code == 2
    parameters.save(file.with_suffix(".npz"), arrays, {})
