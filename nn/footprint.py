"""Weighs a network on paper: weights, outputs and operations, layer by layer::

    python -m nn.footprint vgg16
    python -m nn.footprint lenet5 --batch 128 --training --momentum
    python -m nn.footprint conv3x3x32,relu,dense10 --data synthetic:32x32x3:10:1000 --json footprint.json

NET is as train.py's --net takes it: a name, a text, or a file. Without --data a known network is for the
images that it is known for, and --hidden, in the place of NET, for digits.

An activation is computed where its inputs lie, dropout too: neither has an output of its own. A multiply-add
is two operations; what biases, activations and pooling add is left out. The way back has two products where
the forward pass has one, but one in the first layer, whose inputs need no gradient.
"""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyrt.arguments import Parser
from pyrt.job import Job, run

if TYPE_CHECKING:  # at run time only once MPI has started: they load NumPy
    from nn.app.options import Options
    from nn.model.network import Network

WORD = 4
"""Bytes of what one reading from memory brings."""

PICOJOULES = 640
"""The energy that a word from DRAM takes, in 45 nm (Horowitz 2014, as Han et al. 2016 have it)."""

VERSION = 1
"""The version of the JSON file's layout."""

SHARED = ("hidden", "activation", "data", "channels", "classes", "optimiser", "dtype")
"""The options that are as for train.py."""


@dataclass(frozen=True)
class LayerFootprint:
    """Counts of a layer: of one sample, but for its parameters."""

    name: str
    weights: int
    biases: int
    output: tuple[int, ...]
    """The shape of its outputs."""
    matrix: int
    """Numbers of the input matrix (im2col); 0 where there is none."""
    forward: int
    """Operations."""
    backward: int
    kept_bytes: int = 0
    """Bytes that the layer keeps for the way back beside its outputs."""

    @property
    def outputs(self) -> int:
        return math.prod(self.output)


@dataclass(frozen=True)
class Footprint:
    """Counts and bytes of a network, with numbers of so many bytes, for so many samples at a time.

    ``states`` are the arrays of the parameters' size that the optimiser keeps.
    """

    input: tuple[int, ...]
    layers: Sequence[LayerFootprint]
    itemsize: int = WORD
    batch: int = 1
    states: int = 0

    @classmethod
    def of(cls, network: Network, itemsize: int = WORD, batch: int = 1, states: int = 0) -> Footprint:
        """Weigh a network."""
        layers: list[LayerFootprint] = []
        places = network.layer_shapes
        for (name, _, _), layer, inputs, output in zip(
            network.table(), network.layers, places, places[1:], strict=False
        ):
            shapes = layer.parameter_shapes(inputs)
            products = 2 * layer.multiply_adds(inputs)
            is_first = not any(one.weights for one in layers)
            layers.append(
                LayerFootprint(
                    name,
                    math.prod(shapes["W"]) if shapes else 0,
                    math.prod(shapes["b"]) if shapes else 0,
                    output,
                    layer.matrix_size(inputs),
                    products,
                    products * (1 if is_first else 2),
                    math.prod(output) if layer.keeps_places else 0,
                )
            )
        kept = [one for one, layer in zip(layers, network.layers, strict=True) if not layer.only_trains]
        return cls(places[0], kept, itemsize, batch, states)

    @cached_property
    def weights(self) -> int:
        return sum(layer.weights for layer in self.layers)

    @cached_property
    def parameters(self) -> int:
        """Weights and biases."""
        return self.weights + sum(layer.biases for layer in self.layers)

    @cached_property
    def outputs(self) -> int:
        """Count the numbers of a sample: its own, and the outputs of all layers."""
        return sum(self._each)

    @property
    def _each(self) -> list[int]:
        return [math.prod(self.input), *(layer.outputs for layer in self.layers)]

    @property
    def parameter_bytes(self) -> int:
        return self.parameters * self.itemsize

    @property
    def state_bytes(self) -> int:
        """Count the bytes of the arrays that the optimiser keeps."""
        return self.states * self.parameter_bytes

    @property
    def output_bytes(self) -> int:
        """Count the bytes of the input and all outputs, if all are kept."""
        return self.batch * self.outputs * self.itemsize

    @property
    def live_bytes(self) -> int:
        """Count the bytes of the largest input and output of one layer: inference needs no more at once."""
        each = self._each
        return self.batch * self.itemsize * max(map(sum, pairwise(each)))

    @property
    def gradient_bytes(self) -> int:
        """Count the bytes of the gradients of all outputs; the input has no gradient."""
        return self.output_bytes - self.batch * math.prod(self.input) * self.itemsize

    @property
    def place_bytes(self) -> int:
        """Count the bytes that layers keep for the way back beside their outputs."""
        return self.batch * sum(layer.kept_bytes for layer in self.layers)

    @property
    def inference_bytes(self) -> int:
        return self.parameter_bytes + self.live_bytes

    @property
    def training_bytes(self) -> int:
        """Count the bytes of parameters, outputs, the gradients of both, and the optimiser's arrays."""
        moving = self.output_bytes + self.gradient_bytes + self.place_bytes
        return 2 * self.parameter_bytes + self.state_bytes + moving

    @property
    def forward(self) -> int:
        """Count the operations of a sample's forward pass."""
        return sum(layer.forward for layer in self.layers)

    @property
    def backward(self) -> int:
        return sum(layer.backward for layer in self.layers)

    def watts(self, rate: float) -> float:
        """Return the power of reading all weights from DRAM so many times a second."""
        return self.weights * self.itemsize / WORD * rate * PICOJOULES * 1e-12


