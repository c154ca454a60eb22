"""nn/files/pyrtz.py, nn/files/coding/section.py: compressed parameters, whole, damaged and hostile."""

import json
import struct
import sys
import zlib
from functools import partial

import numpy as np
import pytest

from nn.files import parameters, pyrtz
from nn.files.coding import section
from nn.files.coding.shared_weights import SharedWeights
from nn.model.initial import initial_values
from pyrt.errors import UserError
from tests import LONG, few, spread
from tests.fuzz.packing import join_pyrtz, split_pyrtz, summed_pyrtz
from tests.memory import peak_below
from tests.nn.files.made import NETWORK, load, require_failing_save_leaves_the_old_file

pytest.importorskip("bitarray", reason="make test installs it")

RUN = {"options": {"hidden": [5]}, "test_precision": None}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "parameters.pyrtz"


def pruned(shape, keep, seed=0):
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < keep, rng.normal(size=shape), 0).astype(np.float32)


def shared(dense, clusters, index_bits=0, seed=0):
    """The weights that are left, with codes at random of a codebook at random."""
    rng = np.random.default_rng(seed)
    array = SharedWeights.of_dense(dense, index_bits)
    codes = np.minimum(rng.geometric(0.2, len(array.places)) - 1, clusters - 1).astype(np.uint16)
    return array.shared(rng.normal(size=clusters).astype(np.float32), codes)


def cases():
    """Arrays, each with the kind of its section and its flags."""
    rng = np.random.default_rng(1)
    huffman, fillers = section.HUFFMAN_CODES | section.HUFFMAN_GAPS, section.FILLERS
    extremes = np.array([1e-45, -3.4e38, 3.4e38, -1e-45, np.pi], np.float32)
    many = SharedWeights.of_dense(rng.normal(size=70_000).astype(np.float32))
    distinct = np.append(rng.permutation(65536), np.arange(70_000 - 65536)).astype(np.uint16)
    some = pruned((300, 100), 0.08)
    alone = np.zeros((50, 1000), np.float32)
    alone[17, 500] = -1.5
    return {
        "plain": (rng.normal(size=(7, 3)).astype(np.float32), section.RAW32, 0),
        "plain, extreme": (extremes, section.RAW32, 0),
        "plain float64": (rng.normal(size=(2, 3, 4)), section.RAW64, 0),
        "plain, empty": (np.zeros((3, 0), np.float32), section.RAW32, 0),
        "plain, of one number": (np.float32(7) * np.ones((), np.float32), section.RAW32, 0),
        "plain, NaN": (np.full(3, np.nan, np.float32), section.RAW32, 0),
        "plain, with zeros": (pruned((30, 40), 0.1), section.VALUES, fillers),
        "plain, only zeros": (np.zeros((30, 40), np.float32), section.VALUES, 0),
        "plain, -0.0": (np.where(pruned((9, 9), 0.1) == 0, -0.0, 1).astype(np.float32), section.RAW32, 0),
        "pruned": (SharedWeights.of_dense(some), section.VALUES, section.HUFFMAN_GAPS | fillers),
        "pruned by 16 bits": (SharedWeights.of_dense(some, 16), section.VALUES, section.HUFFMAN_GAPS),
        "pruned, nothing": (SharedWeights.of_dense(extremes), section.VALUES, 0),
        "pruned, all": (SharedWeights.of_dense(np.zeros((5, 4), np.float32)), section.VALUES, 0),
        "shared": (shared(some, 31), section.CODES, huffman | fillers),
        "shared by 8 bits": (shared(some, 31, 8), section.CODES, huffman),
        "shared by 1 bit": (shared(some, 31, 1), section.CODES, section.HUFFMAN_CODES | fillers),
        "shared by filters": (shared(pruned((20, 5, 5, 8), 0.2), 255), section.CODES, huffman),
        "shared, few": (shared(pruned((3, 4), 0.3), 4), section.CODES, 0),
        "shared, one cluster": (shared(some, 1, 8), section.CODES, section.HUFFMAN_GAPS),
        "shared, one weight": (shared(alone, 1), section.CODES, section.HUFFMAN_GAPS | fillers),
        "shared, no weight": (shared(np.zeros((5, 4), np.float32), 3), section.CODES, 0),
        "full": (shared(pruned((30, 40), 2), 16), section.FULL_CODES, section.HUFFMAN_CODES),
        "full, one cluster": (shared(pruned((3, 4), 2), 1), section.FULL_CODES, 0),
        "full, one weight": (shared(np.ones((), np.float32), 1), section.FULL_CODES, 0),
        "full, 65536 clusters": (
            many.shared(rng.normal(size=65536).astype(np.float32), distinct),
            section.FULL_CODES,
            0,
        ),
    }


