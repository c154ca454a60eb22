"""The command line of train.py: one option for each field of `Options`, in groups."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nn.app.options import Options
from nn.app.written_files import WRITTEN
from nn.checkpoints.versions import version
from nn.files.write import STDOUT
from nn.problem.option import flag
from pyrt.arguments import Parser

GROUPS: dict[str, tuple[str, ...]] = {
    "network": ("hidden", "activation", "net", "head"),
    "training": (
        "batch",
        "epochs",
        "optimiser",
        "lr",
        "momentum",
        "beta1",
        "beta2",
        "eps",
        "reg",
        "seed",
        "shuffle",
    ),
    "data": (
        *("data", "channels", "samples", "classes", "val_fraction", "val_split", "augment", "pixel_scale"),
        "distribute",
    ),
    "machine": (
        *("device", "dtype", "share_gpus", "gemm", "conv", "math", "plan", "grid", "save_plan", "exchange"),
        *("ranks_per_node", "placement", "graph"),
    ),
    "asynchronous training": ("atomic", "servers", "staleness", "epoch_barrier", "elastic", "shards_kept"),
    "files": ("init", "save", "export", "json"),
    "checkpoints": ("checkpoint", "checkpoint_every", "resume", "keep", "checkpoint_errors"),
    "instead of training": ("evaluate", "weights", "predictions", "latency", "memory"),
    "watching": (
        "print_every",
        "quiet",
        "stats",
        "timeline",
        "timeline_steps",
        "profile",
        "check",
        "check_each",
        "tolerance",
        "sanitize",
        "order_seed",
        "slow_rank",
    ),
}
"""The options as --help shows them: the fields of `Options`, each once."""

OTHER_NAMES = {
    "batch-size": "batch",
    "bs": "batch",
    "learning-rate": "lr",
    "eta": "lr",
    "epoch": "epochs",
    "num-epochs": "epochs",
    "iterations": "epochs",
    "weight-decay": "reg",
    "l2": "reg",
    "lambda": "reg",
    "layers": "hidden",
    "units": "hidden",
    "loss": "head",
    "dataset": "data",
    "validation-split": "val-fraction",
    "val-size": "val-fraction",
    "augmentation": "augment",
    "precision": "dtype",
    "load": "init",
    "output": "save",
    "onnx": "export",
    "test": "evaluate",
    "eval": "evaluate",
    "benchmark": "latency",
    "trace": "timeline",
    "verbose": "print-every",
    "log-every": "print-every",
    "silent": "quiet",
    "comm": "exchange",
    "allreduce": "exchange",
    "gpu": "cuda",
    "numpy": "cpu",
    "fp32": "float32",
    "float": "float32",
    "single": "float32",
    "fp64": "float64",
    "double": "float64",
    "logistic": "sigmoid",
    "bfloat16": "bf16",
    "nccl": "peer",
}
"""Names that other programs give to our options and values."""


NO_LAYERS = "none"
"""The value of --hidden for a network without hidden layers."""


def parse(arguments: Sequence[str]) -> Options:
    """Read a command line; UserError for what makes no sense. Prints and exits for --help and --version."""
    parser = Parser(
        "train.py",
        "Train a fully connected network on GPUs, split over MPI ranks.",
        epilog="Example: mpirun -n 4 python train.py --hidden 512 --batch 3000",
        usage="train.py [OPTION ..]",
        other_names=OTHER_NAMES,
    )
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        dest=argparse.SUPPRESS,
        default=argparse.SUPPRESS,
        help="show version and revision, and exit",
    )
    fields = {field.name: field for field in dataclasses.fields(Options)}
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            add_option(group, fields[name])
    return Options(**vars(parser.parse_args(arguments)))


class _Version(argparse.Action):
    """Asks git for the revision, only where that is wanted."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(version())
        parser.exit()


def add_option(group: argparse._ActionsContainer, field: dataclasses.Field[Any]) -> None:
    """Add the option of a field of `Options`; it is not in what is parsed unless it is given."""
    # argparse knows no defaults and adds none to the help: `Options` has them.
    settings: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": _help(field)}
    if isinstance(field.default, bool):
        action = argparse.BooleanOptionalAction if field.default else "store_true"
        group.add_argument(flag(field.name), action=action, **settings)
    elif field.metadata["choices"]:
        group.add_argument(flag(field.name), choices=field.metadata["choices"], **settings)
    elif field.type == "int | bool | None":  # with a number or without
        settings |= {"nargs": "?", "const": True, "metavar": field.metadata["metavar"]}
        group.add_argument(flag(field.name), type=int, **settings)
    else:
        kind = written_file if field.name in WRITTEN else _TYPES[str(field.type)]
        group.add_argument(flag(field.name), type=kind, metavar=field.metadata["metavar"], **settings)


def _help(field: dataclasses.Field[Any]) -> str:
    """Add the default to the help, if it is a value."""
    text: str = field.metadata["help"].replace("%", "%%")
    if field.default is None or field.default is False:
        return text
    return f"{text} (default: {_plainly(field.default)})"


def _plainly(default: Any) -> str:
    if default is True:
        return "on"
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def sizes(text: str) -> tuple[int, ...]:
    """Read sizes of layers, as 512 or 512,256; return an empty tuple for none."""
    return () if text == NO_LAYERS else tuple(int(size) for size in text.split(","))


def file_name(text: str) -> Path:
    """Read the name of a file or folder; ``-`` is none."""
    if text == "-":
        raise argparse.ArgumentTypeError("- is standard output for options that write a file: give a name")
    if not text:
        raise ValueError
    return Path(text)


def written_file(text: str) -> Path:
    """Read the name of a file to write; ``-`` is standard output."""
    return STDOUT if text == "-" else file_name(text)


def whole_number(text: str) -> int:
    """Read a number from 1 on, of at most 31 bits."""
    number = int(text)
    if not 0 < number < 2**31:
        raise ValueError
    return number


whole_number.__name__ = "whole number"
sizes.__name__ = "list of whole numbers"  # argparse names the type in its error
file_name.__name__ = written_file.__name__ = "file name"

_TYPES: dict[str, Any] = {
    "tuple[int, ...]": sizes,
    "int": int,
    "int | None": int,
    "float": float,
    "float | None": float,
    "str": str,
    "str | None": str,
    "Path | None": file_name,
}
