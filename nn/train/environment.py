"""Describes what a run uses: ranks, devices, plan, exchange, versions; for its report and checkpoints."""

from __future__ import annotations

import platform
from collections import Counter
from typing import Any

import numpy as np

from nn.train.prepare import Prepared, gemm_version, replays_graphs
from pyrt.devices import gather_devices
from pyrt.job.cores import blas_threads
from pyrt.runtime import Runtime


def describe(prepared: Prepared, runtime: Runtime) -> dict[str, Any]:
    """Collect what the run uses. Collective."""
    problem, shard, groups = prepared.problem, prepared.shard, prepared.groups
    driver, job, settings, network = runtime.driver, runtime.job, problem.settings, problem.network
    devices = gather_devices(driver, job)
    nodes = job.comm.allreduce(job.node.rank == 0)
    of_rank = {
        "device": driver.name,
        "device_why": runtime.device.why,
        "blas_threads": blas_threads(),
        "graphs": replays_graphs(settings, driver),
        "gemm": gemm_version(settings, driver) if driver.has_kernels else "numpy",
    }
    of_worker = job.comm.allgather(of_rank)[-1]  # parameter servers, the first ranks, may be on the CPU
    return {
        "ranks": job.size,
        "helpers": prepared.fork.helpers if prepared.fork is not None else 0,
        "nodes": int(nodes),
        "devices": [name for _, name in devices],
        "device_counts": dict(Counter(name for _, name in dict.fromkeys(devices))),
        "mpi": job.library,
        "plan": str(shard.plan),
        "exchange": groups.all.name,
        "exchange_why": groups.all.why,
        "placement": prepared.rehearsal.placement,
        **of_worker,
        "network": str(network),
        "parameters": network.parameter_count,
        "layers": [
            {"layer": layer, "output": shape, "parameters": count} for layer, shape, count in network.table()
        ],
        "data": problem.dataset.name,
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
