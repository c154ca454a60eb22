"""Matrix products of a grid of sizes, in all layouts, as a step runs them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import cast

import numpy as np

from nn import operations
from nn.fuse import fuse
from nn.operations import FORWARD, Operation
from nn.plan.paper import kernels_on
from nn.plan.probe.clock import Clock, bound, medians
from nn.plan.probe.lender import Lender
from nn.plan.probe.setting import Extent, Setting
from nn.plan.rates import LAYOUTS, Products
from nn.tensor_cores import TermsPool
from pyrt.driver import Driver
from pyrt.memory import DeviceArray


def product_times(setting: Setting, extent: Extent) -> Products:
    """The grid of all sizes. Collective."""
    sizes, clock = extent.products, Clock(setting.driver, setting.job)
    seconds: list[float] = []
    with closing(Lender(setting.driver)) as lender:
        driver = cast(Driver, lender)
        kernels = kernels_on(driver, setting.task)
        most = sizes[-1] ** 2
        # Of zeros a GPU makes more: they cost less power.
        numbers = np.random.default_rng(0).standard_normal(most).astype(setting.task.dtype)
        flat = [DeviceArray.from_host(driver, numbers) for _ in range(3)]
        pool = TermsPool(driver)
        for layout in LAYOUTS:
            transposed = layout[0] == "t", layout[1] == "t"
            for M, N, K in np.ndindex(*[len(sizes)] * 3):
                shape = sizes[M], sizes[N], sizes[K]
                operation = _product(flat, shape, transposed)
                *_, last = fuse([operation], kernels, pool)
                assert isinstance(last, Operation)
                seconds.append(clock.seconds(bound(last, kernels)))
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
    return operations.gemm("product", FORWARD, D, A, B, *transposed)
