"""Files, classes and lists of arguments stay short enough to be read at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mpi import ROOT

FILE_LINES, CLASS_LINES, ARGUMENTS = 450, 200, 7

OURS = ("nn", "pyrt", "bench", "experiments", "tools", "examples", "train.py")
SUFFIXES = (".py", ".cu", ".cuh", ".cpp", ".h")

SIGNATURE = re.compile(r"\bdef \w+(.*?):(?: \.\.\.)?\n", re.DOTALL)


def files() -> Iterator[Path]:
    """Find our files, and those of kernels and tests."""
    for place in (*OURS, "kernels", "tests"):
        path = ROOT / place
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (one for one in found if one.suffix in SUFFIXES)


def too_long(name: str, text: str) -> Iterator[str]:
    """Name what is too long in a file. The arguments of tests do not count: many are fixtures."""
    lines = text.count("\n")
    if lines > FILE_LINES:
        yield f"{name}: {lines} lines"
    if not name.endswith(".py") or not may_be_too_long(text):
        return  # to parse all of them takes a second
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > CLASS_LINES:
                yield f"{name}: class {node.name} has {lines} lines"
        elif isinstance(node, ast.FunctionDef) and name.startswith(OURS):
            count = arguments_of(node)
            if count > ARGUMENTS:
                yield f"{name}: {node.name} takes {count} arguments"


def may_be_too_long(text: str) -> bool:
    """Return False where no class has so many lines below it, and no signature so many commas."""
    has_class = "class " in text and text[text.find("class ") :].count("\n") > CLASS_LINES
    return has_class or any(found.count(",") >= ARGUMENTS for found in SIGNATURE.findall(text))


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk through a tree but for its expressions."""
    for child in ast.iter_child_nodes(tree):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


def arguments_of(node: ast.FunctionDef) -> int:
    """Count the arguments of a function, but for self and cls."""
    found = node.args
    names = [one.arg for one in (*found.posonlyargs, *found.args, *found.kwonlyargs)]
    starred = [one for one in (found.vararg, found.kwarg) if one is not None]
    return len(names) + len(starred) - (names[:1] in (["self"], ["cls"]))


def test_nothing_is_too_long() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in files()}
    assert {"nn/train/training.py", "train.py", "kernels/nn/head.cu", "tests/test_sizes.py"} <= texts.keys()
    assert not [found for name, text in texts.items() for found in too_long(name, text)]


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ("a, b, c, d, e, f, g", 7),
        ("a, b, c, d, e, f, g, h", 8),
        ("self, a, b, c, d, e, f, g", 7),
        ("cls, a, b=(1, 2), /, c: int = 3, *, d, e, f, g, h", 8),
        ("\n        a: int,\n        *b: int,\n        c, d, e, f, g, **h: int,\n    ", 8),
    ],
)
def test_arguments_are_counted(arguments: str, count: int) -> None:
    for body in (" ...\n", "\n        pass\n"):
        text = f"class A:\n    def f({arguments}) -> int:{body}"
        found = [f"nn/a.py: f takes {count} arguments"] if count > ARGUMENTS else []
        assert list(too_long("nn/a.py", text)) == found
        assert not list(too_long("tests/a.py", text))


def test_lines_are_counted() -> None:
    longest = "import a\n\n\nclass A:\n" + "    a = 1\n" * (CLASS_LINES - 1)
    assert not list(too_long("tests/a.py", longest + "\n\nb = 1\n"))
    assert list(too_long("tests/a.py", longest + "    a = 1\n")) == ["tests/a.py: class A has 201 lines"]
    assert list(too_long("kernels/a.cu", "\n" * 451)) == ["kernels/a.cu: 451 lines"]
    assert not list(too_long("kernels/a.cu", "\n" * 450))
