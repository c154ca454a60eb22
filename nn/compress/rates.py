"""Weighs what compression saves, layer by layer: the tables of the paper (Han et al. 2016, tables 2 to 5).

Twice: by the paper's accounting, and by the bytes of the file. P is pruning, Q shared weights, H Huffman
codes. A layer's row has its weights alone; the bytes of its file have its biases too.

The paper compares with 32 bits a weight. It counts the bits of each code and of each index, and 32 bits of
each cluster: its section 3 has r = n b / (n log2(k) + k b). Fillers are among the entries: fc6 of VGG-16
keeps 4 % of its weights in 5 + 5 bits, which is 1.25 % without fillers and 1.7 % with those of places at
random; 1.6 % is printed. LeNet-300-100 keeps 8 % in 6 + 5 bits, 2.75 % without them; 3.1 % is printed. The
paper says nothing of the tables of Huffman codes. They are not counted here, but in the bytes of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nn.compress import rans
from nn.files import pyrtz
from nn.files.coding import huffman
from nn.files.coding.bits import width
from nn.files.coding.section import Entries
from nn.files.coding.shared_weights import SharedWeights

WORD = 32
"""Bits of a weight before, of one that is not shared, and of a cluster's."""


@dataclass(frozen=True)
class Stream:
    """The bits that the entries of a layer take, for their weights or for their indices."""

    plain: int = 0
    """All of the same length."""
    huffman: int = 0
    """As words of Huffman's code, without its table."""
    ans: int = 0
    """By an asymmetric numeral system in Huffman's place, without its table."""
    entropy: float = 0.0
    """The least that a coder of one symbol after the other can reach."""

    def __add__(self, other: Stream) -> Stream:
        return Stream(
            self.plain + other.plain,
            self.huffman + other.huffman,
            self.ans + other.ans,
            self.entropy + other.entropy,
        )

    @classmethod
    def of(cls, symbols: np.ndarray, bits: int) -> Stream:
        """Weigh symbols (n,) of an integer dtype, each below 2**bits."""
        if not len(symbols):
            return cls()
        counts = np.bincount(symbols)
        words = counts @ huffman.code_lengths(counts).astype(np.int64)
        some = counts[counts > 0]
        entropy = some @ np.log2(len(symbols) / some)
        return cls(len(symbols) * bits, int(words), 8 * len(rans.encode(symbols)), float(entropy))


@dataclass(frozen=True)
class Rate:
    """A layer, or all of them."""

    name: str
    weights: int
    kept: int
    entries: int
    """Weights that are kept, and fillers."""
    weight: Stream
    index: Stream
    clusters: int
    dense_bytes: int
    """Bytes before: float32 of all weights and biases."""
    file_bytes: int
    """Bytes in a file without Huffman codes; of all layers, the file's."""
    file_bytes_huffman: int

    @property
    def kept_percent(self) -> float:
        return _percent(self.kept, self.weights)

    @property
    def percent(self) -> float:
        """The paper's compression rate with P and Q."""
        return self._percent(self.weight.plain + self.index.plain)

    @property
    def percent_huffman(self) -> float:
        """The paper's compression rate with P, Q and H."""
        return self._percent(self.weight.huffman + self.index.huffman)

    @property
    def percent_ans(self) -> float:
        """The same with an asymmetric numeral system in Huffman's place."""
        return self._percent(self.weight.ans + self.index.ans)

    @property
    def percent_entropy(self) -> float:
        """The same with an ideal coder in Huffman's place."""
        return self._percent(self.weight.entropy + self.index.entropy)

    @property
    def file_percent(self) -> float:
        return _percent(self.file_bytes, self.dense_bytes)

    @property
    def file_percent_huffman(self) -> float:
        return _percent(self.file_bytes_huffman, self.dense_bytes)

    def bits(self, of_all: float) -> float:
        """Return the bits of an entry, of so many for all of them."""
        return of_all / max(1, self.entries)

    def _percent(self, bits: float) -> float:
        return _percent(bits + WORD * self.clusters, WORD * self.weights)


