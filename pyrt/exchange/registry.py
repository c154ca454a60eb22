"""All exchanges, by name: the FACTS of each file of this package; and how one is made."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

import pyrt.exchange
from pyrt.errors import UserError
from pyrt.exchange import Exchange, ExchangeContext
from pyrt.exchange.facts import Facts
from pyrt.kernels import REALS


@cache
def exchanges() -> dict[str, Facts]:
    """Return the facts of every exchange, the choices first, from the plain to the fast."""
    names = (module.name for module in pkgutil.iter_modules(pyrt.exchange.__path__))
    modules = (import_module(f"pyrt.exchange.{name}") for name in names)
    found = [module.FACTS for module in modules if hasattr(module, "FACTS")]
    found.sort(key=lambda facts: (facts.rung is None, facts.rung))
    return {facts.name: facts for facts in found}


def choices() -> tuple[str, ...]:
    """Return the names that a user may choose of those that sum over ranks."""
    return tuple(name for name, facts in exchanges().items() if facts.rung is not None)


def asynchronous() -> tuple[str, ...]:
    """Return the names of those that wait for nobody, which a user may choose too."""
    return tuple(name for name, facts in exchanges().items() if facts.asynchronous)


def create_exchange(name: str, setting: ExchangeContext) -> Exchange:
    """Make the exchange of that name; ``local`` whatever the name where there is one rank.

    Collective. Raises UserError, on all ranks, where it cannot work here.
    """
    if setting.gradients.dtype not in REALS:
        raise UserError(
            f"--exchange {name}: sums {' and '.join(map(str, REALS))}, not {setting.gradients.dtype}"
        )
    return exchanges()[name if setting.job.size > 1 else "local"].make(setting)
