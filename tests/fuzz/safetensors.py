"""Damaged .safetensors files: headers that lie, and good ones with other values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np

from tests.fuzz.damage import NAMES, SIZES, Case
from tests.fuzz.json_documents import documents
from tests.fuzz.packing import content_of, header_of, pack_safetensors, with_header


def headers(tensors: Mapping[str, np.ndarray]) -> Iterator[Case]:
    """Headers that lie, each value of a good one replaced, odd names, lengths beyond the file."""
    content, good = content_of(tensors), header_of(tensors, "{}")
    text = json.dumps(good).encode()
    for what, changed in documents(good):
        yield f"header, {what}", with_header(changed() if callable(changed) else changed, content)
    for told in (*SIZES, len(text) - 1, len(text) + 1, 10**8, 10**8 + 1, 2**63 - 1, 2**63, 2**64 - 1):
        yield f"header of {told}", with_header(text, content, told)
    (first, of_first), *_ = ((name, entry) for name, entry in good.items() if name in tensors)
    for name in NAMES:
        odd = name.format(first)
        yield f"{odd:.80} beside", with_header({**good, odd: {**of_first, "data_offsets": [0, 0]}}, content)
        renamed = {odd if key == first else key: value for key, value in good.items()}
        yield f"named {odd:.80}", with_header(renamed, content)
    for entry in ENTRIES:
        yield f"{first}: {entry}", with_header({**good, first: {**of_first, **entry}}, content)
    yield "twice", with_header(text[:-1] + b", " + json.dumps({first: of_first}).encode()[1:], content)
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [len(content), len(content)]}
    many = {f"W{number}": empty for number in range(3, 3000)}
    yield "thousands of arrays", with_header({**good, **many}, content)
    for blanks in (b" ", b"\n", b"\0", b" " * 70_000):
        yield f"{len(blanks)} of {blanks[:1]!r} behind", with_header(text + blanks, content)
        yield f"{len(blanks)} of {blanks[:1]!r} before", with_header(blanks + text, content)


ENTRIES: tuple[dict[str, object], ...] = (
    *({"dtype": name} for name in ("F16", "BF16", "I64", "U64", "C64", "BOOL", "F8_E4M3", "F4", "f64", "")),
    *({"shape": shape} for shape in ([], [60], [12, 5], [0], [0, 2**63], [2**64 - 1], [2**64], [-5, -12])),
    *({"shape": shape} for shape in ([2**32, 2**32], [1] * 100 + [5, 12], [5.0, 12.0], ["5", "12"])),
    *({"data_offsets": places} for places in ([0, 0], [480, 0], [-480, 0], [8, 488], [0, 2**63], [0])),
    *({"data_offsets": places} for places in ([2**64 - 480, 2**64 - 1], [0, 480, 480], [0.0, 480.0])),
)
"""What the header may say of an array that it should not."""


def other_tensors(tensors: Mapping[str, np.ndarray]) -> Iterator[Case]:
    """Good files with other values in an array."""
    for name, array in tensors.items():
        for value in (np.nan, np.inf, -np.inf, 1e300, -0.0):
            changed = np.where(np.arange(array.size).reshape(array.shape) == 1, value, array)
            yield f"{name} with {value}", pack_safetensors({**tensors, name: changed}, None)
        for dtype in ("f2", "f4", "i1", "u8"):
            yield f"{name} of {dtype}", pack_safetensors({**tensors, name: array.astype(dtype)}, None)
