"""Rates for tests: of no machine, but fixed."""

from __future__ import annotations

import numpy as np

from nn.autotune.probe.context import Convolved, Extent
from nn.autotune.rates import KINDS, LAYOUTS, Link, Products, Rates
from pyrt.driver.null import DeviceProperties

STEPS = ("dense48,sigmoid,dense10", (12,), 64), ("conv3x3x4,relu,pool2,dense10", (6, 6, 2), 16)
QUICK = Extent((16, 32), Convolved(4, (1, 4), (1, 3), (2, 4)), STEPS, (1 << 12, 1 << 16))
"""What is measured in no time."""

HOPPER = DeviceProperties("a GPU", "sm_90a", 132, 232448)


def random_rates(
    seed: int, device: DeviceProperties | None = None, exchange: str = "peer", ranks_per_node: int = 8
) -> Rates:
    """Links from slow to fast, within nodes and across, products that are not smooth."""
    rng = np.random.default_rng(seed)

    def link() -> Link:
        return Link(float(rng.uniform(1, 50)), float(rng.uniform(0.1, 5)), float(10 ** rng.uniform(0, 2.5)))

    sizes = np.array([16, 256, 4096])
    flops = np.multiply.outer(np.multiply.outer(sizes, sizes), sizes)
    us = {layout: (rng.uniform(0.8, 1.2, (3, 3, 3)) * (1 + flops / 1e7)).tolist() for layout in LAYOUTS}
    return Rates(
        "random",
        device or DeviceProperties(),
        float(rng.uniform(1, 10)),
        float(10 ** rng.uniform(1, 3)),
        products=Products(sizes.tolist(), us),
        exchange=exchange,
        ranks_per_node=ranks_per_node,
        node={kind: link() for kind in KINDS},
        network={kind: link() for kind in KINDS},
    )