def size(nbytes: float) -> str:
    """Write bytes for people, as 6.75 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.4g} {unit}" if nbytes < 1000 else f"{nbytes:.0f} {unit}"


def table(footprint: Footprint, width: int | None) -> str:
    """Tabulate the layers: numbers and bytes of weights, outputs and input matrix, operations."""
    from nn.model.network import described
    from pyrt.tables import table

    batch, itemsize = footprint.batch, footprint.itemsize

    def row(name: str, weights: int, output: str, numbers: Sequence[int]) -> list[Any]:
        """``numbers`` of a sample: outputs, of the input matrix, operations forward and back."""
        outputs, matrix, *operations = numbers
        return [
            *(name, f"{weights:,}" if weights else None, size(weights * itemsize) if weights else None),
            *(output, size(outputs * batch * itemsize), size(matrix * batch * itemsize) if matrix else None),
            *(count * batch / 1e6 if count else None for count in operations),
        ]

    whole = footprint.outputs, 0, footprint.forward, footprint.backward
    rows = [
        row("input", 0, described(footprint.input), (math.prod(footprint.input), 0, 0, 0)),
        *(
            row(
                layer.name,
                layer.weights,
                described(layer.output),
                (layer.outputs, layer.matrix, layer.forward, layer.backward),
            )
            for layer in footprint.layers
        ),
        row("total", footprint.weights, f"{footprint.outputs * batch:,}", whole),
    ]
    headers = ["layer", "weights", "size", "output", "size ", "im2col", "forward Mflop", "back Mflop"]
    return table(headers, rows, ("", "", "", "", "", "", ".1f", ".1f"), ("im2col", "back Mflop"), width)


def summary(footprint: Footprint, training: bool, rate: float) -> list[str]:
    """Say in lines what inference needs, training if it is wanted, and the power of reading the weights."""
    biases = footprint.parameters - footprint.weights
    at_a_time = f"{footprint.batch} sample(s) at a time"
    lines = [
        f"parameters  {footprint.parameters:,}: {footprint.weights:,} weights and {biases:,} biases, "
        f"{size(footprint.parameter_bytes)}",
        f"inference   {size(footprint.inference_bytes)}, {at_a_time}: parameters, and "
        f"{size(footprint.live_bytes)} for the largest two outputs at once; {size(footprint.output_bytes)} "
        "if all are kept",
    ]
    if training:
        kept = f", places in pooling {size(footprint.place_bytes)}" if footprint.place_bytes else ""
        lines.append(
            f"training    {size(footprint.training_bytes)}, {at_a_time}: parameters "
            f"{size(footprint.parameter_bytes)}, their gradients the same, what the optimiser keeps "
            f"{size(footprint.state_bytes)}, outputs {size(footprint.output_bytes)}, their gradients "
            f"{size(footprint.gradient_bytes)}{kept}"
        )
    lines.append(
        f"energy      {footprint.watts(rate):.3g} W to read all weights from DRAM {rate:g} times a second, "
        f"{PICOJOULES} pJ for {WORD} bytes"
    )
    return lines


def content(footprint: Footprint, text: str, rate: float) -> dict[str, object]:
    """Make the content of the JSON file."""
    totals = {
        name: getattr(footprint, name)
        for name in (
            *("weights", "parameters", "outputs", "forward", "backward", "parameter_bytes", "state_bytes"),
            *("output_bytes", "live_bytes", "gradient_bytes", "place_bytes"),
            *("inference_bytes", "training_bytes"),
        )
    }
    return {
        "version": VERSION,
        "network": text,
        "input": footprint.input,
        "batch": footprint.batch,
        "itemsize": footprint.itemsize,
        "layers": [asdict(layer) for layer in footprint.layers],
        "totals": totals,
        "rate": rate,
        "watts": footprint.watts(rate),
    }


def parse(arguments: Sequence[str]) -> tuple[Options, Namespace]:
    """Parse the command line: train.py's options that say what a network is, and our own.

    Raises UserError if it makes no sense.
    """
    import dataclasses

    from nn.app.command_line import OTHER_NAMES, add_option, whole_number, written_file
    from nn.app.options import Options

    parser = Parser("python -m nn.footprint", __doc__, other_names=OTHER_NAMES)
    fields = {field.name: field for field in dataclasses.fields(Options)}
    add = parser.add_argument
    add("net", nargs="?", metavar="NET", help="the network, as train.py's --net takes it")
    shared = parser.add_argument_group("as for train.py")
    for name in SHARED:
        add_option(shared, fields[name])
    add("--batch", type=whole_number, default=1, metavar="N", help="samples at a time (default: 1)")
    add("--training", action="store_true", help="what training needs, too")
    add("--momentum", action="store_true", help="count the velocity of sgd")
    add("--rate", type=_rate, default=20.0, metavar="HZ", help="images a second (default: 20)")
    add(
        "--json",
        type=written_file,
        metavar="FILE",
        help="write all of it to a JSON file (-: standard output)",
    )
    wanted = vars(parser.parse_args(arguments))
    own = {name: wanted.pop(name) for name in ("batch", "training", "momentum", "rate", "json")}
    net = wanted.pop("net")
    named = {"net": net} if net is not None else {}
    options = Options(**wanted, **named, momentum=0.9 if own["momentum"] else 0.0)
    return options, Namespace(**own, given=options.given)


def _rate(text: str) -> float:
    number = float(text)
    if not 0 <= number < math.inf:
        raise ValueError
    return number


_rate.__name__ = "number"  # argparse names the type in its error


def main(job: Job) -> int:
    """Weigh the network and print it. Every rank reads the command line; rank 0 prints."""
    import numpy as np

    from nn.app.console import Console
    from nn.app.network_of_file import with_network_of_file
    from nn.app.network_on_paper import network_on_paper
    from nn.files.write import STDOUT, require_writable, write_whole

    with job.agree():
        options, own = parse(sys.argv[1:])
        if own.json is not None and job.rank == 0:
            require_writable("--json", own.json)
    options = with_network_of_file(options, job)
    with job.agree():
        if job.rank > 0:  # the data may be on rank 0's node alone
            return 0
        network = network_on_paper(options, own.given)
        itemsize = np.dtype(options.dtype).itemsize
        footprint = Footprint.of(network, itemsize, own.batch, len(options.make_optimiser().states))
        if own.json is not None:
            text = json.dumps(content(footprint, network.text, own.rate), indent=1)
            write_whole("--json", own.json, lambda file: file.write(f"{text}\n".encode()))
        if own.json != STDOUT:
            print(table(footprint, Console(speaking=True).width))
            print("\n".join(["", *summary(footprint, own.training, own.rate)]))
    return 0


if __name__ == "__main__":
    run(main)
