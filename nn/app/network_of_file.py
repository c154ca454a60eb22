"""Reads the network from files: from that of --net, and with --evaluate from that of --init."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nn.app.options import Options
from nn.files import net_files, parameters
from nn.files.read import Header
from nn.input.dataset import MOST_CLASSES
from nn.model.dense import Dense
from nn.model.layer import Layer
from nn.model.net_text import layers_of, layers_of_text
from nn.model.network import ACTIVATIONS, LARGEST, LOSSES, text_of
from nn.problem.option import flag
from pyrt.errors import UserError, shown
from pyrt.job import Job


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(_is_size(one) for one in value)


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LARGEST


def _is_net(value: Any) -> bool:
    """Return whether a value spells out layers, up to a dense one that makes logits."""
    try:
        last = layers_of_text(value)[-1] if isinstance(value, str) else None
    except UserError:
        return False
    return isinstance(last, Dense) and last.activation is None


_FITS: dict[str, Callable[[Any], bool]] = {
    "hidden": _are_sizes,
    "activation": lambda value: value in ACTIVATIONS,
    "net": _is_net,
    "head": lambda value: value in tuple(LOSSES),
    "classes": lambda value: _is_size(value) and value <= MOST_CLASSES,
    "pixel_scale": lambda value: type(value) in (int, float) and 1e-37 < value < 1e38,
}
"""The options that say which network parameters are of, and on which pixels; whether train.py has a value."""

NAMES = tuple(_FITS)

_LISTS = ("hidden", "activation")
"""A file may tell these layer by layer. Where it has a ``net``, they mean nothing."""

_LONGEST = 100
"""Characters of a value in a message."""


def with_network_of_file(options: Options, job: Job) -> Options:
    """Complete the options by what files tell of the network: those of --net, and of --init with --evaluate.

    Afterwards --net is no file. Collective; UserError on all ranks for files that do not tell a network.
    """
    if not net_files.is_file(options.net) and not options.evaluate:
        return options
    found = None
    with job.agree():
        if job.rank == 0:  # the files may be on this rank's node alone
            found = _told_by_files(options)
    told: dict[str, Any] = job.comm.bcast(found)
    if "hidden" in told:
        told["hidden"] = tuple(told["hidden"])
    return replace(options, **told)


def _told_by_files(options: Options) -> dict[str, Any]:
    of_net = _of_net(options)
    if not options.evaluate or options.init is None:
        return of_net
    given = {name: getattr(options, name) for name in NAMES if name in options.given}
    return {**of_net, **options_of_file(options.init, {**given, **of_net})}


def _of_net(options: Options) -> dict[str, Any]:
    """Return the layers that a file of --net has, and its loss."""
    if options.net is None or not net_files.is_file(options.net):
        return {}
    text, loss = net_files.load(Path(options.net))
    if loss is None:
        return {"net": text}
    if options.head not in (Options.head, loss):
        raise UserError(
            f"--net {shown(options.net)}: has the loss {loss}, and --head {options.head} is given: leave "
            "it out"
        )
    return {"net": text, "head": loss}


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
    _require_one_kind(path, told, given)
    for name, value in told.items():
        if name not in given and not _FITS[name](value):
            raise UserError(
                f"--init {shown(path)}: was trained with {flag(name)} {_words(value)}, which train.py does "
                "not have: score it with what wrote it"
            )
        _require_same(path, name, value, given.get(name))
    _require_layers(path, headers, told, given)
    if told and "classes" not in told:
        told["classes"] = _classes(headers, _depth(told, given))
        _require_same(path, "classes", told["classes"], given.get("classes"))
    return {name: value for name, value in told.items() if name not in given}


def _told(run_metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the metadata say of `NAMES`; values that this project never writes count as missing."""
    options = run_metadata.get("options")
    if not isinstance(options, dict):
        return {}
    told = {
        name: options[name]
        for name in NAMES
        if isinstance(options.get(name), str | int | float)
        or (name in _LISTS and isinstance(options.get(name), list))
    }
    unsaid = _LISTS if "net" in told else ("activation",) if told.get("hidden") == [] else ()
    return {name: value for name, value in told.items() if name not in unsaid}


