"""Damaged JSON documents: no JSON, other encodings, each value replaced, left out, or with more beside it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from tests import LONG
from tests.fuzz.damage import JUNK, Case, Making


def documents(content: Any) -> Iterator[Case | Making]:
    """Texts in the place of a document: no JSON, other encodings, each value of it replaced by
    `VALUES` (of a large document by some of them each, unless `LONG`), left out, added."""
    good, places = json.dumps(content), list(paths(content))
    step = 1 if LONG else 1 + len(places) // 12
    for what, text in {**JUNK, **TEXTS}.items():
        yield what, text
    for depth in (100, 900, 980, 995, 1000, 5000, 100_000):
        yield f"{depth} lists", b"[" * depth + b"]" * depth
        yield f"{depth} objects", b'{"a":' * depth + b"1" + b"}" * depth
        yield f"{depth} lists, open", b"[" * depth
    for encoding in ("utf-8-sig", "utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be", "utf-7"):
        yield encoding, good.encode(encoding)
    for what, tail in TAILS.items():
        yield f"{what} behind", good.encode() + tail
        yield f"{what} before", tail + good.encode()
    for number, path in enumerate(places):
        for value in VALUES[number % step :: step]:
            yield f"{path} set to {value:.40}", partial(_encoded, replaced, content, path, value)
        for what, change in (("left out", without), ("more beside", with_more)):
            yield f"{path}: {what}", partial(_encoded, change, content, path)
    for value in VALUES:
        yield f"{value:.40}", value.encode()


def _encoded(change: Callable[..., Any], *arguments: Any) -> bytes:
    new = change(*arguments)
    return (new if isinstance(new, str) else json.dumps(new)).encode()


TEXTS = {
    "no quotes": b"{grid: [1, 2]}",
    "other quotes": b"{'grid': [1, 2]}",
    "a comma too many": b"[1, 2,]",
    "half a surrogate": b'"\\ud800"',
    "not UTF-8": b'"\xff\xfe\xfa"',
    "UTF-8 too long": b'"\xc0\x80"',
    "a control character": b'"\x01"',
    "half an escape": b'"\\u12',
    "an object of nothing": b'{"": 1}',
    "two million blanks": b" " * 2_000_000,
    "many numbers": b"[" + b"1," * 60_000 + b"1]",
    "many objects": b"[" + b'{"":1},' * 60_000 + b"1]",
}

TAILS = {
    "a line": b"\n",
    "blanks": b" " * 70_000,
    "many blanks": b" " * 1_100_000,
    "NUL": b"\0",
    "a brace": b"}",
    "another": b'{"grid": [1, 1], "layers": []}',
    "a BOM": b"\xef\xbb\xbf",
    "bytes": b"\xff\xfe",
}

VALUES = (
    *(
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1",
        "-1",
        "3",
        "0.5",
        "-0.0",
        "1e-320",
        "1e300",
        "1e999",
        "-1e999",
        "NaN",
    ),
    *(
        "Infinity",
        "-Infinity",
        "2147483647",
        "2147483648",
        "4294967296",
        "9223372036854775808",
        "1" + "0" * 400,
    ),
    *(
        "1" * 4299,
        "1" * 5000,
        '""',
        '"x"',
        '"rows"',
        '"auto"',
        '"\\n"',
        '"\\u0000"',
        '"\\ud800"',
        '"\\u001b[31m"',
    ),
    *(
        json.dumps("x" * 5000),
        "[]",
        "{}",
        "[[]]",
        "[0]",
        "[1, 2]",
        '["rows"]',
        '{"a": 1}',
        '{"__class__": 1}',
    ),
    *(
        "[" * 900 + "]" * 900,
        "[" * 980 + "]" * 980,
        "[" * 70 + "1" + "]" * 70,
        "[1, [2]]",
        "[" + "1," * 2000 + "1]",
    ),
)
"""Texts of values in the place of others."""

Place = tuple[str | int, ...]


def paths(content: Any) -> Iterator[Place]:
    """Of all values in a document, of lists the first."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(content, dict):
        items = content.items()
    elif isinstance(content, list):
        items = list(enumerate(content))[:1]
    for key, value in items:
        yield (key,)
        for rest in paths(value):
            yield (key, *rest)


def replaced(content: Any, path: Place, text: str) -> str:
    """The document with a text of JSON, or no JSON, in the place of a value."""
    mark = "-- here --"
    return json.dumps(changed(content, path, mark)).replace(json.dumps(mark), text)


def changed(content: Any, path: Place, value: Any) -> Any:
    result = copy.deepcopy(content)
    within(result, path[:-1])[path[-1]] = value
    return result


def without(content: Any, path: Place) -> Any:
    result = copy.deepcopy(content)
    del within(result, path[:-1])[path[-1]]
    return result


def with_more(content: Any, path: Place) -> Any:
    result = copy.deepcopy(content)
    place = within(result, path[:-1])
    if isinstance(place, dict):
        place[f"{path[-1]}\n"] = 1
    else:
        place.append(place[0])
    return result


def within(content: Any, path: Place) -> Any:
    for key in path:
        content = content[key]
    return content