CASES = cases()
QUICK = few(list(CASES)[:-1], of=list(CASES))


def dense(array):
    return array.dense() if isinstance(array, SharedWeights) else array


def require_same(found, wanted):
    """Compare to the bit, also what is compressed."""
    assert (dense(found).shape, dense(found).dtype) == (dense(wanted).shape, dense(wanted).dtype)
    assert dense(found).tobytes() == dense(wanted).tobytes()
    if isinstance(wanted, SharedWeights):
        np.testing.assert_array_equal(found.places, wanted.places)
        assert found.index_bits == wanted.index_bits
        assert (found.values is None) == (wanted.values is None)
        for part in ("codes", "codebook"):
            if getattr(wanted, part) is not None:
                assert getattr(found, part).dtype == getattr(wanted, part).dtype
                np.testing.assert_array_equal(getattr(found, part), getattr(wanted, part))


# round trips


@pytest.mark.parametrize("name", CASES)
def test_an_array_comes_back_to_the_bit(name):
    array, kind, flags = CASES[name]
    for with_huffman in (True, False) if name in QUICK else (False,):
        fields, content = section.encode(array, with_huffman)
        wanted = flags if with_huffman else flags & section.FILLERS
        assert (fields.kind, fields.flags) == (kind, wanted)
        fields.require_sound()
        require_same(section.decode(fields, content), array)


@pytest.mark.long
def test_huffman_is_taken_where_it_is_smaller():
    for array, *_ in CASES.values():
        assert len(section.encode(array)[1]) <= len(section.encode(array, False)[1])


def test_all_kinds_in_one_file(file):
    cases = [CASES[name] for name in QUICK]
    arrays = {f"W{number}": array for number, (array, *_) in enumerate(cases, 1)}
    pyrtz.save_compressed("--save", file, arrays, RUN)
    found = pyrtz.read_compressed(file)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        require_same(found[name], array)
    headers = pyrtz.headers(file, lambda name: name != "W1")
    assert {name: (header.shape, header.dtype) for name, header in headers.items()} == {
        name: (dense(array).shape, dense(array).dtype) for name, array in arrays.items() if name != "W1"
    }
    assert parameters.run_metadata(file) == RUN
    assert list(pyrtz.arrays(file, lambda name: name == "W9")) == ["W9"]


@pytest.mark.parametrize("seed", range(20))
def test_ragged_arrays_come_back_to_the_bit(file, seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 12, rng.integers(1, 5)).tolist())
    some, bits = pruned(shape, rng.random() ** 3, seed), int(rng.integers(1, 17))
    arrays = {
        "W1": SharedWeights.of_dense(some, bits),
        "W2": shared(some, int(rng.integers(1, 300)), bits, seed),
        "b2": some,
    }
    pyrtz.save_compressed("--save", file, arrays, {})
    for name, array in pyrtz.read_compressed(file).items():
        require_same(array, arrays[name])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_saved_parameters_come_back_bit_by_bit(file, dtype):
    saved = initial_values(NETWORK, dtype, 0)
    saved["W1"] = np.asfortranarray(saved["W1"])
    saved["W2"][1:] = 0
    parameters.save(file, saved, RUN)
    loaded = load(file, dtype)
    assert list(loaded) == ["W1", "b1", "W2", "b2"]
    for name, array in loaded.items():
        assert (array.dtype, array.tobytes()) == (saved[name].dtype, saved[name].tobytes())
    assert parameters.run_metadata(file) == RUN


def test_compressed_parameters_are_loaded_for_a_network(file):
    arrays = {name: array.astype("float32") for name, array in initial_values(NETWORK, "float64", 0).items()}
    arrays["W1"] = shared(pruned((5, 6), 0.4), 5)
    pyrtz.save_compressed("--save", file, arrays, RUN)
    for name, array in load(file, "float64").items():
        np.testing.assert_array_equal(array, dense(arrays[name]))


