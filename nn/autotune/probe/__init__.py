"""What this machine does a second, measured in some seconds by this job, and kept in the cache.

================ ====================================================================================
``context``      what is measured, and how large it is on each kind of device
``passes``       operations that are neither products nor convolutions
``products``     matrix products
``convolutions`` forward, to the input and to the filters
``links``        what moves between ranks, the exchange of gradients among it
``clock``        how long a piece of work takes
``lender``       memory for all that
================ ====================================================================================

Operations, products and convolutions run as a step runs them; what moves goes by the very links and exchange
that training takes, in groups of all sizes that a plan may have here, all of them at work.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nn.autotune.listed_step import kernels_on
from nn.autotune.probe.context import EXTENTS, Extent, ProbeContext
from nn.autotune.probe.convolutions import convolution_times
from nn.autotune.probe.links import LinkProbe
from nn.autotune.probe.passes import pass_rates
from nn.autotune.probe.products import product_times
from nn.autotune.rates import MALFORMED, Rates, parsed
from nn.launch.kernels import Kernels
from pyrt.cache import cache_folder
from pyrt.devices import sharing
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.log import log

VERSION = 2
"""Of what is measured, and of the file: rates that an older one has left are measured again."""


def measured(setting: ProbeContext) -> Rates:
    """Return the rates of this job's machine, cached or measured now. Collective, same on every rank."""
    key = _key(setting)
    with setting.job.agree():
        folder = cache_folder("rates")
    file = folder / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"
    kept = setting.job.comm.bcast(_read(file) if setting.job.rank == 0 else None)
    if kept is not None:
        return kept
    log.info("measuring this machine, for its plans (not in the cache yet; some seconds)")
    rates = probe(setting)
    if setting.job.rank == 0:
        with suppress(OSError):  # a cache that cannot be written: they are measured again next time
            _write(file, key, rates)
    return rates


def _key(setting: ProbeContext) -> dict[str, object]:
    """Describe the machine and the work that rates hold for. Collective."""
    job, task = setting.job, setting.task
    shared = sharing(setting.driver, job)
    return {
        **({"sharing": shared} if shared else {}),
        "version": VERSION,
        "devices": sorted(job.comm.allgather(f"{setting.driver.name}: {setting.driver.device_name}")),
        "ranks a node": sorted(job.comm.allgather(setting.way.node.size)),
        "cores": job.comm.bcast(job.cores),
        "exchange": setting.way.name,
        "mpi": job.library,
        "numbers": [task.dtype, task.gemm, task.conv, task.math],
    }


def _read(file: Path) -> Rates | None:
    try:
        return parsed(json.loads(file.read_text())["rates"])
    except (OSError, *MALFORMED):  # not there, or not ours
        return None


def _write(file: Path, key: Mapping[str, object], rates: Rates) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps({"key": key, "rates": asdict(rates)}, indent=1))
    unfinished.rename(file)


def probe(setting: ProbeContext) -> Rates:
    """Measure all. Collective: the same on every rank."""
    driver, kernels = setting.driver, _kernels(setting)
    measures = _measure(setting, EXTENTS[driver.name], kernels)
    passes = measures["passes_gb_s"]
    return Rates(
        f"measured by {setting.job.size} rank(s), {setting.job.library}",
        DeviceProperties.of(driver),
        **measures,
        memory_gb_s=passes.get("step", max(passes.values(), default=1.0)),
        exchange=setting.way.name,
        ranks_per_node=setting.way.node.size,
        memory_gb=driver.free_memory() * 1e-9 if driver.name == "cuda" else 0.0,
        dtype=setting.task.dtype,
        gemm=kernels.gemm_version if kernels is not None else "auto",
        conv=kernels.conv_version if kernels is not None else "auto",
        math=setting.task.math,
    )


def _measure(setting: ProbeContext, extent: Extent, kernels: Kernels | None) -> dict[str, Any]:
    """Measure operations, and links within a node and across nodes: fields of `Rates`. Collective."""
    least, passes = pass_rates(setting, extent)
    products, convolutions = product_times(setting, extent), convolution_times(setting, extent)
    links = LinkProbe(setting, extent, kernels)
    return {
        "operation_us": least * 1e6,
        "passes_gb_s": passes,
        "products": products,
        "convolutions": convolutions,
        "node": links.fitted(size for size in _divisors(setting.way.node.size) if size > 1),
        "network": links.across(),
    }


def _kernels(setting: ProbeContext) -> Kernels | None:
    """Return the kernels to measure, compiled by one rank a node; None where NumPy computes. Collective."""
    job, driver = setting.job, setting.driver
    with job.agree():
        kernels = kernels_on(driver, setting.task)
    if kernels is None:
        return None
    null = NullDriver.like(driver)
    _measure(replace(setting, driver=null), EXTENTS[driver.name], kernels_on(null, setting.task))
    wanted = job.node.gather(list(null.sources))
    with job.agree():
        if wanted is not None:
            kernels.library.compile_sources(source for sources in wanted for source in sources)
    return kernels


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