def _spelled_out(name: str, given: Any, told: Any) -> Any:
    """Return a value that is given; of --net its layers, which end with as many classes as the file's."""
    if name != "net" or not _is_net(told):
        return given
    (classes,) = layers_of_text(told)[-1].output_shape((1,))
    return text_of(layers_of(given, classes))


def _depth(told: Mapping[str, Any], given: Mapping[str, Any]) -> int | None:
    """Count the layers with parameters; None where nothing says them."""
    net, hidden = ({**given, **told}.get(name) for name in ("net", "hidden"))
    if net is not None:
        return sum(layer.has_parameters for layer in layers_of(net, 1))
    return len(hidden) + 1 if hidden is not None else None


def _classes(headers: Mapping[str, Header], depth: int | None) -> int | None:
    """Return the number of classes, from the biases of the output layer; None if they do not tell it.

    The metadata of a run without --classes lack this number: it came from the data.
    """
    header = headers.get(f"b{depth}")
    if header is None or len(header.shape) != 1 or not _FITS["classes"](header.shape[0]):
        return None
    return header.shape[0]


def _require_one_kind(path: Path, told: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """UserError where one of file and options has --net, and the other --hidden or --activation."""
    has_net = given.get("net") is not None
    for own, other in [("net", name) for name in _LISTS if not has_net] + [(name, "net") for name in _LISTS]:
        if told.get(own) is not None and given.get(other) is not None:
            _refuse(path, own, told[own], other, given[other])


def _refuse(path: Path, name: str, told: Any, other: str, given: Any) -> None:
    raise UserError(
        f"--init {shown(path)}: was trained with {flag(name)} {_words(told)}, and {flag(other)} "
        f"{_words(given)} is given: leave it out"
    )


def _require_same(path: Path, name: str, told: Any, given: Any) -> None:
    if told is not None and given is not None and told != _spelled_out(name, given, told):
        _refuse(path, name, told, name, given)


def _require_layers(
    path: Path, headers: Mapping[str, Header], told: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    """UserError unless the file has the parameters of the layers it tells: networks are built of them."""
    if "net" in told and "net" not in given:
        name, fits = "net", _are_of_net(headers, layers_of_text(told["net"]))
    elif "hidden" in told and "hidden" not in given:
        name, fits = "hidden", _are_of_hidden(headers, told["hidden"])
    else:
        return
    if not fits:
        raise UserError(
            f"--init {shown(path)}: says that it was trained with {flag(name)} {_words(told[name])}, and has "
            "parameters of another network: it is damaged; get it again"
        )


def _are_of_hidden(headers: Mapping[str, Header], hidden: list[int]) -> bool:
    """Return whether there are the biases of these layers, perhaps none, and one more."""
    shapes = {f"b{number}": (units,) for number, units in enumerate(hidden, 1)}
    found = {name: header.shape for name, header in headers.items() if name.startswith("b")}
    found.pop(f"b{len(hidden) + 1}", None)
    return found == shapes and len(headers) == 2 * len(hidden) + 2


def _are_of_net(headers: Mapping[str, Header], layers: Sequence[Layer]) -> bool:
    """Return whether there are the weights and biases of these layers; their inputs are the data's."""
    found = {name: header.shape for name, header in headers.items()}
    wanted: dict[str, tuple[int, ...]] = {}
    for number, layer in enumerate((layer for layer in layers if layer.has_parameters), 1):
        # The last axis of W counts the channels of a convolution, and the inputs of a dense layer.
        inputs = found.get(f"W{number}", ())[-1:]
        shapes = layer.parameter_shapes((1, 1, *inputs))
        wanted |= {f"{name}{number}": shape for name, shape in shapes.items()}
    return found == wanted


def _words(value: Any) -> str:
    """Show a value as people give it, in few printable characters."""
    if isinstance(value, list):
        several = [one if isinstance(one, str | int | float) else "?" for one in value[:_LONGEST]]
        value = ",".join(map(str, several)) or "none"
    return shown(f"{value!s:.{_LONGEST}}")
