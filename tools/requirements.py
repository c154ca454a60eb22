"""What this project needs from a Python: pyproject.toml's dependencies, for tools/env.sh.

    requirements.py [--missing] [GROUP ...]      GROUP: an extra of pyproject.toml (nn, test, gpu, ..)

Prints the requirements, one a line; with --missing only those that the running Python cannot import or
has in another version, and exits 1 if there are any.
"""

import contextlib
import importlib
import sys
import tomllib
from importlib import metadata
from pathlib import Path

MODULES = {
    **{"mpi-pytest": "pytest_mpi", "pytest-xdist": "xdist"},
    **{"mpi4py": "mpi4py.MPI", "cuda-bindings": "cuda.bindings.driver"},
}
"""What to import for a distribution, where it is not the distribution's name."""


def wanted(groups: list[str]) -> list[str]:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(line for group in groups for line in extras[group])]


def is_missing(requirement: str) -> bool:
    try:
        from packaging.requirements import Requirement  # pooch depends on it

        parsed = Requirement(requirement)
        if not parsed.specifier.contains(metadata.version(parsed.name), prereleases=True):
            return True
        importlib.import_module(MODULES.get(parsed.name, parsed.name))
    except Exception:  # whatever a broken installation raises: mpi4py without a libmpi a RuntimeError
        return True
    return False


def main(arguments: list[str]) -> int:
    requirements = wanted([word for word in arguments if word != "--missing"])
    if "--missing" not in arguments:
        print(*requirements, sep="\n")
        return 0
    with contextlib.suppress(ImportError):
        importlib.import_module("mpi4py").rc.initialize = False  # look for the library, start no MPI
    missing = [requirement for requirement in requirements if is_missing(requirement)]
    if missing:
        print(*missing, sep="\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
