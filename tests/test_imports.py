"""Imports go one way, from the application down to the runtime; the reference imports NumPy alone."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mpi import ROOT

ORDER = [
    *("pyrt", "nn.model", "nn.files", "nn.optimisers", "nn.parallel", "nn.input", "nn.launch", "nn.program"),
    *("nn.problem", "nn.autotune", "nn.checkpoints", "nn.train", "nn.app", "nn"),
]
"""Each package imports itself and those before it. ``nn`` is nn/__init__.py, which names all."""

PROGRAMS = ("nn/autotune/__main__.py",)
"""Programs of their own: they read a command line, and so may use nn/app."""


def imports_of(path: Path) -> Iterator[str]:
    """Name the modules that a file imports when it runs, not those that only types are taken from."""
    tree = ast.parse(path.read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(module: str) -> str:
    """The package of the order that a module belongs to; empty for one that is not ours."""
    found = [name for name in ORDER if module == name or module.startswith(f"{name}.")]
    return max(found, key=len, default="")


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", files("nn", "pyrt"), ids=name_of)
def test_imports_go_down(path: Path) -> None:
    if name_of(path) in PROGRAMS:
        return
    mine = package_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
    above = {name for name in imports_of(path) if ORDER.index(package_of(name) or "pyrt") > ORDER.index(mine)}
    assert not above, f"{mine} imports what is above it"


def test_the_reference_imports_numpy_alone() -> None:
    ours = {name.split(".")[0] for name in imports_of(ROOT / "nn/model/reference.py")}
    assert ours - sys.stdlib_module_names == {"numpy"}


def test_the_order_names_every_package() -> None:
    found = {f"nn.{path.parent.name}" for path in (ROOT / "nn").glob("*/__init__.py")}
    assert found == {name for name in ORDER if name.startswith("nn.")}


def test_a_wrong_import_is_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def late():\n    from nn.app import start\n")
    assert [package_of(name) for name in imports_of(wrong)] == ["nn.app"]