def test_the_same_arrays_make_the_same_file(file):
    arrays = {"W1": CASES["shared"][0], "b1": CASES["plain"][0]}
    pyrtz.save_compressed("--save", file, arrays, RUN)
    first = file.read_bytes()
    pyrtz.save_compressed("--save", file, pyrtz.read_compressed(file), RUN)
    assert file.read_bytes() == first == b"".join(pyrtz.pack(arrays, RUN))


def test_only_floats_are_written(file):
    with pytest.raises(ValueError, match="int64"):
        parameters.save(file, {"W1": np.arange(3)}, {})
    assert not list(file.parent.iterdir())


# the layout


def test_the_bytes_of_a_small_file(file):
    """As docs/reference/pyrtz.md has them, made by hand."""
    array = SharedWeights.of_dense(np.array([[0, 2, 0, 0, 0, 0, 0, -1]], np.float32), 2)
    codes = array.shared(np.array([-1, 2], np.float32), np.array([1, 0], np.uint16))
    pyrtz.save_compressed("--save", file, {"W1": codes}, {"a": 1})
    # Entries: place 1 (gap 2, code 1), a filler at 5 (gap 4, code 2), place 7 (gap 2, code 0).
    content = struct.pack("<2f", -1, 2) + bytes([0b01_10_00_00, 0b01_11_01_00])
    text = b'{"a": 1}'
    header = struct.pack("<I", len(text)) + text + struct.pack("<H", 1)
    header += b"\x02W1" + struct.pack("<BBII", 3, 2, 1, 8) + struct.pack("<BBI", 2, 4, 2)
    header += struct.pack("<QQI", 3, len(content), zlib.crc32(content))
    start = b"\x89PYRTZ\r\n" + struct.pack("<II", 1, len(header)) + header
    assert file.read_bytes() == start + struct.pack("<I", zlib.crc32(start)) + content


@pytest.mark.long
def test_sizes_are_those_of_the_file(file):
    arrays = {name: array for name, (array, *_) in CASES.items()}
    pyrtz.save_compressed("--save", file, arrays, RUN)
    text = json.dumps(RUN).encode()
    assert file.stat().st_size == 16 + 4 + len(text) + 2 + 4 + sum(pyrtz.sizes(arrays).values())


def test_a_network_of_zeros_has_blanks_so_that_it_may_be_read(file, monkeypatch):
    monkeypatch.setattr(pyrtz, "FREE_WEIGHTS", 1000)
    parameters.save(file, {"W1": np.zeros((500, 1000), np.float32)}, RUN)
    assert (500_000 - 1000) / 1024 <= file.stat().st_size < 500_000 / 1024 + 100
    assert not pyrtz.arrays(file, lambda name: True)["W1"].any()
    assert parameters.run_metadata(file) == RUN
    monkeypatch.setattr(pyrtz, "WEIGHTS_OF_A_BYTE", 900)
    with pytest.raises(UserError, match="500000 numbers are more"):
        pyrtz.headers(file, lambda name: True)


# what is refused


def test_arrays_that_do_not_fit_the_network(file, arrays, refused):
    parameters.save(file, {name: array for name, array in arrays.items() if name != "b2"}, {})
    refused("b2", "--hidden")
    parameters.save(file, {**arrays, "W3": np.ones((3, 3)), "b3": np.ones(3)}, {})
    refused("W3", "b3", "--hidden")
    parameters.save(file, {**arrays, "W1": arrays["W1"].T.copy()}, {})
    refused("W1", "(6, 5)", "(5, 6)")
    arrays["W2"][1, 1] = np.nan
    parameters.save(file, arrays, {})
    refused("W2", "finite")


def test_a_missing_file_and_a_folder(file, refused):
    refused("cannot be read")
    file.mkdir()
    refused("is not a file")


@pytest.mark.parametrize("content", [b"", b"W1 = 0", b"\x89PYRTZ\r\n", b"\x89PYRTZ\n" + bytes(50), bytes(50)])
def test_a_file_that_is_no_pyrtz(file, refused, content):
    file.write_bytes(content)
    refused("is not a .pyrtz file")


def test_another_version(file, arrays, refused):
    parameters.save(file, arrays, {})
    whole = file.read_bytes()
    file.write_bytes(whole[:8] + b"\x02" + whole[9:])
    refused("is of version 2 of .pyrtz, this program reads 1")


