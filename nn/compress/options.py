"""The command line of ``python -m nn.compress``: what to prune, how to share, and how to train again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nn.app.command_line import OTHER_NAMES, add_option, file_name, whole_number, written_file
from nn.app.network_of_file import with_network_of_file
from nn.app.options import Options
from nn.compress.codebook import STARTS
from nn.files import parameters
from nn.model.dense import Dense
from nn.model.network import Network
from nn.optimisers import OPTIMISERS
from nn.optimisers.base import rates_of
from nn.problem.option import require
from pyrt.arguments import Parser
from pyrt.errors import UserError, shown
from pyrt.job import Job

DESCRIPTION = "Make a trained network small: prune it and train again, let weights share values, encode them."
EPILOG = "Example: python -m nn.compress run.npz --prune 0.92 --rounds 4 --bits 6,5 --out run.pyrtz"

SHARED = (
    *("data", "channels", "classes", "augment", "samples", "val_fraction"),
    *("batch", "optimiser", "lr", "momentum", "beta1", "beta2", "eps", "reg", "seed"),
    *("device", "share_gpus", "math", "exchange", "plan", "quiet"),
)
"""The options that are as for train.py."""

FROM_FILE = ("batch", "optimiser", "lr", "momentum", "beta1", "beta2", "eps", "reg")
"""Those that a file tells and training again takes, where they are not given; a tenth of ``lr``."""

SLOWER = 10
"""The learning rate is divided by it: in training after pruning (Han et al. 2015, section 3.3)."""

SLOWER_SHARED = 100
"""And by this once more where weights share values: a value has the gradients of all its weights."""

KEPT = {"dense": 0.08, "last dense": 0.26, "convolution": 0.12, "first convolution": 0.66}
"""The shares that stay by default, as in the paper's tables of LeNet-300-100 and LeNet-5."""

BITS = {"dense": 6, "convolution": 8}
"""The bits of a code by default: as there, but 6 for dense layers of a network with convolutions too."""


@dataclass(frozen=True)
class Wanted:
    """Says what to do with a network. Each list has a number for all layers with weights, or one for each."""

    prune: tuple[float, ...] | None = None
    """The shares of weights that go; None: the paper's."""
    threshold: tuple[float, ...] | None = None
    """In the place of shares, standard deviations below which weights go."""
    rounds: int = 4
    retrain_epochs: int = 20
    bits: tuple[int, ...] | None = None
    """Bits of a code; 0: weights share nothing; None: the paper's."""
    share_epochs: int = 10
    start: str = "linear"
    index_bits: int = 5

    def __post_init__(self) -> None:
        for share in self.prune or ():
            require("prune", share, 0 <= share < 1, "shares from 0 to below 1")
        for quality in self.threshold or ():
            require("threshold", f"std:{quality}", 0 <= quality < math.inf, "standard deviations, 0 or more")
        for bits in self.bits or ():
            require("bits", bits, 0 <= bits <= 16, "bits from 0 to 16")
        require("index_bits", self.index_bits, 1 <= self.index_bits <= 16, "bits from 1 to 16")
        if self.prune is not None and self.threshold is not None:
            raise UserError("--threshold: says what --prune says: leave one of them out")

    def shares_of(self, network: Network) -> dict[int, float]:
        """Return the share of weights that goes, by layer. Raises UserError for a wrong number of them."""
        kept = {number: KEPT[kind] for number, kind in _kinds(network).items()}
        return _by_layer("prune", self.prune, network) or {number: 1 - of for number, of in kept.items()}

    def qualities_of(self, network: Network) -> dict[int, float] | None:
        """Return the standard deviations by layer; None where shares are pruned."""
        return _by_layer("threshold", self.threshold, network)

    def bits_of(self, network: Network) -> dict[int, int]:
        """Return the bits of a code by layer."""
        kinds = {number: kind.split()[-1] for number, kind in _kinds(network).items()}
        default = {number: BITS[kind] for number, kind in kinds.items()}
        return _by_layer("bits", self.bits, network) or default


def _kinds(network: Network) -> dict[int, str]:
    """Name the kind of each layer with weights, as `KEPT` has them."""
    kinds = {n: "dense" if isinstance(network.layer(n), Dense) else "convolution" for n in network.numbers}
    if kinds[1] == "convolution":
        kinds[1] = "first convolution"
    if network.depth > 1:
        kinds[network.depth] = "last dense"
    return kinds


def _by_layer(name: str, given: Sequence[Any] | None, network: Network) -> dict[int, Any] | None:
    """Return the numbers by layer, None where none are given."""
    if given is None:
        return None
    if len(given) not in (1, network.depth):
        raise UserError(
            f"--{name} {','.join(map(str, given))}: {network!s:.100} has {network.depth} layers with "
            "weights: give one number for all, or one for each"
        )
    return dict(zip(network.numbers, list(given) * (network.depth if len(given) == 1 else 1), strict=True))


