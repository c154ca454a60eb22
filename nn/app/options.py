"""The options of train.py with their defaults and help. `nn/app/command_line.py` reads them."""

# ruff: noqa: RUF009 (option is dataclasses.field, with immutable defaults)

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nn.app.validate_options import validate
from nn.app.written_files import WRITTEN
from nn.input import distribute
from nn.input.dataset import CHANNELS, LAST
from nn.input.named_sets import SETS
from nn.model import net_text
from nn.model.net_text import NAMES
from nn.model.network import ACTIVATIONS, LOSSES, Network
from nn.optimisers import OPTIMISERS
from nn.optimisers.base import Optimiser, rates_of
from nn.problem.option import flag, option
from nn.problem.settings import Settings
from nn.program.light_weights import DENSE, WAYS
from pyrt import devices


@dataclass(frozen=True)
class Options(Settings):
    """One run. Raises UserError for values that make no sense, each named by its option."""

    hidden: tuple[int, ...] = option(
        (512,), "units of the hidden layers, as 512 or 512,256; none: a linear classifier", "N[,N...]"
    )
    net: str | None = option(
        None,
        f"a network in place of --hidden: {', '.join(NAMES)}; layers, as "
        "conv3x3x32,relu,pool2,dense128,relu,dense10; or a .json file of them",
        "NET",
    )
    activation: str = option("sigmoid", "activation of the hidden layers", choices=ACTIVATIONS)
    head: str = option(
        "softmax",
        "output layer: softmax, or sigmoid for each class; both with cross-entropy",
        choices=tuple(LOSSES),
    )
    reg: float = option(1e-4, "L2 regularisation of the weights", "X")
    optimiser: str = option(
        "sgd",
        "sgd: gradient descent with --momentum; adam: with --beta1, --beta2, --eps",
        choices=tuple(OPTIMISERS),
    )
    lr: float | None = option(None, "learning rate (default: 0.07; 0.001 with --optimiser adam)", "X")
    momentum: float = option(0.9, "momentum of sgd", "X")
    beta1: float = option(0.9, "decay of adam's average of gradients", "X")
    beta2: float = option(0.999, "decay of adam's average of their squares", "X")
    eps: float = option(1e-8, "what adam adds to its denominator", "X")
    device: str = option(
        "auto", "where to compute; auto: cuda where every rank has a GPU, else cpu", choices=devices.CHOICES
    )
    sanitize: bool = option(False, "on the emulated device: check accesses, races, barriers and copies")
    order_seed: int | None = option(
        None, "on the emulated device: shuffle the order of threads, blocks and streams", "N"
    )
    share_gpus: bool = option(True, "let ranks share a GPU, slowly, where a node has more ranks than GPUs")
    elastic: bool = option(
        False,
        "with --exchange server: go on without workers that die, and with --shards-kept 2 without a server; "
        "needs mpirun --with-ft ulfm of Open MPI 5",
    )
    data: str = option(
        "embedded",
        f"data set: embedded; {', '.join(SETS)} (downloaded once); a folder of IDX files, of CIFAR's binary "
        "files or of class folders with PNG and JPEG; an .npz, .csv, or CIFAR .tar.gz file; "
        "synthetic:HxWxC:CLASSES:N",
        "SOURCE",
    )
    channels: str = option(
        LAST,
        "where images in .npz and IDX files have their channels: (n, h, w, c) or (n, c, h, w)",
        choices=CHANNELS,
    )
    classes: int | None = option(
        None, "number of classes, where it is more than the largest training label + 1", "N"
    )
    distribute: str = option(
        distribute.WHOLE,
        "images that each rank holds on the host: whole, all of them; parts, those that it trains on, with "
        "--no-shuffle and --plan data",
        choices=distribute.CHOICES,
    )
    init: Path | None = option(
        None, "initial parameters W1, b1, ... from a file: .safetensors, .pyrtz, all others .npz", "FILE"
    )
    save: Path | None = option(
        None,
        "write the trained parameters to a file: .safetensors, .pyrtz, all others are .npz",
        "FILE",
    )
    export: Path | None = option(
        None,
        "write the network to an ONNX file, for other programs: from pixels divided by --pixel-scale, "
        "float32 (N, D), to the probabilities of the classes",
        "FILE",
    )
    evaluate: bool = option(
        False, "train nothing: score the test set with the parameters of --init, and the network it tells of"
    )
    predictions: Path | None = option(None, "with --evaluate: write the predicted labels, one a line", "FILE")
    latency: int | bool | None = option(
        None,
        "with --evaluate: time one image, 32, and N at a time, from page-locked pixels to page-locked logits "
        "(without N: as many as evaluate at once)",
        "N",
    )
    weights: str = option(
        DENSE,
        "with --evaluate: multiply with all weights as they are (dense), with those alone that are not zero "
        "and share up to 256 values (sparse), rounded to signed bytes (int8), or with their signs (binary)",
        choices=WAYS,
    )
    check: bool = option(False, "train the NumPy reference too and compare the parameters")
    save_plan: Path | None = option(None, "write the plan to a JSON file, for --plan FILE", "FILE")
    memory: bool = option(
        False,
        "train nothing: print the memory that the run needs, of the device and page-locked host memory, "
        "layer by layer; an error if it does not fit",
    )
    stats: int | bool | None = option(
        None,
        "print the statistics of the calls of each phase too: of all ranks together, or of rank N",
        "N",
    )
    timeline: Path | None = option(
        None,
        "record some steps, on all ranks: phases, kernels, copies, calls of MPI; write them to a file in "
        "Chrome's trace format, which ui.perfetto.dev opens",
        "FILE",
    )
    timeline_steps: str | None = option(
        None,
        "with --timeline: the first and the last step to record, which are launched kernel by kernel "
        "(default: 10:14, or the last five of a shorter run)",
        "A:B",
    )
    quiet: bool = option(False, "print warnings, errors and the last line alone")
    json: Path | None = option(
        None, "write all that is printed, and more, to a JSON file (-: standard output)", "FILE"
    )

    def __new__(cls, *_: Any, **given: Any) -> Options:
        """Keep the names of what is given: nn/app/network_of_file.py may complete the rest."""
        made = super().__new__(cls)
        object.__setattr__(made, "_given", frozenset(given))
        return made

    @property
    def given(self) -> frozenset[str]:
        """The names of the options that were given, whatever their defaults are."""
        given: frozenset[str] = vars(self)["_given"]
        return given

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr is None:
            object.__setattr__(self, "lr", OPTIMISERS[self.optimiser].lr)
        validate(self)

    def make_network(self, image: tuple[int, ...], classes: int) -> Network:
        """Make the network for images of this shape; nn/app/network_of_file.py reads a file before."""
        if self.net is not None:
            return net_text.make_network(self.net, image, classes, self.head)
        return Network.dense((math.prod(image), *self.hidden, classes), self.activation, self.head)

    def make_optimiser(self) -> Optimiser:
        """Make the optimiser with its rates."""
        kind = OPTIMISERS[self.optimiser]
        rates: dict[str, Any] = {name: getattr(self, name) for name in rates_of(kind)}
        return kind(**rates)

    @property
    def written(self) -> dict[str, Path]:
        """The files that the run is to write, by option."""
        return {name: getattr(self, name) for name in WRITTEN if getattr(self, name) is not None}

    @property
    def common(self) -> dict[str, str]:
        """What all ranks must have been given, by option. Of files, which rank 0 alone reads and writes,
        whether they are: each rank may know one by a name of its own."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            flag(name): str(
                value if name not in self._files else "given" if value is not None else "not given"
            )
            for name, value in values.items()
            if name != "data"
        }
