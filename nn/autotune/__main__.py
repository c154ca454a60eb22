"""What a step costs under every sensible plan, and which is best, on a machine that one has or not::

    mpirun -n 4 python -m nn.autotune --hidden 4096,4096 --batch 8192
    python -m nn.autotune --hidden 4096,4096 --batch 65536 --ranks 1024 \
        --rates nn/autotune/machines/h100-cluster.json

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
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyrt.arguments import Parser
from pyrt.errors import UserError, shown
from pyrt.job import Job, run

if TYPE_CHECKING:  # at run time only once MPI has started
    from nn.autotune.rates import Rates


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Raises UserError if it makes no sense."""
    from nn.app.command_line import OTHER_NAMES, file_name, written_file
    from nn.problem.settings import DTYPES
    from pyrt import devices
    from pyrt.exchange.registry import choices

    parser = Parser("python -m nn.autotune", __doc__, other_names=OTHER_NAMES)
    add = parser.add_argument
    add(
        "--hidden",
        type=_sizes,
        default=(512,),
        metavar="N[,N...]",
        help="units of the hidden layers (default: 512)",
    )
    add("--inputs", type=_count, default=784, metavar="N", help="pixels of an image (default: 784)")
    add("--classes", type=_count, default=10, metavar="N", help="classes of the labels (default: 10)")
    add("--batch", type=_count, default=3000, metavar="N", help="samples a step (default: 3000)")
    add("--ranks", type=_count, metavar="P", help="GPUs (default: the ranks of this job)")
    add("--rates", type=file_name, metavar="FILE", help="rates of a machine (default: measure this one)")
    add("--save-rates", type=written_file, metavar="FILE", help="write the rates, as JSON for --rates")
    add("--save", type=written_file, metavar="FILE", help="write the best plan, as JSON for train.py --plan")
    add("--operations", action="store_true", help="print each operation and move of the best plan too")
    add("--dtype", choices=DTYPES, help="type of all arithmetic (default: float32, or that of the rates)")
    add(
        "--device",
        choices=devices.CHOICES,
        default="auto",
        help="to measure, as for train.py (default: auto)",
    )
    share = argparse.BooleanOptionalAction
    add("--share-gpus", action=share, default=True, help="to measure, as for train.py")
    add("--exchange", choices=("auto", *choices()), default="auto", help="to measure, as for train.py")
    add("--ranks-per-node", type=_count, metavar="K", help="to measure, as for train.py")
    wanted = parser.parse_args(arguments)
    saved = [os.path.realpath(path) for path in (wanted.save, wanted.save_rates) if path]
    if len(set(saved)) < len(saved):
        raise UserError("--save, --save-rates: name a file of its own for each")
    return wanted


def _count(text: str) -> int:
    number = int(text)
    if not 0 < number < 2**31:
        raise ValueError
    return number


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_count(size) for size in text.split(","))


_count.__name__ = "whole number"  # argparse names the type in its error
_sizes.__name__ = "list of whole numbers"


def rates_of(wanted: argparse.Namespace, job: Job) -> Rates:
    """Return the rates of the file, or of this job's machine. Collective. Raises UserError on all ranks."""
    from nn.autotune import rates

    if wanted.rates is None:
        return _measured(wanted, job)
    found = None
    with job.agree():
        if job.rank == 0:
            found = rates.load(wanted.rates)
            if wanted.dtype not in (None, found.dtype):
                raise UserError(
                    f"--dtype {wanted.dtype}: the rates of {shown(wanted.rates)} are for {found.dtype}"
                )
    agreed: Rates = job.comm.bcast(found)
    return agreed


def _measured(wanted: argparse.Namespace, job: Job) -> Rates:
    from nn.autotune.listed_step import Task
    from nn.autotune.probe import ProbeContext, measured
    from nn.model.network import Network
    from pyrt.devices import open_device
    from pyrt.exchange.choose import choose

    device = open_device(wanted.device, job, wanted.share_gpus)
    for warning in device.warnings:
        print(f"warning: {warning}")
    with contextlib.closing(device.driver) as driver:
        way = choose(wanted.exchange, driver, job, wanted.ranks_per_node)
        task = Task(Network.dense((1, 1), "sigmoid", "softmax"), 1, wanted.dtype or "float32")
        return measured(ProbeContext(job, driver, way, task))


def main(job: Job) -> int:
    from nn.app.console import Console
    from nn.app.options import Options
    from nn.autotune.listed_step import Task
    from nn.autotune.search import Search
    from nn.autotune.table import operations_table, table
    from nn.files.write import STDOUT, require_writable
    from nn.model.network import Network
    from nn.parallel import plan_files

    with contextlib.ExitStack() as stack:
        if job.rank > 0:  # only rank 0 prints
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        with job.agree():
            wanted = parse(sys.argv[1:])
            if STDOUT in (wanted.save, wanted.save_rates) and job.rank == 0:
                stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            ranks = wanted.ranks or job.size
            network = Network.dense((wanted.inputs, *wanted.hidden, wanted.classes), "sigmoid", "softmax")
            for option, path in (("--save", wanted.save), ("--save-rates", wanted.save_rates)):
                if path is not None and job.rank == 0:
                    require_writable(option, path)
        console = Console(speaking=job.rank == 0)
        with console.saying_log():
            rates = rates_of(wanted, job)
        with job.agree():
            if job.rank == 0:
                optimiser = Options().make_optimiser()  # as train.py has it
                task = Task(network, wanted.batch, rates.dtype, optimiser, rates.gemm, rates.math)
                search = Search(task, ranks, rates)
                best = search.best()
                if wanted.save is not None:
                    plan_files.save(wanted.save, best)
                if wanted.save_rates is not None:
                    rates.save("--save-rates", wanted.save_rates)
                print(table(search, best, console.width))
                if wanted.operations:
                    print(operations_table(search, best, console.width))
    return 0


if __name__ == "__main__":
    run(main)
