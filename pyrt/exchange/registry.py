"""All exchanges, by name: the FACTS of each file of this package."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

import pyrt.exchange
from pyrt.exchange.facts import Facts


@cache
def exchanges() -> dict[str, Facts]:
    """Return the facts of every exchange, the choices first, from the plain to the fast."""
    names = (module.name for module in pkgutil.iter_modules(pyrt.exchange.__path__))
    modules = (import_module(f"pyrt.exchange.{name}") for name in names)
    found = [module.FACTS for module in modules if hasattr(module, "FACTS")]
    found.sort(key=lambda facts: (facts.rung is None, facts.rung))
    return {facts.name: facts for facts in found}


def choices() -> tuple[str, ...]:
    """Return the names that a user may choose."""
    return tuple(name for name, facts in exchanges().items() if facts.rung is not None)
