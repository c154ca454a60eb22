"""Shared by the programs of this folder: errors of one line, and the GPU that they need."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from pyrt.errors import UserError
from pyrt.job.ending import drop_output


class WrongResult(UserError):
    """What was to be timed computes something else."""

    code = 1


def start(program: str, main: Callable[[Sequence[str]], int]) -> NoReturn:
    """Exit with what ``main`` returns of the command line; UserErrors are one line."""
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # who read the output has left, as head does
        code = drop_output()
    except UserError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        code = error.code
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def require_gpu() -> int:
    """Count the GPUs. Raises UserError if there is none, or if something that their use needs is missing."""
    from pyrt.devices import usable_gpus  # it loads NumPy, for which an MPI job has an order

    gpus, missing = usable_gpus()
    if missing:
        raise UserError(f"needs an NVIDIA GPU: {missing}")
    return len(gpus)