@pytest.fixture
def small(file):
    """A file in which there are all kinds of sections, and its arrays."""
    arrays = {
        "W1": shared(pruned((20, 9), 0.9), 33, 16),
        "W2": shared(pruned((20, 9), 2), 33),
        "W3": SharedWeights.of_dense(pruned((5, 9), 0.3), 2),
        "b1": np.ones(2),
        "b2": np.ones(3, np.float32),
    }
    pyrtz.save_compressed("--save", file, arrays, RUN)
    assert (section.encode(arrays["W1"])[0].flags, section.encode(arrays["W2"])[0].flags) == (3, 1)
    return arrays


def read_or_refuse(file, arrays=None):
    """Read all of the file; whether it could be. Whatever it holds are arrays, or those given."""
    try:
        text, found = pyrtz.metadata_text(file), pyrtz.read_compressed(file)
    except UserError as error:
        assert str(error).startswith(f"{file}: ") and str(error).isprintable() and len(str(error)) < 400
        return False
    if arrays is not None:
        assert list(found) == list(arrays) and json.loads(text) == RUN
        for name, array in found.items():
            require_same(array, arrays[name])
    return True


def test_every_damaged_byte_and_every_cut_is_refused(file, small):
    whole = file.read_bytes()
    assert len(whole) < 1500 and read_or_refuse(file, small)
    for place in range(len(whole)):
        values = [whole[place] ^ 1 << place % 8, whole[place] ^ 0xFF]
        for value in few(values[:1], of=values):
            file.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
            assert not read_or_refuse(file), place
        if LONG or place % 3 == 0:
            file.write_bytes(whole[:place])
            assert not read_or_refuse(file), place
    file.write_bytes(whole + b"\0")
    assert not read_or_refuse(file)


@pytest.mark.long
@pytest.mark.filterwarnings("error")
def test_lies_with_right_checksums_are_refused_or_arrays(file, small):
    """Each byte of the header and of the sections is another; none makes the reader take much memory."""
    text, entries, sections = split_pyrtz(file.read_bytes())
    read = []
    with peak_below(1_000_000):
        for number, entry in enumerate(entries):
            for place, value in spread(range(len(entry)), (0, 1, 255), by=3):
                lying = entry[:place] + bytes([value]) + entry[place + 1 :]
                file.write_bytes(
                    join_pyrtz(text, [*entries[:number], lying, *entries[number + 1 :]], sections)
                )
                read.append(read_or_refuse(file))
            content = sections[number]
            for place in range(len(content)):
                lying = content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]
                others = [*sections[:number], lying, *sections[number + 1 :]]
                summed = [*entries[:number], summed_pyrtz(entry, lying), *entries[number + 1 :]]
                file.write_bytes(join_pyrtz(text, summed, others))
                read.append(read_or_refuse(file))
    assert 0.2 < np.mean(read) < 0.9


def test_a_section_that_is_too_long_or_too_short_is_refused(file, small):
    text, entries, sections = split_pyrtz(file.read_bytes())
    for number, (entry, content) in enumerate(zip(entries, sections, strict=True)):
        for lying in (content + b"\0", content[:-1], b""):
            others = [*sections[:number], lying, *sections[number + 1 :]]
            summed = [*entries[:number], summed_pyrtz(entry, lying), *entries[number + 1 :]]
            file.write_bytes(join_pyrtz(text, summed, others))
            assert not read_or_refuse(file)


def entry(name=b"W1", kind=0, shape=(), bits=0, flags=0, clusters=0, entries=0, content=b""):
    """An entry of the header, of any fields."""
    shape_of = struct.pack(f"<{len(shape)}I", *shape)
    fields = struct.pack("<BBI", bits, flags, clusters) + struct.pack("<Q", entries)
    return summed_pyrtz(
        bytes([len(name)]) + name + bytes([kind, len(shape)]) + shape_of + fields + bytes(12), content
    )


HUGE = 2**32 - 1
ONE = np.float32(1).tobytes()

