"""pyrt: a small runtime for GPU kernels over MPI.

It gives pinned host buffers, device arrays, streams and events, kernels compiled at run time from
``.cu`` files, timed phases, and sums of gradients over the ranks that overlap with kernels. It knows
nothing of neural networks: bring kernels of your own.

============== =======================================================================
``job``        one MPI job: start, agreed errors, signals, the end of all ranks together
``driver``     what pyrt asks of a device, and the devices that answer (cuda, emulated, cpu)
``devices``    which GPU a rank takes
``alike``      finds ranks that run other code, versions or options than the others
``memory``     device arrays, pinned arrays, flat arenas with named views
``streams``    the three streams of a rank: upload, compute, download
``cache``      where files are kept between runs, compiled kernels for this user alone
``kernels``    ``.cu`` files to launches: constants, compile cache, checked arguments
``graphs``     launches and copies captured once, replayed with one call; their phases
``clock``      how long work takes on a device, by events around it
``phases``     NVTX ranges, host and device times by name
``log``        a line before work that takes seconds
``arguments``  command lines: mistakes in one line, with what was meant
``started``    when this process and its mpirun began
``exchange``   sums of gradients over ranks, and the update that follows
``probe``      a job of its own: does this MPI take device buffers, here?
``watchdog``   ends this rank where another one of its node is gone
``stall``      notices that this rank makes no progress
============== =======================================================================

This module imports nothing, so that a program can start MPI and bound its BLAS threads (``pyrt.job``)
before NumPy loads.
"""

__version__ = "0.1.0"
