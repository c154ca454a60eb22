"""The wheel: it holds all of pyrt and nothing else, and its exchanges sum where there is no checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests import standing_still
from tests.mpi import ROOT, environment, mpirun

TIMEOUT = 300.0
"""Seconds for a build, or for a job that compiles its kernels first."""

pytestmark = pytest.mark.long


def run(*command: str) -> str:
    """Run a command of Python's to its end; what it prints."""
    standing_still.allow(TIMEOUT)
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=TIMEOUT)
    standing_still.allow()
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it from a copy of what it is made of: building leaves folders behind."""
    if int(metadata.version("setuptools").split(".")[0]) < 77:
        pytest.skip("needs setuptools 77 or newer, of pyproject.toml's group test")
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyrt", "kernels"):
        shutil.copytree(ROOT / name, folder / "copy" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "copy")
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder))
    run("-m", "pip", "wheel", *options, str(folder / "copy"))
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the wheel, and what is installed for this one beside it."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder)
    python = folder / "bin" / "python"
    run("-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    (packages,) = folder.glob("lib/python*/site-packages")
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "others.pth").write_text("\n".join(others))
    return python


def test_it_holds_all_of_pyrt_and_nothing_else(wheel: Path) -> None:
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    found = {name for name in names if not name.parts[0].endswith(".dist-info")}
    of_pyrt = (path for path in (ROOT / "pyrt").rglob("*") if path.suffix in (".py", ".h", ".cpp", ".map"))
    kernels = (path.relative_to(ROOT / "kernels") for path in (ROOT / "kernels").rglob("*.cu*"))
    wanted = {path.relative_to(ROOT) for path in of_pyrt}
    assert found == wanted | {"pyrt/kernels/source" / path for path in kernels}


def test_it_asks_for_nothing_that_only_tests_or_nn_need(wheel: Path) -> None:
    text = next(
        zipfile.ZipFile(wheel).read(name).decode()
        for name in zipfile.ZipFile(wheel).namelist()
        if name.endswith("/METADATA")
    )
    asked = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", text, re.MULTILINE)
    assert sorted(asked) == ["mpi4py", "numpy", "platformdirs", "tabulate"]


@pytest.mark.kernels
def test_every_exchange_sums_outside_a_checkout(python: Path, tmp_path: Path) -> None:
    program = tmp_path / "programs" / "allreduce.py"
    program.parent.mkdir()
    shutil.copy(ROOT / "examples" / "allreduce.py", program)
    # An MPI from PyPI lies in the environment that it was installed in, where only that one's Python looks.
    libraries = f"{sys.prefix}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}"
    env = {"PYTHONPATH": "", "PYRT_CACHE_DIR": str(tmp_path / "cache"), "LD_LIBRARY_PATH": libraries}
    where = (
        "import pyrt.kernels; print(pyrt.__file__, *sorted(p.name for p in pyrt.kernels.KERNELS.iterdir()))"
    )
    said = subprocess.check_output([python, "-c", where], cwd=tmp_path, env=environment(env), text=True)
    assert Path(said.split()[0]).is_relative_to(python.parents[1])
    assert {"comm", "common.cuh"} <= set(said.split())
    done = mpirun(2, str(python), str(program), "emulated", env=env, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    names = ["root", "blocking", "host", "device", "peer", "hierarchical"]
    assert done.stdout.splitlines() == [
        f"{name}: 2 rank(s) on emulated by {name}: right, twice" for name in names
    ]
