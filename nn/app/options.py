"""The options of train.py with their defaults, limits and help. `nn/app/command_line.py` reads them."""

# ruff: noqa: RUF009 (option is dataclasses.field, with immutable defaults)

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nn.app import recording
from nn.files import net_files
from nn.input import distribute
from nn.input.dataset import CHANNELS, LAST, MOST_CLASSES
from nn.input.named_sets import SETS
from nn.model import net_text
from nn.model.net_text import NAMES
from nn.model.network import ACTIVATIONS, LOSSES, Network
from nn.optimisers import OPTIMISERS
from nn.optimisers.base import Optimiser, rates_of
from nn.problem.settings import Settings, at_least, flag, is_positive, option, require
from nn.program.light_weights import DENSE, WAYS, require_way
from pyrt import devices
from pyrt.errors import UserError, shown
from pyrt.exchange.registry import asynchronous

WRITTEN = ("save", "export", "json", "predictions", "save_plan", "timeline")
"""The options whose file the run writes; any one of them may be standard output (nn/files/write.py)."""


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
        if not self.hidden and self.activation != Options.activation:
            raise UserError("--activation: --hidden none has no hidden layers: leave it out")
        if self.net is not None and (self.hidden, self.activation) != (Options.hidden, Options.activation):
            raise UserError("--net says all layers: leave out --hidden and --activation")
        if self.net is not None and not net_files.is_file(self.net):
            net_text.layers_of(self.net, 1)  # before the data are read
        for size in self.hidden:
            require("hidden", size, size >= 1, "layers of 1 unit or more")
        for name in ("classes", "latency"):
            require(name, getattr(self, name), at_least(getattr(self, name), 1), "a whole number, 1 or more")
        require("classes", self.classes, (self.classes or 1) <= MOST_CLASSES, f"at most {MOST_CLASSES}")
        for name in ("order_seed", "stats"):
            require(name, getattr(self, name), at_least(getattr(self, name), 0), "a whole number, 0 or more")
        for name in ("lr", "eps"):
            require(name, getattr(self, name), is_positive(getattr(self, name)), "a finite number above 0")
        require("reg", self.reg, math.isfinite(self.reg) and self.reg >= 0, "a finite number, 0 or more")
        for name in ("momentum", "beta1", "beta2"):
            require(name, getattr(self, name), 0 <= getattr(self, name) < 1, "a number from 0 to below 1")
        self._check_what_is_done()

    def _check_what_is_done(self) -> None:
        if self.evaluate and self.init is None:
            raise UserError("--evaluate: give the parameters to evaluate with --init FILE.npz")
        if self.evaluate and (self.save or self.check):
            raise UserError("--evaluate trains nothing: leave out --save and --check")
        if self.evaluate and self.checkpoint:
            raise UserError(
                "--evaluate trains nothing: leave out --checkpoint; --init takes a checkpoint's file"
            )
        if self.predictions and not self.evaluate:
            raise UserError("--predictions: goes with --evaluate and --init FILE.npz")
        if self.latency and not self.evaluate:
            raise UserError("--latency: goes with --evaluate and --init FILE.npz")
        if self.latency and (self.profile or self.check_each):
            raise UserError(
                "--latency times the work as it runs by itself: leave out --profile and --check-each"
            )
        self._check_weights()
        self._check_distribution()
        if (self.sanitize or self.order_seed is not None) and self.device != "emulated":
            raise UserError("--sanitize, --order-seed: go with --device emulated")
        if self.check and self.exchange in asynchronous() and not self.asynchrony.is_synchronous:
            others = ", or give --staleness 0" if self.exchange == "server" else ""
            raise UserError(
                f"--exchange {self.exchange}: trains another network each time, which --check would not find "
                f"in the reference: leave out --check{others}"
            )
        if self.elastic and self.exchange != "server":
            raise UserError("--elastic: goes with --exchange server")
        if self.elastic and (self.evaluate or self.check):
            raise UserError("--elastic: goes with training alone: leave out --evaluate and --check")
        if self.shards_kept > 1 and not self.elastic:
            raise UserError("--shards-kept: goes with --elastic")
        if self.tolerance is not None and not self.check:
            raise UserError("--tolerance: goes with --check")
        trains = not (self.evaluate or self.memory) and self.epochs > 0
        recording.require(self.timeline, self.timeline_steps, trains)
        self._check_files()

    def _check_weights(self) -> None:
        if self.weights == DENSE:
            return
        option = f"--weights {self.weights}"
        if not self.evaluate:
            raise UserError(f"{option}: goes with --evaluate and --init FILE")
        if self.plan != "data":
            raise UserError(
                f"{option}: each rank has all of the weights: leave out --plan {shown(self.plan)}"
            )
        if self.export:
            raise UserError(f"{option}: --export writes dense weights: leave one of them out")
        require_way(self.weights, self.dtype)

    def _check_distribution(self) -> None:
        if self.distribute == distribute.WHOLE:
            return
        reasons = {
            "leave out --evaluate": self.evaluate,
            "leave out --check, which trains the reference on the whole set": self.check,
            "give --no-shuffle: shuffled batches take rows from everywhere": self.shuffle,
            "leave out --plan: parts are those of a batch": self.plan != "data",
            "use --placement stream: each rank has a part of the set alone": self.placement == "resident",
        }
        for reason, holds in reasons.items():
            if holds:
                raise UserError(f"--distribute parts: {reason}")

    def _check_files(self) -> None:
        if self.save and self.save.suffix.lower() == ".onnx":
            raise UserError(f"--save {shown(self.save)}: writes what --init reads; --export writes ONNX")
        if self.export and self.export.suffix.lower() in (".npz", ".safetensors", ".pyrtz"):
            raise UserError(f"--export {shown(self.export)}: writes ONNX: call it FILE.onnx, or --save it")
        files = self.written.values()
        if len(set(map(os.path.realpath, files))) < len(files):
            raise UserError(f"{', '.join(map(flag, WRITTEN))}: name a file of its own for each")

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
