"""Shared by the programs of this folder: errors of one line, and the GPU that they need."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from pyrt.arguments import Parser
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


def read_names(
    parser: Parser, arguments: Sequence[str], metavar: str, kind: str, known: Collection[str]
) -> list[str]:
    """Read the names of a command line; all that are ``known`` where it has none.

    ``metavar`` stands for a name in the help, ``kind`` in the UserError for a name that is not known.
    """
    all_of_them = ", ".join(known)
    parser.add_argument("names", nargs="*", metavar=metavar, help=f"{all_of_them} (default: all)")
    names: list[str] = parser.parse_args(arguments).names or list(known)
    for name in names:
        if name not in known:
            parser.error(f"no {kind} is called {name}: there are {all_of_them}")
    return names


def require_gpu() -> int:
    """Count the GPUs. Raises UserError if there is none, or if something that their use needs is missing."""
    from pyrt.devices import usable_gpus  # it loads NumPy, for which an MPI job has an order

    gpus, missing = usable_gpus()
    if missing:
        raise UserError(f"needs an NVIDIA GPU: {missing}")
    return len(gpus)
