"""pyrt: a small runtime for GPU kernels over MPI.

It gives pinned host buffers, device arrays, streams and events, kernels compiled at run time from
``.cu`` files, timed phases, and sums of arrays over the ranks that overlap with kernels. It knows
nothing of neural networks: bring kernels of your own. `start` gives a program all of it.

================ =======================================================================
``runtime``      what a program works with on one rank: `start`
``allreduce``    sums of an array over ranks
``job``          one MPI job: start, agreed errors, signals, the end of all ranks together
``driver``       what pyrt asks of a device, and the devices that answer (cuda, emulated, cpu, null)
``devices``      which GPU a rank takes
``arrays``       device arrays, pinned arrays, flat arenas with named views
``interop``      arrays given to NumPy, CuPy, PyTorch and their like, and taken from them
``streams``      the streams of a rank: upload, compute, beside, download
``kernels``      ``.cu`` files to launches: constants, compile cache, checked arguments
``graphs``       launches and copies captured once, replayed with one call; their phases
``exchange``     sums of gradients over ranks, and the update that follows
``redistribute`` matrices from one split over ranks to another
``mpi_probe``    a job of its own: does this MPI take device buffers, here?
``phases``       NVTX ranges, host and device times by name
``clock``        how long work takes on a device, by events around it
``cache``        where files are kept between runs, compiled kernels for this user alone
``workers``      threads that work beside the one which queues the device's work
``ledger``       what a device's memory is for
``log``          a line before work that takes seconds
``arguments``    command lines: mistakes in one line, with what was meant
``tables``       tables as wide as the terminal
================ =======================================================================

This module imports nothing, so that a program can start MPI and bound its BLAS threads (``pyrt.job``)
before NumPy loads.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrt.runtime import Runtime, start

__all__ = ["Runtime", "start"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load what is asked for, not before."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyrt import runtime

    return getattr(runtime, name)
