"""A table of comma-separated values: a line for each image, its label and its pixels; .csv or .csv.gz.

The label is the first column, or the one that the header calls ``label``. Without a header the first line is
an image. Images are rows of pixels: a table does not say their height and width.
"""

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np

from nn.files.read import file_size, reading
from nn.input.dataset import DEFAULT, Dataset, Part, Wanted, validate
from pyrt.errors import UserError, shown

LABEL = "label"
CHUNK = 1 << 20  # characters that are turned into numbers at a time
LONGEST = 1 << 24  # characters of a line
SHOWN = 40  # characters of what is no number, in a message


def load(path: Path, wanted: Wanted = DEFAULT) -> Dataset:
    """Read the table at ``path``: a training set without a test set.

    Raises ``UserError`` where it cannot be read, or a line is not like the others, with the line's number.
    """
    file_size(path)
    unpack = gzip.open if path.suffix.lower() == ".gz" else open
    with reading(path), unpack(path, "rb") as file:
        text = io.TextIOWrapper(cast(IO[bytes], file), "utf-8-sig", "replace")
        lines = numbered_lines(path, text)
        columns, label, first = header(path, lines)
        tables = list(table_of(path, lines, first, columns, label))
    if not tables:
        raise UserError(f"{shown(path)}: no line of numbers: give a label and pixels in each line")
    labels, images = (np.concatenate(parts) for parts in zip(*tables, strict=True))
    return validate(
        shown(path), Part(shown(path), images), Part(f"{shown(path)}, labels", labels), None, None, wanted
    )


def numbered_lines(path: Path, text: IO[str]) -> Iterator[tuple[int, str]]:
    """Give the lines that are not empty, with their numbers from 1."""
    number = 0
    while line := text.readline(LONGEST):
        number += 1
        if len(line) == LONGEST:
            raise UserError(
                f"{shown(path)}: line {number} has more than {LONGEST - 1} characters: is it a table?"
            )
        if line.strip():
            yield number, line


def header(path: Path, lines: Iterator[tuple[int, str]]) -> tuple[int, int, list[tuple[int, str]]]:
    """Read the first line: return the number of columns, the label's, and the line if it has numbers."""
    for number, line in lines:
        cells = cells_of(line)
        if len(cells) < 2:
            raise UserError(
                f"{shown(path)}: line {number} has one column: give a label and pixels, with commas"
            )
        if all(map(is_number, cells)):
            return len(cells), 0, [(number, line)]
        return len(cells), cells.index(LABEL) if LABEL in cells else 0, []
    return 0, 0, []


def cells_of(line: str) -> list[str]:
    """Split a line at its commas; names in quotation marks have none."""
    return [cell.strip().strip('"') for cell in line.split(",")]


def is_number(cell: str) -> bool:
    """Return whether a cell is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def table_of(
    path: Path, lines: Iterator[tuple[int, str]], first: list[tuple[int, str]], columns: int, label: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Give labels (n,) and images (n, columns - 1) of some lines at a time, ``first`` among them."""
    some, size = first, 0
    for one in lines:
        some.append(one)
        size += len(one[1])
        if size >= CHUNK:
            yield split(path, some, columns, label)
            some, size = [], 0
    if some:
        yield split(path, some, columns, label)


def split(
    path: Path, lines: list[tuple[int, str]], columns: int, label: int
) -> tuple[np.ndarray, np.ndarray]:
    """Turn lines into labels int64 and images, uint8 where all their pixels are whole numbers of a byte."""
    try:
        table = np.loadtxt([line for _, line in lines], delimiter=",", comments=None, quotechar='"', ndmin=2)
    except ValueError:
        table = np.empty((0, 0))
    if table.shape != (len(lines), columns):
        raise UserError(f"{shown(path)}: {wrong(lines, columns)}")
    images, labels = np.delete(table, label, axis=1), table[:, label]
    with np.errstate(invalid="ignore"):
        small, whole = images.astype(np.uint8), labels.astype(np.int64)
    if (whole != labels).any():
        number = lines[int((whole != labels).argmax())][0]
        raise UserError(
            f"{shown(path)}: line {number}: the label is no whole number: put labels first, or call "
            f"their column {LABEL}"
        )
    return whole, small if (small == images).all() else images


def wrong(lines: list[tuple[int, str]], columns: int) -> str:
    """Say which line is wrong, and what is wrong with it."""
    for number, line in lines:
        cells = cells_of(line)
        if len(cells) != columns:
            return f"line {number} has {len(cells)} columns, and the first line {columns}: mend or remove it"
        for cell in cells:
            if not is_number(cell):
                return f"line {number}: {shown(cell[:SHOWN])!r} is no number: mend or remove the line"
    return f"lines {lines[0][0]} to {lines[-1][0]} are no table of numbers: mend or remove them"
