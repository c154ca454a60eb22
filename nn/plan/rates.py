"""What a machine does a second: measured by nn/plan/probe.py, or written by hand for a machine one has not.

A file of rates is JSON with the fields of `Rates`. docs/plans.md has their formulas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nn.data.files import shown
from nn.files import write_whole
from nn.gemm_versions import GEMM_VERSIONS
from nn.options import DTYPES
from nn.plan.paper import Device
from nn.tensor_cores import TERMS
from pyrt import exchange
from pyrt.errors import UserError

GATHER, TRANSPOSE, REDUCE, SUM, EXCHANGE = KINDS = ("gather", "transpose", "reduce", "sum", "exchange")
"""What moves: parts to all, rows to columns or back, a sum to parts, a sum to all; and the exchange of
gradients, its sums and its update in it."""

LAYOUTS = ("nn", "nt", "tn")
"""Of a product: which of its operands are transposed."""

_WORDS = {
    "exchange": ("local", *exchange.CHOICES),
    "dtype": DTYPES,
    "gemm": ("auto", *GEMM_VERSIONS),
    "math": tuple(TERMS),
}
"""What some fields may be."""

_LARGEST = 1 << 20
"""Bytes of a file that may hold rates."""


@dataclass(frozen=True)
class Link:
    """Seconds = us + message_us * messages + bytes / gb_s, of what a rank sends."""

    us: float
    message_us: float
    gb_s: float

    def seconds(self, nbytes: float, messages: float) -> float:
        return 1e-6 * (self.us + self.message_us * messages) + nbytes / self.gb_s * 1e-9


@dataclass(frozen=True)
class Products:
    """Microseconds ``us[layout][m][n][k]`` of products of ``sizes``, ascending, M, N and K each one of them.

    Between them times are interpolated in logarithms, a straight line in each of the three; smaller ones
    take as long as at the edge; larger ones longer in proportion.
    """

    sizes: Sequence[int]
    us: Mapping[str, Any]

    def seconds(self, M: int, N: int, K: int, layout: str) -> float:
        corner, beyond = np.log(np.array(self.us[layout], float)), 1.0
        for size in (M, N, K):
            place, ratio = self._place(size)
            low = min(int(place), len(self.sizes) - 1)
            high = min(low + 1, len(self.sizes) - 1)
            corner = corner[low] + (place - low) * (corner[high] - corner[low])
            beyond *= ratio
        return 1e-6 * float(np.exp(corner)) * beyond

    def _place(self, size: int) -> tuple[float, float]:
        """Where a size lies among those of the grid, and how many times the largest it is."""
        inside = min(max(size, self.sizes[0]), self.sizes[-1])
        place = np.interp(math.log(inside), np.log(self.sizes), range(len(self.sizes)))
        return float(place), max(1.0, size / self.sizes[-1])


@dataclass(frozen=True)
class Rates:
    """Of one rank's device, of its links to others of its node, and of those across nodes."""

    about: str
    """Where the numbers come from."""
    device: Device
    operation_us: float
    """The least that an operation takes."""
    memory_gb_s: float
    """Of its memory, read or written."""
    passes_gb_s: Mapping[str, float] = field(default_factory=dict)
    """The same of operations that reach less or more, by `nn.plan.cost.kind`."""
    products: Products | None = None
    tflop_s: float = 0.0
    """Where no products are measured: what they reach, of flops as they count in the network."""
    exchange: str = "host"
    """The way of the exchange of gradients, and of all else that moves in a node."""
    ranks_per_node: int = 8
    node: Mapping[str, Link] = field(default_factory=dict)
    """By `KINDS`: of the ranks of a node."""
    network: Mapping[str, Link] = field(default_factory=dict)
    """By `KINDS`: across nodes; empty where there is but one."""
    memory_gb: float = 0.0
    """That a rank has for its arrays; 0: not known."""
    dtype: str = "float32"
    gemm: str = "auto"
    math: str = "float32"

    @property
    def overlaps(self) -> bool:
        """Whether kernels go on while something moves; NumPy's work is done by the thread that moves."""
        return bool(self.device.architecture)

    def product_seconds(self, M: int, N: int, K: int, layout: str, nbytes: int) -> float:
        """Of a product that reads and writes so many bytes."""
        if self.products is not None:
            return self.products.seconds(M, N, K, layout)
        return 1e-6 * self.operation_us + max(
            2e-12 * M * N * K / self.tflop_s, nbytes / self.memory_gb_s * 1e-9
        )

    def pass_seconds(self, kind: str, nbytes: int) -> float:
        """Of an operation that moves so many bytes and does little else."""
        rate = self.passes_gb_s.get(kind, self.memory_gb_s)
        return 1e-6 * self.operation_us + nbytes / rate * 1e-9

    def require_reach(self, ranks: int) -> None:
        """UserError where they know nothing of links that so many ranks need."""
        missing = ranks > 1 and not self.node and "within a node"
        if ranks > self.ranks_per_node and not self.network:
            missing = f"across nodes of {self.ranks_per_node} rank(s)"
        if missing:
            raise UserError(f"--ranks {ranks}: the rates have no links {missing}: give --rates FILE that has")

    def save(self, option: str, path: Path) -> None:
        """Whole or not at all."""
        text = json.dumps(asdict(self), indent=1)
        write_whole(option, path, lambda file: file.write(f"{text}\n".encode()))


def load(path: Path) -> Rates:
    """The rates in a file; UserError for one that holds none."""
    try:
        with path.open("rb") as file:
            return parsed(json.loads(file.read(_LARGEST)))
    except OSError as error:
        raise UserError(f"--rates {shown(path)}: {error.strerror}: give a file of rates") from None
    except (*MALFORMED, RecursionError) as error:
        raise UserError(f"--rates {shown(path)}: holds no rates ({error!r:.80}): see docs/plans.md") from None


MALFORMED = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""What `parsed` raises."""


def parsed(content: dict[str, Any]) -> Rates:
    """From JSON; one of `MALFORMED` for what is not `Rates`."""
    values = {**content, "device": Device(**content["device"])}
    if content.get("products") is not None:
        values["products"] = _products(Products(**content["products"]))
    for name in ("node", "network"):
        links = {kind: Link(**link) for kind, link in content.get(name, {}).items()}
        if links and set(links) != set(KINDS):
            raise ValueError(f"{name} has not all of {', '.join(KINDS)}")
        for link in links.values():
            _require(link.us >= 0 and link.message_us >= 0 and link.gb_s > 0, f"a link of {name}")
        values[name] = links
    rates = Rates(**values)
    _require(rates.operation_us >= 0 and rates.memory_gb_s > 0, "operation_us, memory_gb_s")
    _require(all(rate > 0 for rate in rates.passes_gb_s.values()), "passes_gb_s")
    _require(rates.products is not None or rates.tflop_s > 0, "products or tflop_s")
    _require(int(rates.ranks_per_node) == rates.ranks_per_node > 0, "ranks_per_node")
    _require(rates.memory_gb >= 0, "memory_gb")
    for name, choices in _WORDS.items():
        _require(getattr(rates, name) in choices, name)
    for name in ("multiprocessors", "shared_memory"):
        _require(getattr(rates.device, name) >= 0, name)
    return rates


def _products(products: Products) -> Products:
    sizes = list(products.sizes)
    _require(sizes == sorted(set(sizes)) and sizes[0] > 0, "sizes of products")
    for layout in LAYOUTS:
        times = np.array(products.us[layout], float)
        _require(times.shape == (len(sizes),) * 3 and bool((times > 0).all()), f"products {layout}")
    return products


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)