LIES = {
    "shapes beyond 64 bits": (entry(shape=(HUGE,) * 32), b""),
    "shapes that numpy cannot have": (entry(shape=(0, *(HUGE,) * 31)), b""),
    "33 dimensions": (entry(shape=(1,) * 33, content=ONE), ONE),
    "more weights than the file may have": (entry(kind=2, bits=1, shape=(1 << 25,)), b""),
    "numbers that are not there": (entry(shape=(1000, 1000)), b""),
    "an unknown kind": (entry(kind=5), b""),
    "an index without bits": (entry(kind=2, shape=(8,)), b""),
    "an index of 17 bits": (entry(kind=2, shape=(8,), bits=17), b""),
    "bits without an index": (entry(shape=(1,), bits=5, content=ONE), ONE),
    "clusters without codes": (entry(kind=2, shape=(8,), bits=5, clusters=1), b""),
    "too many clusters": (entry(kind=3, shape=(8,), bits=5, clusters=65537), b""),
    "more entries than weights": (entry(kind=3, shape=(8,), bits=5, clusters=1, entries=9), b""),
    "entries beyond the file": (entry(kind=3, shape=(8,), bits=5, clusters=1, entries=2**64 - 1), b""),
    "fewer codes than weights": (entry(kind=4, shape=(8,), bits=5, clusters=1, entries=7), b""),
    "entries of a plain array": (entry(shape=(1,), entries=1, content=ONE), ONE),
    "fillers of a full array": (
        entry(kind=4, shape=(1,), bits=5, flags=4, clusters=1, entries=1, content=ONE + b"\x80"),
        ONE + b"\x80",
    ),
    "a code beyond the codebook": (
        entry(kind=4, shape=(1,), bits=5, clusters=5, entries=1, content=ONE * 5 + b"\xe0"),
        ONE * 5 + b"\xe0",
    ),
    "a filler that is none": (entry(kind=2, shape=(2,), bits=1, entries=1, content=bytes(5)), bytes(5)),
    "clusters beyond 16 bits": (
        entry(kind=3, shape=(8,), bits=5, clusters=65537, content=ONE * 65537),
        ONE * 65537,
    ),
    "unknown flags": (entry(kind=2, shape=(8,), bits=5, flags=8), b""),
    "a name that is not ASCII": (entry(name=b"\xff"), b"" + ONE),
}


@pytest.mark.parametrize("name", LIES)
def test_headers_that_lie(file, name):
    lie, content = LIES[name]
    file.write_bytes(join_pyrtz(b"{}", [lie], [content]))
    with peak_below(200_000 + 10 * len(content)):
        assert not read_or_refuse(file)


def test_a_header_longer_than_the_file_is_not_read(file):
    for length in (1000, 2**31, 2**32 - 1):
        file.write_bytes(b"\x89PYRTZ\r\n" + struct.pack("<II", 1, length) + bytes(500))
        with peak_below(200_000):
            assert not read_or_refuse(file)


def test_headers_of_other_counts(file):
    good = entry(shape=(), content=ONE)
    file.write_bytes(join_pyrtz(b"{}", [good], [ONE]))
    assert read_or_refuse(file)
    for entries, count in (([good, good], None), ([good], 0), ([good], 2), ([good], 65535)):
        file.write_bytes(join_pyrtz(b"{}", entries, [ONE] * len(entries), count))
        assert not read_or_refuse(file)


@pytest.mark.parametrize("text", [b"", b"[1]", b"{", b"[" * 100_000, b"nothing \0", b'{"a": NaN}'])
def test_metadata_of_any_text(file, text):
    file.write_bytes(join_pyrtz(text, [], []))
    assert isinstance(parameters.run_metadata(file), dict)


def test_metadata_that_are_no_text_or_too_long(file):
    file.write_bytes(join_pyrtz(b"\xff", [], []))
    assert not read_or_refuse(file)
    file.write_bytes(join_pyrtz(b'{"a": 1}' + b" " * (1 << 22), [], []))
    assert parameters.run_metadata(file) == {}


def test_a_failing_save_leaves_the_old_file(file, arrays, monkeypatch):
    parameters.save(file, arrays, {})
    save = partial(pyrtz.save_compressed, "--out", file, arrays, {})
    require_failing_save_leaves_the_old_file(file, pyrtz, save, "--out", monkeypatch)


def test_without_the_package_one_line_says_what_to_install(file, arrays, refused, monkeypatch):
    parameters.save(file, arrays, {})
    monkeypatch.setitem(sys.modules, "bitarray", None)
    refused("needs the Python package bitarray", "python -m pip install bitarray")
    for save in (
        lambda: parameters.save(file, arrays, {}),
        lambda: pyrtz.save_compressed("--save", file, arrays, {}),
    ):
        with pytest.raises(UserError, match=r"^--save .*parameters\.pyrtz: needs the Python package"):
            save()
