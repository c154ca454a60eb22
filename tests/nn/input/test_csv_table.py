"""nn/input/csv_table.py: tables with and without a header, raw and packed, good and bad."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from nn.input import Wanted, csv_table, load
from tests.memory import peak_below

PIXELS = np.random.default_rng(0).integers(0, 256, (7, 6))
LABELS = np.arange(7) % 3


def rows(label: int = 0, pixels: np.ndarray = PIXELS, labels: np.ndarray = LABELS) -> str:
    """The table with labels in this column."""
    table = np.insert(pixels.astype(object), label, labels, axis=1)
    return "".join(",".join(map(str, row)) + "\n" for row in table)


def names(label: int = 0, word: str = "label") -> str:
    found = [f"pixel{number}" for number in range(6)]
    return ",".join([*found[:label], word, *found[label:]]) + "\n"


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


@pytest.mark.parametrize("chunk", [1 << 20, 10])
@pytest.mark.parametrize(
    "text",
    [
        rows(),
        names() + rows(),
        names(3) + rows(3),
        names(6) + rows(6),
        names(0, "class") + rows(),
        names(2, '"label"') + rows(2),
        names(2, " label ") + rows(2),
        "\ufeff" + rows(),
        (names(2) + rows(2)).replace("\n", "\r\n"),
        "\n\n" + (names() + rows()).replace("\n", "\n\n").rstrip("\n"),
        rows().replace(",", " , "),
        rows(pixels=PIXELS * 1.0),
        rows(pixels=PIXELS, labels=LABELS * 1.0),
    ],
)
def test_good_tables(tmp_path, text, chunk, monkeypatch):
    monkeypatch.setattr(csv_table, "CHUNK", chunk)
    for source in (
        write(tmp_path / "table.csv", text),
        write(tmp_path / "TABLE.CSV.GZ", gzip.compress(text.encode())),
    ):
        found = load(source)
        assert (found.name, found.image_shape, found.classes) == (source, (6,), 3)
        assert found.images.dtype == np.uint8 and found.test_images is None
        np.testing.assert_array_equal(found.images, PIXELS)
        np.testing.assert_array_equal(found.labels, LABELS)


@pytest.mark.parametrize("chunk", [1 << 20, 10])
def test_numbers_that_are_no_bytes_keep_their_values(tmp_path, chunk, monkeypatch):
    monkeypatch.setattr(csv_table, "CHUNK", chunk)
    for changed in (PIXELS / 255, PIXELS - 1000, np.where(PIXELS[5, 2] == PIXELS, 1e-3, PIXELS)):
        source = write(tmp_path / "table.csv", rows(pixels=changed))
        np.testing.assert_array_equal(load(source).images, changed.astype(np.float32))
        np.testing.assert_array_equal(load(source, Wanted("float64")).images, changed)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no line of numbers"]),
        ("\n \n", ["no line of numbers"]),
        (names(), ["no line of numbers"]),
        ("label\n1\n", ["line 1 has one column"]),
        ("\n5\n", ["line 2 has one column"]),
        (rows() + "1,2,3\n", ["line 8 has 3 columns", "the first line 7"]),
        (names() + rows() + "1,2,3\n", ["line 9 has 3 columns", "the first line 7"]),
        (rows() + "1,2,3,4,x,6,7\n", ["line 8: 'x' is no number"]),
        (rows() + "1,2,3,4,,6,7\n", ["line 8: '' is no number"]),
        (rows() + f"1,2,3,4,{'y' * 99},6,7\n", ["line 8", f"{'y' * 40!r} is no number"]),
        (rows() + "1,2,3,4,5_0,6,7\n", ["lines 1 to 8 are no table of numbers"]),
        (rows() + "1.5,2,3,4,5,6,7\n", ["line 8: the label is no whole number"]),
        (rows() + "nan,2,3,4,5,6,7\n", ["line 8: the label is no whole number"]),
        (rows() + "-1,2,3,4,5,6,7\n", ["label -1 is negative"]),
        (rows() + "1,2,3,4,inf,6,7\n", ["image 7", "not finite"]),
        (b"1,2,\xff\xfe\n" * 2, ["line 2", "no number"]),
        (b"1,2\n1,\xff\n", ["line 2", "no number"]),
        (b"1,2\n1,\0\n", ["line 2", "no number"]),
    ],
)
def test_what_is_no_table(tmp_path, refused, text, words):
    source = write(tmp_path / "table.csv", text)
    with refused(source, *words):
        load(source)


def test_a_packed_table_that_is_damaged(tmp_path, refused):
    packed = gzip.compress(rows().encode())
    for data in (packed[:-9], rows().encode(), packed[:-8] + b"abcd" + packed[-4:]):
        with refused(tmp_path / "table.csv.gz", "damaged or cut short"):
            load(write(tmp_path / "table.csv.gz", data))


def test_a_line_without_end_is_not_held(tmp_path, refused, monkeypatch):
    monkeypatch.setattr(csv_table, "LONGEST", 1 << 16)
    source = write(tmp_path / "table.csv.gz", gzip.compress(b"1" * (1 << 26)))
    with peak_below(4_000_000), refused(source, "line 1 has more than 65535 characters"):
        load(source)


def test_a_table_that_is_not_there(tmp_path, refused):
    with refused(tmp_path / "gone.csv", "No such file"):
        load(str(tmp_path / "gone.csv"))
    with refused("--channels first", "leave it out"):
        load(write(tmp_path / "table.csv", rows()), Wanted(channels="first"))