def _percent(part: float, whole: float) -> float:
    return 100 * part / max(1, whole)


@dataclass(frozen=True)
class Rates:
    """The table: a row for each layer, and their total."""

    layers: Sequence[Rate]
    total: Rate


def rates(arrays: pyrtz.Compressed, run: Mapping[str, Any]) -> Rates:
    """Weigh compressed parameters W1, b1, ..., as a file of them with the metadata ``run`` has them.

    The package bitarray must be installed.
    """
    plain, coded = pyrtz.sizes(arrays, with_huffman=False), pyrtz.sizes(arrays)
    layers = []
    for name in (name for name in arrays if name.startswith("W")):
        parts = [part for part in (name, f"b{name[1:]}") if part in arrays]
        layers.append(
            _rate(
                name,
                arrays[name],
                4 * sum(int(arrays[part].size) for part in parts),
                sum(plain[part] for part in parts),
                sum(coded[part] for part in parts),
            )
        )
    whole = [sum(map(len, pyrtz.pack(arrays, run, with_huffman))) for with_huffman in (False, True)]
    return Rates(layers, _total(layers, *whole))


def _rate(
    name: str, array: SharedWeights | np.ndarray, dense_bytes: int, file_bytes: int, file_bytes_huffman: int
) -> Rate:
    """Weigh a layer's weights; the bytes are known."""
    if isinstance(array, SharedWeights):
        entries = Entries.of(array)
        kept, count, fillers = len(array.places), len(entries.is_filler), entries.fillers
        index = Stream() if entries.gaps is None else Stream.of(entries.gaps, array.index_bits)
        clusters = 0 if array.codebook is None else len(array.codebook)
        weight = _words(count)
        if entries.codes is not None:
            weight = Stream.of(entries.codes, width(clusters + bool(fillers)))
    else:
        kept = count = array.size
        weight, index, clusters = _words(count), Stream(), 0
    bytes_of = (dense_bytes, file_bytes, file_bytes_huffman)
    return Rate(name, array.size, kept, count, weight, index, clusters, *bytes_of)


def _words(count: int) -> Stream:
    """Weigh weights that are not shared: no code is given to them."""
    return Stream(*[WORD * count] * 4)


def _total(layers: Sequence[Rate], file_bytes: int, file_bytes_huffman: int) -> Rate:
    return Rate(
        "total",
        sum(layer.weights for layer in layers),
        sum(layer.kept for layer in layers),
        sum(layer.entries for layer in layers),
        sum((layer.weight for layer in layers), Stream()),
        sum((layer.index for layer in layers), Stream()),
        sum(layer.clusters for layer in layers),
        sum(layer.dense_bytes for layer in layers),
        file_bytes,
        file_bytes_huffman,
    )


def table(found: Rates, width: int | None = None) -> str:
    """Tabulate the rates, in at most ``width`` characters a line.

    Bits are those of an entry, with Q, with H, and of an ideal coder; rates are percent of float32, by the
    paper's accounting and by the bytes of the file, with Q and with H.
    """
    from pyrt.tables import table

    headers = ["layer", "weights", "kept %", "weight bits", "H bits", "entropy"]
    headers += ["index bits", "H bits ", "entropy ", "rate %", "H rate %", "file %", "H file %"]
    rows = [
        [
            *(rate.name, f"{rate.weights:,}", rate.kept_percent),
            *(rate.bits(of_all) for of_all in (rate.weight.plain, rate.weight.huffman, rate.weight.entropy)),
            *(rate.bits(of_all) for of_all in (rate.index.plain, rate.index.huffman, rate.index.entropy)),
            *(rate.percent, rate.percent_huffman, rate.file_percent, rate.file_percent_huffman),
        ]
        for rate in (*found.layers, found.total)
    ]
    formats = ["", "", ".3g", *[".2f"] * 10]
    return table(headers, rows, formats, ("entropy", "entropy ", "file %", "rate %"), width)
