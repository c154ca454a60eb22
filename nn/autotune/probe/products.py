"""Matrix products of a grid of sizes, in all layouts, as a step runs them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import cast

import numpy as np

from nn.autotune.listed_step import kernels_on
from nn.autotune.probe.clock import Clock, medians
from nn.autotune.probe.context import Extent, ProbeContext
from nn.autotune.probe.lender import Lender
from nn.autotune.rates import LAYOUTS, Products
from nn.launch.gemm.components import Components
from nn.launch.gemm.product import Product
from nn.program import operations
from nn.program.fuse import fuse
from nn.program.operations import FORWARD, Operation
from nn.program.step import bound_all
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver


def product_times(setting: ProbeContext, extent: Extent) -> Products:
    """Time products of all sizes. Collective."""
    sizes, clock = extent.products, Clock(setting.driver, setting.job)
    seconds: list[float] = []
    with closing(Lender(setting.driver)) as lender:
        driver = cast(Driver, lender)
        kernels = kernels_on(driver, setting.task)
        most = sizes[-1] ** 2
        # Of zeros a GPU makes more: they cost less power.
        numbers = np.random.default_rng(0).standard_normal(most).astype(setting.task.dtype)
        flat = [DeviceArray.from_host(driver, numbers) for _ in range(3)]
        for layout in LAYOUTS:
            transposed = layout[0] == "t", layout[1] == "t"
            for M, N, K in np.ndindex(*[len(sizes)] * 3):
                shape = sizes[M], sizes[N], sizes[K]
                operation = _product(flat, shape, transposed)
                with closing(Lender(setting.driver)) as beside:
                    take_components = partial(Components.empty, cast(Driver, beside))
                    # Operands are split first: a product of components that are zeros costs less.
                    *before, work = bound_all(fuse([operation], kernels, take_components), kernels)
                    seconds.append(clock.seconds(work, before))
    us = 1e6 * np.reshape(medians(setting.job, seconds), (len(LAYOUTS), *[len(sizes)] * 3))
    return Products(list(sizes), {name: times.tolist() for name, times in zip(LAYOUTS, us, strict=True)})


def _product(
    flat: Sequence[DeviceArray], sizes: tuple[int, int, int], transposed: tuple[bool, bool]
) -> Operation:
    """D = op(A) op(B) of matrices at the beginning of these."""
    M, N, K = sizes
    shapes = (M, N), (K, M) if transposed[0] else (M, K), (N, K) if transposed[1] else (K, N)
    D, A, B = (
        array.rows(0, rows * columns).reshape(rows, columns)
        for array, (rows, columns) in zip(flat, shapes, strict=True)
    )
    return operations.gemm("product", FORWARD, Product(D, A, B, *transposed))
