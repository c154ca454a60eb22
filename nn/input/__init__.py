"""Where the images come from: ``load`` turns what the user wrote after ``--data`` into a :class:`Dataset`.

One reader per format (idx.py, npz.py, mnist.py for the download); what they read is checked in one place,
``validate`` in dataset.py. Everything that is wrong with the user's data is a ``pyrt.errors.UserError``;
suspicious.py finds what is valid and still odd.
"""

import os
from dataclasses import replace
from pathlib import Path

from nn.input import idx, mnist, npz
from nn.input.dataset import DEFAULT, Dataset, Part, Wanted, validate
from pyrt.errors import UserError, shown

__all__ = ["Dataset", "Part", "Wanted", "load", "validate"]

EMBEDDED = Path(__file__).parents[2] / "data" / "mnist5k.npz"


def load(source: str, wanted: Wanted = DEFAULT) -> Dataset:
    """Read the data set that ``source`` names, as ``wanted``.

    ``embedded``: 5,000 digits that come with the project. ``mnist``: MNIST's 60,000 and 10,000, downloaded on
    first use. A directory: IDX files. A path ending in .npz: Keras's layout. The two words win over
    directories of that name (write ./mnist for one).

    Raises ``UserError`` when the source is none of these, cannot be read, or holds no valid data set.
    """
    if source == "embedded":
        return replace(npz.load(EMBEDDED, wanted), name="embedded digits (mnist5k)", image_shape=(28, 28))
    if source == "mnist":
        return replace(idx.load(mnist.fetch(), wanted), name="MNIST")
    if os.path.isdir(source):
        return idx.load(Path(source), wanted)
    if source.lower().endswith(".npz"):
        return npz.load(Path(source), wanted)
    raise UserError(
        f"no data '{shown(source)}': give embedded, mnist, an existing directory of IDX files, "
        "or a file ending in .npz"
    )
