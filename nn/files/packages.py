"""Packages that are not installed everywhere: some formats of files need them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pyrt.errors import UserError


def need(package: str, what: str, distribution: str = "") -> Any:
    """Import the package that ``what`` needs; UserError, which says what to install, without it.

    ``distribution``: what is installed, where it is not called as what is imported.
    """
    distribution = distribution or package
    try:
        return import_module(package)
    except ImportError:
        raise UserError(
            f"{what}: needs the Python package {distribution}, which is not installed: "
            f"python -m pip install {distribution}"
        ) from None
