"""Counters of the hardware for each version of the product: which bottleneck each idea takes away."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING

from experiments import figures, ncu
from experiments.study import Figure, Point, Row, Section, Setup, Table

if TYPE_CHECKING:
    import pandas as pd

COUNTED = "counted"
"""The name in place of a product's."""

SIZES = 3000, 512, 784
"""M, N and K of the product that is counted: the first one of a step of 784-512-10, batch 3000."""

KERNELS = "regex:^(gemm|layer)_"
"""Kernels of products; the first launch of a step is the one that is counted."""

METRICS = {
    "gpu__time_duration.sum": "seconds",
    "dram__bytes_read.sum": "dram",
    "lts__t_bytes.sum": "l2",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": "wavefronts",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
    "launch__registers_per_thread": "registers",
}
"""Counters of Nsight Compute, and our names of them; docs/howto/profiling.md says what each tells."""

ALIKE = 0.05
"""Relative difference up to which times or bytes are called equal."""

WAVEFRONT = 128
"""Bytes at most that shared memory moves at once for a warp."""

IDEAS = {
    "naive": "one thread an element",
    "shared": "tiles in shared memory",
    "register": "many results a thread",
    "block": "a block of results a thread",
    "vector": "16 bytes at a time",
    "warp": "a tile for each warp",
    "tiled": "loads that overlap arithmetic",
    "mma": "tensor cores, operands as they are",
    "wgmma": "tensor cores that fetch from shared memory",
}
"""The idea of each version, as the sections of docs/explain/gemm.md are called."""

WAYS = {"dram_mb": "device memory", "l2_mb": "L2", "shared_mb": "shared memory"}
"""Ways of bytes, by column."""


def points() -> list[Point]:
    """List a point for each version, if there is Nsight Compute."""
    common = {"product": COUNTED, **dict(zip("MNK", SIZES, strict=True)), "device": "cuda"}
    return [{**common, "version": version} for version in IDEAS] if shutil.which("ncu") else []


def missing() -> list[str]:
    """Say what the study leaves out where there is no Nsight Compute."""
    if shutil.which("ncu"):
        return []
    return ["bytes and occupancy of each version: Nsight Compute (ncu) is not installed"]


def measure(version: str) -> list[Row]:
    """Return the counters of the product by one version. Raises UserError where ncu cannot read them."""
    from experiments.counting import step_words

    batch, hidden, _ = SIZES
    (launch,) = ncu.launches(step_words(hidden, batch, version), KERNELS, METRICS, most=1)
    counts = launch.counts
    return [
        {
            "us": 1e6 * counts["seconds"],
            "dram_mb": 1e-6 * counts["dram"],
            "l2_mb": 1e-6 * counts["l2"],
            "shared_mb": 1e-6 * WAVEFRONT * counts["wavefronts"],
            "occupancy": counts["occupancy"],
            "registers": counts["registers"],
        }
    ]


def section(rows: pd.DataFrame, setup: Setup, result: Section) -> None:
    """Add what the counters of the versions say, in the order of the ladder."""
    rows = rows.set_index("version").reindex([version for version in IDEAS if version in set(rows.version)])
    result.find(
        "counters",
        *(
            _change(before, after, rows.loc[before], rows.loc[after])
            for before, after in itertools.pairwise(rows.index)
        ),
    )
    result.figures.append(_figure(rows, setup))
    names = {
        "us": "us",
        **{column: f"{way}, MB" for column, way in WAYS.items()},
        "occupancy": "occupancy, %",
        "registers": "registers a thread",
    }
    table = rows[[*names]].rename(columns=names)
    table.insert(0, "idea", [IDEAS[version] for version in rows.index])
    caption = f"The first product of a step, {_sizes()}, by the counters of the hardware."
    result.tables.append(Table(caption, table.rename_axis("version").reset_index()))


def _sizes() -> str:
    return " x ".join(map(str, SIZES))


def _change(before: str, after: str, old: pd.Series, new: pd.Series) -> str:
    """Say what a version changed: its time, the bytes that fell most, its occupancy."""
    from experiments.page import cell

    ratio = old.us / new.us
    faster = f"{ratio:.2f} times as fast as" if ratio >= 1 else f"{1 / ratio:.2f} times as slow as"
    if abs(ratio - 1) < ALIKE:
        faster = "about as fast as"
    said = f"{after} ({IDEAS[after]}) is {faster} {before}"
    fell = {column: old[column] / new[column] for column in WAYS if new[column] > 0 < old[column]}
    most = max(fell, key=lambda column: fell[column], default="")
    if most and fell[most] > 1 + ALIKE:
        said += f"; of the bytes those of {WAYS[most]} fall most, {cell(old[most])} to {cell(new[most])} MB"
    else:
        said += "; it moves as many bytes"
    return f"{said}; occupancy {old.occupancy:.0f} to {new.occupancy:.0f} %."


def _figure(rows: pd.DataFrame, setup: Setup) -> Figure:
    figure, axes = figures.canvas()
    places = range(len(rows))
    for number, (column, way) in enumerate(WAYS.items()):
        axes.plot(places, rows[column].where(rows[column] > 0), label=way, **figures.dots(number))
    M, N, K = SIZES
    operands = 4e-6 * (M * K + K * N + M * N)
    axes.axhline(operands, color="black", linestyle=":", label="operands and result, once")
    axes.set_xticks(places, list(rows.index), rotation=30)
    axes.set_ylabel("MB moved")
    figures.plain_log(axes, "y")
    figure.legend(loc="outside upper center", ncols=2)
    caption = (
        f"Bytes that the product {_sizes()} moves, by version, as ncu counts them: read from device memory, "
        f"through L2, and in shared memory by loads and stores of threads ({WAVEFRONT} bytes a wavefront; "
        "what tensor cores read there by themselves is not in it)."
    )
    return Figure(figures.save(figure, setup.folder, "counters"), caption)
