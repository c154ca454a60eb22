"""What a step costs under every sensible plan, and which is best, on a machine that one has or not::

    mpirun -n 4 python -m nn.autotune --hidden 4096,4096 --batch 8192
    python -m nn.autotune --hidden 4096,4096 --batch 65536 --ranks 1024 --rates h100-cluster
    python -m nn.autotune --net vgg16 --batch 256 --ranks 4 --rates h200

Without --data a known network is for the images that it is known for, --hidden for digits; others need it.
Without --rates the machine that this job runs on is measured, once; the ranks are those of the job unless
--ranks says more.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __package__ and __name__ == "__main__":
    # The package has loaded NumPy, whose BLAS must be told of this rank's share of the cores when MPI has
    # started, and before it is loaded (pyrt/job/__init__.py): begin again with nothing loaded.
    os.execv(sys.executable, [sys.executable, __file__, *sys.argv[1:]])
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import argparse
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyrt.arguments import Parser
from pyrt.errors import UserError, shown
from pyrt.job import Job, run

if TYPE_CHECKING:  # at run time only once MPI has started
    from nn.app.options import Options
    from nn.autotune.rates import Rates
    from nn.autotune.search import Search
    from nn.model.network import Network

WORDS = ("hidden", "net", "activation", "head", "data", "channels", "classes", "batch", "optimiser")
"""The options of train.py that say what is trained,"""

NUMBERS = ("dtype", "gemm", "conv", "math")
"""those that rates hold for,"""

MACHINE = ("device", "share_gpus", "exchange", "ranks_per_node")
"""and those of what is measured."""


def parse(arguments: Sequence[str]) -> tuple[Options, argparse.Namespace]:
    """Parse the command line: train.py's options, and our own, with the names of the former that are given.

    Raises UserError if it makes no sense.
    """
    from nn.app.command_line import OTHER_NAMES, add_option, file_name, whole_number, written_file
    from nn.app.options import Options
    from nn.autotune.rates import machines
    from pyrt.exchange.registry import asynchronous

    parser = Parser("python -m nn.autotune", __doc__, other_names=OTHER_NAMES)
    fields = {field.name: field for field in dataclasses.fields(Options)}
    shared = parser.add_argument_group("as for train.py")
    for name in (*WORDS, *NUMBERS, *MACHINE):
        add_option(shared, fields[name])
    add = parser.add_argument
    add("--inputs", type=whole_number, metavar="N", help="pixels of an image, without --data (default: 784)")
    add("--ranks", type=whole_number, metavar="P", help="GPUs (default: the ranks of this job)")
    add(
        "--rates",
        type=file_name,
        metavar="FILE",
        help=f"rates of a machine: a file, or {', '.join(machines())} (default: measure this one)",
    )
    add("--save-rates", type=written_file, metavar="FILE", help="write the rates, as JSON for --rates")
    add("--save", type=written_file, metavar="FILE", help="write the best plan, as JSON for train.py --plan")
    add("--operations", action="store_true", help="print each operation and move of the best plan too")
    wanted = vars(parser.parse_args(arguments))
    own = {
        name: wanted.pop(name) for name in ("inputs", "ranks", "rates", "save_rates", "save", "operations")
    }
    saved = [os.path.realpath(own[name]) for name in ("save", "save_rates") if own[name]]
    if len(set(saved)) < len(saved):
        raise UserError("--save, --save-rates: name a file of its own for each")
    options = Options(**wanted)
    if options.exchange in asynchronous():
        raise UserError(
            f"--exchange {options.exchange}: sums no gradients, and plans need the time of sums: leave it "
            "out; the table has rows for asynchronous ways all the same"
        )
    return options, argparse.Namespace(**own, given=frozenset(wanted))


def rates_of(options: Options, own: argparse.Namespace, job: Job) -> Rates:
    """Return the rates of the file, or of this job's machine. Collective. Raises UserError on all ranks."""
    from nn.autotune import rates

    if own.rates is None:
        return _measured(options, job)
    found = None
    with job.agree():
        if job.rank == 0:
            found = rates.load(own.rates)
            for name in NUMBERS:
                value, theirs = getattr(options, name), getattr(found, name)
                if name in own.given and value not in ("auto", theirs):
                    raise UserError(f"--{name} {value}: the rates of {shown(own.rates)} are for {theirs}")
    agreed: Rates = job.comm.bcast(found)
    return agreed


def _measured(options: Options, job: Job) -> Rates:
    from nn.autotune.listed_step import Task
    from nn.autotune.probe import ProbeContext, measured
    from nn.model.network import Network
    from pyrt.devices import open_device
    from pyrt.exchange.choose import choose

    device = open_device(options.device, job, options.share_gpus)
    for warning in device.warnings:
        print(f"warning: {warning}")
    with contextlib.closing(device.driver) as driver:
        way = choose(options.exchange, driver, job, options.ranks_per_node)
        numbers = {name: getattr(options, name) for name in NUMBERS}
        task = Task(Network.dense((1, 1), "sigmoid", "softmax"), 1, **numbers)
        return measured(ProbeContext(job, driver, way, task))


def search_of(options: Options, network: Network, ranks: int, rates: Rates) -> Search:
    """Make the search for the plan of a network; UserError where rates do not reach so many ranks."""
    from nn.autotune.listed_step import Task
    from nn.autotune.search import Search

    numbers = {name: getattr(rates, name) for name in NUMBERS}
    task = Task(network, options.batch, optimiser=options.make_optimiser(), **numbers)
    return Search(task, ranks, rates)


def main(job: Job) -> int:
    from nn.app.console import Console
    from nn.app.network_of_file import with_network_of_file
    from nn.app.network_on_paper import network_on_paper
    from nn.autotune.table import operations_table, table
    from nn.files.write import STDOUT, require_writable
    from nn.parallel import plan_files

    with contextlib.ExitStack() as stack:
        if job.rank > 0:  # only rank 0 prints
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        with job.agree():
            options, own = parse(sys.argv[1:])
            if STDOUT in (own.save, own.save_rates) and job.rank == 0:
                stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            for option, path in (("--save", own.save), ("--save-rates", own.save_rates)):
                if path is not None and job.rank == 0:
                    require_writable(option, path)
        options = with_network_of_file(options, job)
        with job.agree():
            # The data may be there on this rank alone.
            network = network_on_paper(options, own.given, own.inputs) if job.rank == 0 else None
        console = Console(speaking=job.rank == 0)
        with console.saying_log():
            rates = rates_of(options, own, job)
        with job.agree():
            if network is not None:
                search = search_of(options, network, own.ranks or job.size, rates)
                best = search.best()
                if own.save is not None:
                    plan_files.save(own.save, best)
                if own.save_rates is not None:
                    rates.save("--save-rates", own.save_rates)
                print(table(search, best, console.width))
                if own.operations:
                    print(operations_table(search, best, console.width))
    return 0


if __name__ == "__main__":
    run(main)