@dataclass(frozen=True)
class CommandLine:
    """All that was given: train.py's options, ours, and the files."""

    options: Options
    wanted: Wanted
    out: Path | None
    sensitivity: Path | None
    json: Path | None
    resume: bool

    @property
    def told(self) -> dict[str, Any]:
        """Return what an interrupted run must have been given too, in types that JSON has."""
        rates = rates_of(OPTIMISERS[self.options.optimiser])
        names = ("data", "batch", "optimiser", "seed", "samples", "val_fraction", "augment", *rates)
        wanted = {name: _plain(value) for name, value in asdict(self.wanted).items()}
        return wanted | {name: getattr(self.options, name) for name in names}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def parse(arguments: Sequence[str]) -> CommandLine:
    """Parse the command line. Raises UserError if it makes no sense."""
    parser = Parser("python -m nn.compress", DESCRIPTION, EPILOG, other_names=OTHER_NAMES)
    fields = {field.name: field for field in dataclasses.fields(Options)}
    parser.add_argument("init", type=file_name, metavar="FILE", help="a trained network, as --save wrote it")
    _add_own(parser.add_argument)
    shared = parser.add_argument_group(
        "as for train.py; how FILE was trained is read from it, a tenth of its --lr is taken"
    )
    for name in SHARED:
        add_option(shared, fields[name])
    given = vars(parser.parse_args(arguments))
    own = {field.name: given.pop(field.name) for field in dataclasses.fields(Wanted)}
    files = {name: given.pop(name) for name in ("out", "sensitivity", "json", "resume")}
    if files["out"] is None and files["sensitivity"] is None:
        raise UserError("--out FILE.pyrtz: name the file to write (or --sensitivity FILE.png, to scan)")
    if files["out"] is not None and files["out"].suffix.lower() != ".pyrtz":
        raise UserError(f"--out {shown(files['out'])}: is written as .pyrtz: call it FILE.pyrtz")
    if files["resume"] and files["out"] is None:
        raise UserError("--resume: goes with --out FILE.pyrtz")
    return CommandLine(Options(evaluate=True, **given), Wanted(**own), **files)


def _add_own(add: Callable[..., Any]) -> None:
    """Add our own options."""
    add("--out", type=file_name, metavar="FILE.pyrtz", help="write the compressed network to this file")
    add(
        "--prune",
        type=_list_of(float, "list of shares"),
        metavar="X[,X...]",
        help="the share of all weights of a layer that goes, those of least magnitude: one for all layers, "
        "or one for each; 0: none (default: those of the paper, 0.92 for most)",
    )
    add(
        "--threshold",
        type=_deviations,
        metavar="std:X[,X...]",
        help="in the place of --prune: weights go that are less than X standard deviations of their layer",
    )
    add(
        "--rounds",
        type=whole_number,
        default=Wanted.rounds,
        metavar="N",
        help="prune in N rounds (default: 4)",
    )
    add(
        "--retrain-epochs",
        type=_count,
        default=Wanted.retrain_epochs,
        metavar="N",
        help="epochs of training after each round (default: 20)",
    )
    add(
        "--bits",
        type=_list_of(int, "list of whole numbers"),
        metavar="N[,N...]",
        help="bits of a weight's code: so many values share all weights of a layer; 0: none are shared "
        "(default: 8 for convolutions, 6 for dense layers)",
    )
    add(
        "--share-epochs",
        type=_count,
        default=Wanted.share_epochs,
        metavar="N",
        help="epochs in which the shared values train (default: 10)",
    )
    add(
        "--start",
        choices=STARTS,
        default=Wanted.start,
        help="where k-means begins: values spread evenly, by density, or at random (default: linear)",
    )
    add(
        "--index-bits",
        type=whole_number,
        default=Wanted.index_bits,
        metavar="N",
        help="bits of the distance to the next weight that is left (default: 5)",
    )
    add("--resume", action="store_true", help="go on behind the last round that ended, if there is one")
    add(
        "--sensitivity",
        type=file_name,
        metavar="FILE.png",
        help="prune each layer alone, train nothing: accuracy over the share kept, as a table and a figure",
    )
    add(
        "--json",
        type=written_file,
        metavar="FILE",
        help="write all results to a JSON file (-: standard output)",
    )


def _count(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**31:
        raise ValueError
    return number


def _list_of(kind: Callable[[str], Any], name: str) -> Callable[[str], tuple[Any, ...]]:
    def read(text: str) -> tuple[Any, ...]:
        return tuple(kind(one) for one in text.split(","))

    read.__name__ = name  # argparse names the type in its error
    return read


def _deviations(text: str) -> tuple[float, ...]:
    if not text.startswith("std:"):
        raise ValueError
    return tuple(float(one) for one in text.removeprefix("std:").split(","))


_count.__name__ = "whole number"
_deviations.__name__ = "std:X"


def with_file(line: CommandLine, job: Job) -> CommandLine:
    """Complete the options by what the file tells: its network, and how it was trained.

    Collective; UserError on all ranks for a file that does not tell a network.
    """
    given = line.options.given  # what completes options marks all of them as given
    options = with_network_of_file(line.options, job)
    with job.agree():
        told = _trained_with(options.init) if job.rank == 0 else None
    told = job.comm.bcast(told)
    rates: dict[str, Any] = {name: value for name, value in told.items() if name not in given}
    if "lr" not in given:
        chosen = options.optimiser if "optimiser" in given else told.get("optimiser", options.optimiser)
        if told.get("optimiser") != chosen or "lr" not in told:
            rates["lr"] = OPTIMISERS[chosen].lr
        rates["lr"] /= SLOWER
    with job.agree():
        return replace(line, options=replace(options, evaluate=False, **rates))


def _trained_with(path: Path | None) -> dict[str, Any]:
    """Read how the network was trained; what the file tells in other types than ours is left out."""
    assert path is not None
    told = parameters.run_metadata(path).get("options")
    if not isinstance(told, Mapping):
        return {}
    kinds = {name: (str,) if name == "optimiser" else (int, float) for name in FROM_FILE}
    return {name: told[name] for name in FROM_FILE if type(told.get(name)) in kinds[name]}
