"""What a machine does a second: measured by nn/autotune/probe, or written by hand for a machine one has not.

A file of rates is JSON with the fields of `Rates`. docs/explain/plans.md has their formulas.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nn.files.read import read_small
from nn.files.write import write_whole
from nn.launch.conv.convolution import Convolution, FilterGradient, InputGradient
from nn.launch.conv.versions import CONV_VERSIONS
from nn.launch.gemm.components import COMPONENTS
from nn.launch.gemm.mma import MMA_COMPONENTS
from nn.launch.gemm.versions import GEMM_VERSIONS, fastest_gemm
from nn.problem.settings import DTYPES
from pyrt.driver.null import DeviceProperties
from pyrt.errors import UserError, shown
from pyrt.exchange.registry import choices

GATHER, TRANSPOSE, REDUCE, SUM, EXCHANGE = KINDS = ("gather", "transpose", "reduce", "sum", "exchange")
"""What moves: parts to all, rows to columns or back, a sum to parts, a sum to all; and the exchange of
gradients, its sums and its update in it."""

LAYOUTS = ("nn", "nt", "tn")
"""Of a product: which of its operands are transposed."""

CONVOLUTIONS = tuple(work.kind for work in (Convolution, InputGradient, FilterGradient))
"""Those of a layer."""

_WORDS = {
    "exchange": ("local", *choices()),
    "dtype": DTYPES,
    "gemm": ("auto", *GEMM_VERSIONS),
    "conv": ("auto", *CONV_VERSIONS),
    "math": tuple(COMPONENTS),
}
"""What some fields may be."""

_ARCHITECTURE = re.compile("|emulated|sm_[0-9]{2,3}[a-z]?")

_LEAST, _MOST = 1e-15, 1e15
"""What is above 0 is no less, and nothing is more: what follows from a file are finite times above 0."""

MACHINES = Path(__file__).parent / "machines"
"""Rates that come with the project."""

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
        return _between((self.sizes,) * 3, (M, N, K), self.us[layout])


@dataclass(frozen=True)
class Convolutions:
    """Microseconds ``us[kind][windows][filters][pixels]``, by `CONVOLUTIONS`, of all three sizes ascending.

    Windows are those of all samples; pixels are the numbers of a window, its channels among them. Other sizes
    are predicted as those of `Products`.
    """

    windows: Sequence[int]
    filters: Sequence[int]
    pixels: Sequence[int]
    us: Mapping[str, Any]

    @property
    def axes(self) -> tuple[Sequence[int], ...]:
        return self.windows, self.filters, self.pixels

    def seconds(self, kind: str, sizes: tuple[int, int, int]) -> float:
        return _between(self.axes, sizes, self.us[kind])


def _between(axes: Sequence[Sequence[int]], sizes: Sequence[int], us: Any) -> float:
    """Return the seconds of work of these sizes, from its times on a grid."""
    corner, beyond = np.log(np.array(us, float)), 1.0
    for axis, size in zip(axes, sizes, strict=True):
        inside = min(max(size, axis[0]), axis[-1])
        place = float(np.interp(math.log(inside), np.log(axis), range(len(axis))))
        low = min(int(place), len(axis) - 1)
        high = min(low + 1, len(axis) - 1)
        corner = corner[low] + (place - low) * (corner[high] - corner[low])
        beyond *= max(1.0, size / axis[-1])
    return 1e-6 * float(np.exp(corner)) * beyond


@dataclass(frozen=True)
class Rates:
    """Of one rank's device, of its links to others of its node, and of those across nodes."""

    about: str
    """Where the numbers come from."""
    device: DeviceProperties
    operation_us: float
    """The least that an operation takes."""
    memory_gb_s: float
    """Of its memory, read or written."""
    passes_gb_s: Mapping[str, float] = field(default_factory=dict)
    """The same of operations that reach less or more, by `nn.autotune.cost.kind`."""
    products: Products | None = None
    convolutions: Convolutions | None = None
    """Where none are measured: they take as long as the products that they are."""
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
    conv: str = "auto"
    math: str = "float32"

    @property
    def overlaps(self) -> bool:
        """Whether kernels go on while something moves; NumPy's work is done by the thread that moves."""
        return bool(self.device.architecture)

    def product_seconds(self, M: int, N: int, K: int, layout: str, nbytes: int) -> float:
        """Predict the seconds of a product that reads and writes so many bytes."""
        if self.products is not None:
            return self.products.seconds(M, N, K, layout)
        return 1e-6 * self.operation_us + max(
            2e-12 * M * N * K / self.tflop_s, nbytes / self.memory_gb_s * 1e-9
        )

    def convolution_seconds(self, kind: str, sizes: tuple[int, int, int], nbytes: int) -> float:
        """Predict the seconds of a convolution of so many windows, filters, and pixels of a window."""
        if self.convolutions is not None:
            return self.convolutions.seconds(kind, sizes)
        windows, filters, pixels = sizes
        # P has a row a window: Z = P W', dP = dZ W, dW = dZ' P.
        M, N, K, layout = {
            Convolution.kind: (windows, filters, pixels, "nt"),
            InputGradient.kind: (windows, pixels, filters, "nn"),
            FilterGradient.kind: (filters, pixels, windows, "tn"),
        }[kind]
        return self.product_seconds(M, N, K, layout, nbytes)

    def pass_seconds(self, kind: str, nbytes: int) -> float:
        """Predict the seconds of an operation that is bound by so many bytes."""
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
    """Read the rates in a file, or of a name of `machines`. Raises UserError if there are none."""
    known = MACHINES / f"{path}.json"
    file = known if Path(path).name == str(path) and known.is_file() else path
    try:
        return parsed(json.loads(read_small(file, _LARGEST)))
    except OSError as error:
        raise UserError(
            f"--rates {shown(path)}: {error.strerror}: give a file of rates, or a name that --help lists"
        ) from None
    except (*MALFORMED, RecursionError) as error:
        raise UserError(
            f"--rates {shown(path)}: holds no rates ({error!r:.80}): see docs/explain/plans.md"
        ) from None


