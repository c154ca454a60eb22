"""Refuses options that make no sense: values beyond their limits, and options that do not go together.

`nn/problem/validate_settings.py` has done so before for the settings, which programs set too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nn.app import recording, written_files
from nn.files import net_files
from nn.input import distribute
from nn.input.dataset import MOST_CLASSES
from nn.model import net_text
from nn.problem.option import require, require_positive, require_whole
from nn.program.light_weights import DENSE, require_way
from pyrt.errors import UserError, shown
from pyrt.exchange.registry import asynchronous

if TYPE_CHECKING:
    from nn.app.options import Options


def validate(options: Options) -> None:
    """Raise UserError, which names the option, for the first value that makes no sense."""
    _validate_network(options)
    _validate_numbers(options)
    _validate_evaluation(options)
    _validate_weights(options)
    _validate_distribution(options)
    if (options.sanitize or options.order_seed is not None) and options.device != "emulated":
        raise UserError("--sanitize, --order-seed: go with --device emulated")
    _validate_asynchrony(options)
    if options.tolerance is not None and not options.check:
        raise UserError("--tolerance: goes with --check")
    trains = not (options.evaluate or options.memory) and options.epochs > 0
    recording.require(options.timeline, options.timeline_steps, trains)
    written_files.require(options.written)


def _validate_network(options: Options) -> None:
    layers, default = (options.hidden, options.activation), (type(options).hidden, type(options).activation)
    if not options.hidden and options.activation != type(options).activation:
        raise UserError("--activation: --hidden none has no hidden layers: leave it out")
    if options.net is not None and layers != default:
        raise UserError("--net says all layers: leave out --hidden and --activation")
    if options.net is not None and not net_files.is_file(options.net):
        net_text.layers_of(options.net, 1)  # before the data are read
    for size in options.hidden:
        require("hidden", size, size >= 1, "layers of 1 unit or more")


def _validate_numbers(options: Options) -> None:
    require_whole(options, 1, "classes", "latency")
    require("classes", options.classes, (options.classes or 1) <= MOST_CLASSES, f"at most {MOST_CLASSES}")
    require_whole(options, 0, "order_seed", "stats")
    require_positive(options, "lr", "eps")
    require("reg", options.reg, math.isfinite(options.reg) and options.reg >= 0, "a finite number, 0 or more")
    for name in ("momentum", "beta1", "beta2"):
        value = getattr(options, name)
        require(name, value, 0 <= value < 1, "a number from 0 to below 1")


def _validate_evaluation(options: Options) -> None:
    if options.evaluate and options.init is None:
        raise UserError("--evaluate: give the parameters to evaluate with --init FILE.npz")
    if options.evaluate and (options.save or options.check):
        raise UserError("--evaluate trains nothing: leave out --save and --check")
    if options.evaluate and options.checkpoint:
        raise UserError("--evaluate trains nothing: leave out --checkpoint; --init takes a checkpoint's file")
    if options.predictions and not options.evaluate:
        raise UserError("--predictions: goes with --evaluate and --init FILE.npz")
    if options.latency and not options.evaluate:
        raise UserError("--latency: goes with --evaluate and --init FILE.npz")
    if options.latency and (options.profile or options.check_each):
        raise UserError("--latency times the work as it runs by itself: leave out --profile and --check-each")


def _validate_weights(options: Options) -> None:
    if options.weights == DENSE:
        return
    option = f"--weights {options.weights}"
    if not options.evaluate:
        raise UserError(f"{option}: goes with --evaluate and --init FILE")
    if options.plan != "data":
        raise UserError(f"{option}: each rank has all of the weights: leave out --plan {shown(options.plan)}")
    if options.export:
        raise UserError(f"{option}: --export writes dense weights: leave one of them out")
    require_way(options.weights, options.dtype)


def _validate_distribution(options: Options) -> None:
    if options.distribute == distribute.WHOLE:
        return
    reasons = {
        "leave out --evaluate": options.evaluate,
        "leave out --check, which trains the reference on the whole set": options.check,
        "give --no-shuffle: shuffled batches take rows from everywhere": options.shuffle,
        "leave out --plan: parts are those of a batch": options.plan != "data",
        "use --placement stream: each rank has a part of the set alone": options.placement == "resident",
    }
    for reason, holds in reasons.items():
        if holds:
            raise UserError(f"--distribute parts: {reason}")


def _validate_asynchrony(options: Options) -> None:
    if options.check and options.exchange in asynchronous() and not options.asynchrony.is_synchronous:
        others = ", or give --staleness 0" if options.exchange == "server" else ""
        raise UserError(
            f"--exchange {options.exchange}: trains another network each time, which --check would not find "
            f"in the reference: leave out --check{others}"
        )
    if options.elastic and options.exchange != "server":
        raise UserError("--elastic: goes with --exchange server")
    if options.elastic and (options.evaluate or options.check):
        raise UserError("--elastic: goes with training alone: leave out --evaluate and --check")
    if options.shards_kept > 1 and not options.elastic:
        raise UserError("--shards-kept: goes with --elastic")
