"""Networks in words: the names and the text that ``--net`` takes, and the layers of its files as JSON.

A text is a list of layers: ``conv3x3x32,relu,pool2,dense128,relu,dense10``.

    convRxCxF    a convolution of F filters of R x C pixels, then if wanted sS (stride), pP (padding) or same
    poolN        the largest of N x N pixels; poolNsS: S pixels apart in place of N
    avgpoolN     the mean of N x N pixels; also with sS
    gap          the mean of each channel over the image
    denseN       N units, each connected with all inputs
    dropoutX     while the network trains, each unit dropped with probability X, as dropout0.5
    sigmoid, tanh, relu    the activation of the layer before, a convolution or dense
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nn.model.conv2d import Conv2d
from nn.model.dense import Dense
from nn.model.dropout import Dropout
from nn.model.layer import Layer
from nn.model.network import ACTIVATIONS, Network
from nn.model.pool import AvgPool2d, GlobalAvgPool2d, MaxPool2d
from nn.model.window import SAME
from pyrt.errors import UserError, shown

_VGG16 = ",pool2,".join(
    ",".join([f"conv3x3x{filters}p1,relu"] * count)
    for filters, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
)
NAMES = {
    "lenet5": "conv5x5x6p2,relu,pool2,conv5x5x16,relu,pool2,dense120,relu,dense84,relu",
    "mnist-conv": "conv3x3x32,relu,conv3x3x64,relu,pool2,dense128,relu",
    "vgg-small": "conv3x3x64p1,relu,conv3x3x64p1,relu,pool2,conv3x3x128p1,relu,conv3x3x128p1,relu,pool2,"
    "conv3x3x256p1,relu,conv3x3x256p1,relu,pool2,dense512,relu",
    "alexnet": "conv11x11x96s4p2,relu,pool3s2,conv5x5x256p2,relu,pool3s2,conv3x3x384p1,relu,"
    "conv3x3x384p1,relu,conv3x3x256p1,relu,pool3s2,dense4096,relu,dense4096,relu",
    "vgg16": f"{_VGG16},pool2,dense4096,relu,dense4096,relu",
}
"""Known networks, up to their last layer, which has a unit for each class of the data.

