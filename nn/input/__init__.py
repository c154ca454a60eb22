"""Where the images come from: ``load`` turns what the user wrote after ``--data`` into a :class:`Dataset`.

One reader per format (idx.py, npz.py, cifar.py, class_folders.py, csv_table.py; named_sets.py for downloads);
what they read is checked in one place, ``validate`` in dataset.py. Everything that is wrong with the user's
data is a ``pyrt.errors.UserError``; suspicious.py finds what is valid and still odd.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nn.input import cifar, class_folders, csv_table, idx, named_sets, npz, synthetic
from nn.input.dataset import DEFAULT, LAST, Dataset, Part, Wanted, validate
from nn.input.named_sets import SETS
from pyrt.errors import UserError, shown

__all__ = ["Dataset", "Part", "Wanted", "load", "validate"]

EMBEDDED = Path(__file__).parents[2] / "data" / "mnist5k.npz"

Reader = Callable[[Path, Wanted], Dataset]
_ENDINGS: dict[str, Reader] = {
    ".npz": npz.load,
    ".csv": csv_table.load,
    ".csv.gz": csv_table.load,
    ".tar.gz": cifar.load_archive,
}
"""What reads a file, by the end of its name."""

_ANY_ORDER = (npz.load, idx.load)
"""What reads files that do not say where their channels are."""


def load(source: str, wanted: Wanted = DEFAULT) -> Dataset:
    """Read the data set that ``source`` names, as ``wanted``.

    ``embedded``: 5,000 digits that come with the project. A name of `SETS`: downloaded on first use.
    ``synthetic:HxWxC:CLASSES:N``: made up. A directory: IDX files, CIFAR's, or a folder of images for each
    class. A path ending in .npz: Keras's layout; in .csv or .csv.gz: a table; in .tar.gz: CIFAR's. The words
    win over directories of that name (write ./mnist for one).

    Raises ``UserError`` when the source is none of these, cannot be read, or holds no valid data set.
    """
    if source == "embedded":
        return replace(npz.load(EMBEDDED, wanted), name="embedded digits (mnist5k)", image_shape=(28, 28))
    read = _reader(source)
    if wanted.channels != LAST and read not in _ANY_ORDER:
        raise UserError(
            f"--channels {wanted.channels}: goes with .npz and IDX files, and {shown(source)} has an order "
            "of its own: leave it out"
        )
    return read(Path(source), wanted)


def described(source: str, wanted: Wanted = DEFAULT) -> tuple[tuple[int, ...], int]:
    """Return the shape of an image, and the number of classes; without downloads, or making up images.

    Raises ``UserError`` as `load` does.
    """
    if source in SETS:
        shape, classes = SETS[source].image_shape, SETS[source].classes
    elif source.startswith(synthetic.PREFIX):
        shape, classes, _ = synthetic.described(source)
    else:
        dataset = load(source, wanted)
        shape, classes = dataset.image_shape, dataset.classes
    return shape, wanted.classes or classes


def _reader(source: str) -> Reader:
    if source in SETS:
        return lambda _, wanted: named_sets.load(SETS[source], wanted)
    if source.startswith(synthetic.PREFIX):
        return lambda _, wanted: synthetic.load(source, wanted)
    return _of_folder(Path(source)) if os.path.isdir(source) else _of_file(source)


def _of_folder(folder: Path) -> Reader:
    """Return what reads the files in a folder."""
    if idx.find_sets(folder):
        return idx.load
    if cifar.is_here(folder):
        return cifar.load
    return class_folders.load if class_folders.is_here(folder) else idx.load


def _of_file(source: str) -> Reader:
    """Return what reads a file. Raises ``UserError``, with all that there is, where its name does not say."""
    for ending, read in _ENDINGS.items():
        if source.lower().endswith(ending):
            return read
    raise UserError(
        f"no data '{shown(source)}': give embedded, {', '.join(SETS)}, synthetic:HxWxC:CLASSES:N, "
        "a directory of IDX files, CIFAR's binary files or class folders of images, or a file ending in "
        f"{', '.join(_ENDINGS)}"
    )
