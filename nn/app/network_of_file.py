"""What --evaluate is not told of the network: the file of --init says how it was trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nn.app.options import Options
from nn.files import parameters
from nn.files.read import Header
from nn.input.dataset import MOST_CLASSES
from nn.model.network import ACTIVATIONS, LARGEST, LOSSES
from nn.problem.settings import flag
from pyrt.errors import UserError, shown
from pyrt.job import Job


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_size(one) for one in value)


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LARGEST


_FITS: dict[str, Callable[[Any], bool]] = {
    "hidden": _are_sizes,
    "activation": lambda value: value in ACTIVATIONS,
    "head": lambda value: value in tuple(LOSSES),
    "classes": lambda value: _is_size(value) and value <= MOST_CLASSES,
    "pixel_scale": lambda value: type(value) in (int, float) and 1e-37 < value < 1e38,
}
"""The options that say which network parameters are of, and on which pixels; whether train.py has a value."""

NAMES = tuple(_FITS)

_LISTS = ("hidden", "activation")
"""Those that a file may tell layer by layer."""

_LONGEST = 40
"""Characters of a value in a message."""


def with_network_of_file(options: Options, job: Job) -> Options:
    """Complete the options of --evaluate by what the file of --init tells of its network. Collective."""
    if not options.evaluate or options.init is None:
        return options
    found = None
    with job.agree():
        if job.rank == 0:  # the file may be on this rank's node alone
            given = {name: getattr(options, name) for name in NAMES if name in options.given}
            found = options_of_file(options.init, given)
    told: dict[str, Any] = job.comm.bcast(found)
    if "hidden" in told:
        told["hidden"] = tuple(told["hidden"])
    return replace(options, **told)


def options_of_file(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `NAMES` that are not ``given``, as far as the file tells them.

    What is given as None is neither told nor compared. A file that cannot be read tells nothing: whatever
    reads its parameters says so. Raises UserError where the file tells another value than is given, or one
    that train.py does not have.
    """
    try:
        headers = parameters.headers(path)
    except UserError:
        return {}
    try:
        told = _told(parameters.run_metadata(path))
    except UserError as error:
        raise UserError(f"--init {error}") from None
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    for name, value in told.items():
        if name not in given and not _FITS[name](value):
            raise UserError(
                f"--init {shown(path)}: was trained with {flag(name)} {_words(value)}, which train.py does "
                "not have: score it with what wrote it"
            )
        _require_same(path, name, value, given.get(name))
    if "hidden" in told and "hidden" not in given:
        _require_layers(path, headers, told["hidden"])
    if told and "classes" not in told:
        told["classes"] = _classes(headers, told.get("hidden") or given.get("hidden"))
        _require_same(path, "classes", told["classes"], given.get("classes"))
    return {name: value for name, value in told.items() if name not in given}


def _told(run_metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the metadata say of `NAMES`; values that this project never writes count as missing."""
    options = run_metadata.get("options")
    if not isinstance(options, dict):
        return {}
    return {
        name: options[name]
        for name in NAMES
        if isinstance(options.get(name), str | int | float)
        or (name in _LISTS and isinstance(options.get(name), list))
    }


def _classes(headers: Mapping[str, Header], hidden: list[int] | None) -> int | None:
    """Return the number of classes, from the biases of the output layer; None if they do not tell it.

    The metadata of a run without --classes lack this number: it came from the data.
    """
    header = headers.get(f"b{len(hidden) + 1}") if hidden else None
    if header is None or len(header.shape) != 1 or not _FITS["classes"](header.shape[0]):
        return None
    return header.shape[0]


def _require_same(path: Path, name: str, told: Any, given: Any) -> None:
    if told is not None and given is not None and told != given:
        raise UserError(
            f"--init {shown(path)}: was trained with {flag(name)} {_words(told)}, and {flag(name)} "
            f"{_words(given)} is given: leave it out"
        )


def _require_layers(path: Path, headers: Mapping[str, Header], hidden: list[int]) -> None:
    """UserError unless the file has the biases of these layers and one more: networks are built of them."""
    shapes = {f"b{number}": (units,) for number, units in enumerate(hidden, 1)}
    found = {name: header.shape for name, header in headers.items() if name.startswith("b")}
    found.pop(f"b{len(hidden) + 1}", None)
    if found != shapes or len(headers) != 2 * len(hidden) + 2:
        raise UserError(
            f"--init {shown(path)}: says that it was trained with --hidden {_words(hidden)}, and has "
            "parameters of another network: it is damaged; get it again"
        )


def _words(value: Any) -> str:
    """Show a value as people give it, in few printable characters."""
    if isinstance(value, list):
        several = [one if isinstance(one, str | int | float) else "?" for one in value[:_LONGEST]]
        value = ",".join(map(str, several)) or "none"
    return shown(f"{value!s:.{_LONGEST}}")