def machines() -> list[str]:
    """Name the machines whose rates come with the project."""
    return sorted(file.stem for file in MACHINES.glob("*.json"))


MALFORMED = (ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""What `parsed` raises."""


def parsed(content: dict[str, Any]) -> Rates:
    """Make `Rates` from JSON. Raises one of `MALFORMED` if it holds none."""
    values = {**content, "device": DeviceProperties(**content["device"])}
    if content.get("products") is not None:
        values["products"] = _products(Products(**content["products"]))
    if content.get("convolutions") is not None:
        values["convolutions"] = _convolutions(Convolutions(**content["convolutions"]))
    for name in ("node", "network"):
        links = {kind: Link(**link) for kind, link in content.get(name, {}).items()}
        if links and set(links) != set(KINDS):
            raise ValueError(f"{name} has not all of {', '.join(KINDS)}")
        for link in links.values():
            numbers = _is_number(link.us) and _is_number(link.message_us) and _is_number(link.gb_s, _LEAST)
            _require(numbers, f"a link of {name}")
        values[name] = links
    rates = Rates(**values)
    _require(isinstance(rates.about, str), "about")
    for name, least in (("operation_us", 0), ("memory_gb_s", _LEAST), ("tflop_s", 0), ("memory_gb", 0)):
        _require(_is_number(getattr(rates, name), least), name)
    _require(all(_is_number(rate, _LEAST) for rate in rates.passes_gb_s.values()), "passes_gb_s")
    _require(rates.products is not None or rates.tflop_s >= _LEAST, "products or tflop_s")
    _require(_is_count(rates.ranks_per_node) and rates.ranks_per_node > 0, "ranks_per_node")
    for name, words in _WORDS.items():
        _require(getattr(rates, name) in words, name)
    _require_device(rates.device)
    version = rates.gemm if rates.gemm != "auto" else fastest_gemm(rates.dtype, rates.device.architecture)
    _require(version != "mma" or rates.math in MMA_COMPONENTS, f"math {rates.math} of gemm mma")
    return rates


def _require_device(device: DeviceProperties) -> None:
    _require(isinstance(device.name, str), "name of device")
    _require(bool(_ARCHITECTURE.fullmatch(device.architecture)), "architecture")
    for name in ("multiprocessors", "shared_memory"):
        _require(_is_count(getattr(device, name)), name)


def _products(products: Products) -> Products:
    _require_grid("products", (products.sizes,) * 3, {name: products.us[name] for name in LAYOUTS})
    return products


def _convolutions(convolutions: Convolutions) -> Convolutions:
    times = {name: convolutions.us[name] for name in CONVOLUTIONS}
    _require_grid("convolutions", convolutions.axes, times)
    return convolutions


def _require_grid(what: str, axes: Sequence[Sequence[int]], us: Mapping[str, Any]) -> None:
    for axis in axes:
        sizes = list(axis)
        _require(all(map(_is_count, sizes)), f"sizes of {what}")
        _require(sizes == sorted(set(sizes)) and sizes[0] > 0, f"sizes of {what}")
    for name, given in us.items():
        times = np.array(given, float)
        fits = times.shape == tuple(map(len, axes)) and all(_is_number(time, _LEAST) for time in times.flat)
        _require(fits, f"{what} {name}")


def _is_number(value: object, least: float = 0.0) -> bool:
    """Read a number of JSON; no larger than sums of times can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= _MOST


def _is_count(value: object) -> bool:
    """Return whether it is a whole number from 0 to below 2^31, as a kernel's arguments are."""
    return type(value) is int and 0 <= value < 2**31


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)
