"""Imports go one way, from the application down to the runtime; the reference imports NumPy alone."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.mpi import ROOT

ORDER = [
    *("pyrt", "nn.model", "nn.files", "nn.optimisers", "nn.parallel", "nn.input", "nn.launch", "nn.program"),
    *("nn.problem", "nn.autotune", "nn.checkpoints", "nn.train", "nn.app", "nn.compress", "nn"),
]
"""Each package imports itself and those before it. ``nn`` is nn/__init__.py, which names all."""

PROGRAMS = ("nn/autotune/__main__.py",)
"""Programs of their own: they read a command line, and so may use nn/app."""


def imports_of(path: Path, types: bool = False) -> Iterator[str]:
    """Name the modules that a file imports when it runs; with ``types`` also those for types alone."""
    nodes: list[ast.AST] = [ast.parse(path.read_text())]
    for node in nodes:  # it grows: imports are statements, so nothing within an expression is looked at
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not types:
            continue
        nodes += (child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def within(name: str, modules: Iterable[str]) -> str:
    """Which of the modules a name is imported from; empty for none of them."""
    return max((one for one in modules if f"{name}.".startswith(f"{one}.")), key=len, default="")


def package_of(module: str) -> str:
    """The package of the order that a module belongs to; empty for one that is not ours."""
    return within(module, ORDER)


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("folder", ["nn", "pyrt"])
def test_imports_go_down(folder: str) -> None:
    for path in files(folder):
        if name_of(path) in PROGRAMS:
            continue
        mine = package_of(module_of(path))
        names = imports_of(path)
        above = {name for name in names if ORDER.index(package_of(name) or "pyrt") > ORDER.index(mine)}
        assert not above, f"{name_of(path)}: {mine} imports what is above it"


@pytest.mark.parametrize("package", ["pyrt.driver", "pyrt.exchange", "pyrt.redistribute"])
def test_no_file_of_a_package_imports_itself_by_way_of_others(package: str) -> None:
    """Not even within functions, or for types alone."""
    modules = {module_of(path): path for path in files(package.replace(".", "/"))}
    graph = {
        module: {within(name, modules) for name in imports_of(path, types=True)} - {module, ""}
        for module, path in modules.items()
    }
    TopologicalSorter(graph).prepare()  # CycleError names the files


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