LeNet-5 (LeCun et al. 1998) as it is trained today, with ReLU and max-pooling; AlexNet (Krizhevsky et al.
2012) without its groups and normalisation; VGG-16 (Simonyan and Zisserman 2015, configuration D).
"""

IMAGES: dict[str, tuple[tuple[int, int, int], int]] = {
    "lenet5": ((28, 28, 1), 10),
    "mnist-conv": ((28, 28, 1), 10),
    "vgg-small": ((32, 32, 3), 10),
    "alexnet": ((224, 224, 3), 1000),
    "vgg16": ((224, 224, 3), 1000),
}
"""The images that known networks are for, and their classes."""

MOST_LAYERS = 1000
"""In a text or a file; more come from damaged ones."""

MOST_DIGITS = 9
"""Of a number in a text or a file."""


def _conv(rows: str, columns: str, filters: str, stride: str | None, padding: str | None) -> Layer:
    pad = SAME if padding == SAME else int(padding[1:]) if padding else 0
    return Conv2d(int(filters), (int(rows), int(columns)), int(stride or 1), pad)


_COUNT = f"([0-9]{{1,{MOST_DIGITS}}})"
_FORMS: dict[str, Callable[..., Layer]] = {
    f"conv{_COUNT}x{_COUNT}x{_COUNT}(?:s{_COUNT})?(p[0-9]{{1,{MOST_DIGITS}}}|{SAME})?": _conv,
    f"pool{_COUNT}(?:s{_COUNT})?": lambda size, stride: MaxPool2d(int(size), stride and int(stride)),
    f"avgpool{_COUNT}(?:s{_COUNT})?": lambda size, stride: AvgPool2d(int(size), stride and int(stride)),
    "gap": GlobalAvgPool2d,
    f"dense{_COUNT}": lambda units: Dense(int(units)),
    "dropout(0?\\.[0-9]{1,24}|0)": lambda rate: Dropout(float(rate)),
}
"""How a layer is written, and what makes it of its numbers."""

_KINDS: dict[str, Any] = {
    "conv": Conv2d,
    "pool": MaxPool2d,
    "avgpool": AvgPool2d,
    "gap": GlobalAvgPool2d,
    "dense": Dense,
    "dropout": Dropout,
}
"""The kinds of layers in JSON."""


def layers_of(net: str, classes: int) -> list[Layer]:
    """Read the layers that a name of `NAMES`, or a text, says; a name ends with a unit for each class."""
    return [*layers_of_text(NAMES[net]), Dense(classes)] if net in NAMES else layers_of_text(net)


def layers_of_text(text: str) -> list[Layer]:
    """Read a text. Raises UserError, with the place, for what is no layer."""
    layers: list[Layer] = []
    for place, word in enumerate(text.split(","), 1):
        word = word.strip()
        if word in ACTIVATIONS:
            layers.append(_activated(layers.pop() if layers else None, word, place))
        else:
            layers.append(_layer(word, place))
        _require_few(layers)
    return layers


def _layer(word: str, place: int) -> Layer:
    for form, make in _FORMS.items():
        match = re.fullmatch(form, word)
        if match:
            try:
                return make(*match.groups())
            except UserError as error:
                raise UserError(f"--net: {word}, word {place}: {error}") from None
    raise UserError(
        f"--net: {shown(word[:40])!r}, word {place}, is no layer: give convRxCxF (then sS, pP or same), "
        f"poolN, avgpoolN, gap, denseN, dropoutX, or behind a conv or dense {', '.join(ACTIVATIONS)}"
    )


def _activated(layer: Layer | None, activation: str, place: int) -> Layer:
    if not isinstance(layer, Conv2d | Dense) or layer.activation is not None:
        raise UserError(f"--net: {activation}, word {place}, belongs right behind a conv or dense layer")
    return dataclasses.replace(layer, activation=activation)


def _require_few(layers: Sequence[Layer], where: str = "--net") -> None:
    if len(layers) > MOST_LAYERS:
        raise UserError(f"{where}: has more than {MOST_LAYERS} layers")


def layers_of_json(content: Any, where: str = "--net") -> list[Layer]:
    """Read layers from JSON: objects with ``kind``, one of `_KINDS`, and the settings of that kind.

    As ``{"kind": "conv", "filters": 32, "size": [3, 3], "padding": 1, "activation": "relu"}``. Raises
    UserError, which begins with ``where`` and says the place, for what is no layer.
    """
    if not isinstance(content, list):
        raise UserError(f"{where}: 'layers' is no list of layers")
    _require_few(content, where)
    return [_layer_of_json(one, f"{where}: layer {place}") for place, one in enumerate(content, 1)]


def _layer_of_json(content: Any, where: str) -> Layer:
    kind = content.get("kind") if isinstance(content, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UserError(f"{where} has no 'kind' of {', '.join(_KINDS)}")
    settings = {name: value for name, value in content.items() if name != "kind"}
    known = [field.name for field in dataclasses.fields(_KINDS[kind])]
    for name, value in settings.items():
        if name not in known:
            raise UserError(f"{where}: a {kind} layer has no {shown(name[:40])!r}: {', '.join(known)}")
        if not _may_be_set(value):
            raise UserError(f"{where}: {name} is none that a {kind} layer can have")
    try:
        return _KINDS[kind](**settings)
    except TypeError:
        raise UserError(f"{where}: a {kind} layer needs more of {', '.join(known)}") from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _may_be_set(value: Any) -> bool:
    """Return whether a setting from JSON is short: a number, a word, nothing, or a pair of whole numbers."""
    if isinstance(value, list):
        return len(value) == 2 and all(type(one) is int and _may_be_set(one) for one in value)
    if isinstance(value, str):
        return len(value) <= 40
    return value is None or (type(value) in (int, float) and abs(value) < 10**MOST_DIGITS)


def make_network(net: str, image: tuple[int, ...], classes: int, loss: str) -> Network:
    """Make the network of a name or a text, for images of this shape.

    Raises UserError where there is no such network, or it does not fit the data.
    """
    layers = layers_of(net, classes)
    try:
        network = Network(image, layers, loss)
    except UserError as error:
        raise UserError(f"--net: {error}") from None
    if network.classes < classes:
        raise UserError(f"--net: ends with {network.classes} units, and the data have {classes} classes")
    return network
