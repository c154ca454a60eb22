"""Scores a network whose weights are signed bytes or signs: what few bits alone would do, untrained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nn.compress.retraining import Parameters, Retraining
from nn.program.light_weights import BINARY, INT8, LightWeights
from nn.train.evaluation import score
from nn.train.inference import Inference
from pyrt.tables import table

NAMES = {INT8: "signed bytes", BINARY: "signs"}

_AT_ONCE = 1000
"""Images that are computed together, at most."""


@dataclass(frozen=True)
class Way:
    """Tells of a way to keep a network: bytes of all parameters, in a file or in memory; test accuracy."""

    name: str
    nbytes: int
    accuracy: float


def few_bits(parameters: Parameters, retraining: Retraining) -> list[Way]:
    """Score the network with signed bytes, and with signs, in the place of its weights. Collective."""
    network, options, data = retraining.network, retraining.options, retraining.data
    images, labels = data.test_images, data.test_labels
    assert images is not None and labels is not None
    found: list[Way] = []
    for way, name in NAMES.items():
        light = LightWeights.of(way, network, parameters)
        assert light is not None
        with retraining.open() as runtime:
            inference = Inference(
                network,
                parameters,
                runtime,
                min(len(images), _AT_ONCE),
                images.dtype,
                way,
                math=options.math,
                pixel_scale=options.pixel_scale,
            )
            accuracy = score(inference.logits(images), labels, network.loss).precision
        found.append(Way(name, _nbytes(light), accuracy))
    return found


def _nbytes(light: LightWeights) -> int:
    """Count the bytes of all parameters: light weights, and all else in float32."""
    lightened = {f"W{layer}" for layer in light.layers}
    others = sum(array.nbytes for name, array in light.parameters.items() if name not in lightened)
    return others + sum(matrix.nbytes for matrix in light.layers.values())


def ways_table(ways: Sequence[Way]) -> str:
    """Tabulate ways to keep a network, beside the first of them."""
    rows = [[way.name, way.nbytes, ways[0].nbytes / way.nbytes, 100 * (1 - way.accuracy)] for way in ways]
    return table(["weights as", "bytes", "times smaller", "error %"], rows, ("", "", ".1f", ".2f"))
