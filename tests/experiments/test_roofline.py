"""experiments/roofline.py: points, counts of a real run, formulas by hand, the section of made-up rows."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections import Counter

import pytest

pytest.importorskip("pandas", reason="make test installs what the report needs")
pytest.importorskip("matplotlib")

import pandas as pd

from experiments import counting, roofline
from experiments import ncu as ncu_runs
from experiments.roofline_figures import BETTER, COURSE
from experiments.roofs import Known, Level, course_rate, fitted, roof
from experiments.study import FAILED, FULL, SMALL, Setup
from nn.autotune.cost import Costing
from pyrt.errors import UserError
from pyrt.exchange.registry import exchanges
from pyrt.job import join
from tests.nn.autotune.rates import HOPPER, random_rates

KINDS = ("rates", "step", "streamed", "transfers", "counted", "counters")


def setup_of(folder, size=SMALL, gpus=0, cores=2):
    return Setup(size, gpus, cores, True, folder)


@pytest.fixture
def ncu(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


@pytest.mark.parametrize(("size", "gpus"), [(SMALL, 0), (FULL, 0), (SMALL, 2), (FULL, 1), (FULL, 4)])
def test_points_are_apart_and_begin_with_the_rates(tmp_path, size, gpus, ncu):
    points = roofline.points(setup_of(tmp_path, size, gpus))
    assert points[0]["kind"] == "rates"
    assert len({tuple(sorted(point.items())) for point in points}) == len(points)
    assert all(set(point) <= set(roofline.COLUMNS) for point in points)
    most = gpus or 2
    assert {point["ranks"] for point in points} == {1, most}
    # Rates before all that reads them, and one job for each number of ranks.
    ranks = [point["ranks"] for point in points]
    assert ranks == sorted(ranks, reverse=True)
    kinds = {point["kind"] for point in points}
    assert kinds == set(KINDS) if gpus else kinds == set(KINDS) - {"streamed", "counters"}


def test_a_gpu_takes_the_sizes_that_are_asked_for(tmp_path, ncu):
    points = roofline.points(setup_of(tmp_path, FULL, 2))
    steps = [point for point in points if point["kind"] == "step" and point["ranks"] == 2]
    assert {point["hidden"] for point in steps} == {128, 256, 512, 1024, 2048, 4096}
    assert {point["batch"] for point in steps} == {750, 3000, 12000, 48000}
    assert len(steps) == 24
    assert all(point["device"] == "cuda" and "threads" not in point for point in steps)
    assert {point["device"] for point in points if point["kind"] == "counted"} == {"cpu", "cuda"}


def test_a_core_a_rank_on_the_cpu(tmp_path):
    assert {point["threads"] for point in roofline.points(setup_of(tmp_path))} == {1}


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "there is none" in " ".join(roofline.missing(setup_of(tmp_path)))
    one_gpu = roofline.missing(setup_of(tmp_path, FULL, 1))
    assert "ncu" in one_gpu[0] and "one GPU" in one_gpu[1]
    assert all(point["kind"] != "counters" for point in roofline.points(setup_of(tmp_path, FULL, 1)))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert roofline.missing(setup_of(tmp_path, FULL, 2)) == []


POINT = {
    **{"kind": "counted", "hidden": 12, "batch": 20, "ranks": 1, "device": "cpu"},
    **{"placement": "auto", "exchange": "host"},
}


def test_what_a_run_does_is_counted():
    """784-12-10, batch 20: by hand what NumPy is given, and what a batch's pixels and labels take."""
    rows = {row["what"]: row for row in counting.measure_counts(POINT, join())}
    for name, flops in (
        ("forward GEMM 1", 2 * 20 * 12 * 784),
        ("forward GEMM 2", 2 * 20 * 10 * 12),
        ("backward GEMM 1", 2 * 20 * 10 * 12),
        ("backward GEMM 2", 2 * 20 * 10 * 12),
        ("backward GEMM 3", 2 * 20 * 12 * 784),
    ):
        assert (rows[name]["counted"], rows[name]["listed"]) == (flops, flops)
    assert rows[counting.UPLOAD]["counted"] == rows[counting.UPLOAD]["listed"] == 20 * (784 + 4)
    assert rows[counting.LOSSES]["counted"] == 32 * 4
    assert set(rows) == {
        *("forward GEMM 1", "forward GEMM 2", "backward GEMM 1", "backward GEMM 2", "backward GEMM 3"),
        *(counting.UPLOAD, counting.LOSSES),
    }


def test_products_that_are_not_listed_are_told():
    listed = counting.listed_step(POINT, 1)
    counted = Counter({(20, 12, 784): 1, (3, 4, 5): 2})
    rows = {row["what"]: row for row in counting.compared(listed, counted, POINT, 1)}
    assert rows[counting.UNLISTED]["counted"] == 2 * 2 * 3 * 4 * 5
    assert rows["forward GEMM 1"]["counted"] == 2 * 20 * 12 * 784
    assert rows["backward GEMM 3"]["counted"] == 0


def test_the_products_of_a_gpu_are_listed_as_it_does_them():
    """Expect dW2 before dA1, unlike in NumPy, if the activations' gradient has a kernel of its own."""
    listed = counting.products(counting.listed_step(POINT, 1, HOPPER, gemm="tiled"))
    assert [product[1:4] for product in listed] == [
        *((20, 12, 784), (20, 10, 12)),
        *((10, 12, 20), (20, 12, 10), (12, 784, 20)),
    ]


class FakeComm:
    rank, size = 1, 3

    def Dup(self):
        return self

    def __getattr__(self, name):
        return lambda *arguments: name


@pytest.mark.parametrize("copies", [0, 1])
def test_bytes_for_mpi_are_counted(copies):
    counted = Counter()
    comm = counting.CountingComm(FakeComm(), counted, 4)
    comm = comm.Dup() if copies else comm
    send = pd.Series(range(6), dtype="float32").to_numpy()
    assert comm.Iallreduce(send, send) == "Iallreduce"
    comm.Ialltoallv([send, [1, 2, 3], [0, 1, 3]], None)
    comm.Iallgatherv(None, [send, [3, 2, 1], [0, 3, 5]])
    assert counted == {counting.SUM: 24, counting.SHARDS: 4 * (1 + 3) + 4 * 2 * 2}


def csv_of(launches):
    """As Nsight Compute prints it, between what the program says."""
    lines = ["==PROF== Connected to process 7", "epoch 1/1  loss 2.3", '"ID","Process ID","Process Name"']
    for number, (grid, counters) in enumerate(launches):
        for metric, unit, value in counters:
            cells = [str(number), "7", "python3", "127.0.0.1", "gemm_tiled", "1", "15", "(128, 1, 1)", grid]
            cells += ["0", "9.0", "Command line profiler metrics", metric, unit, value]
            lines.append(",".join(f'"{cell}"' for cell in cells))
    return "\n".join(lines)


FFMA, READ, TIME = counting.METRICS


def test_counters_are_read_in_any_unit():
    text = csv_of(
        [
            ("(16, 8, 1)", [(FFMA, "inst", "419,430,400"), (READ, "Mbyte", "2.5"), (TIME, "us", "45.1")]),
            ("(1, 1, 1)", [(FFMA, "inst", "7"), (READ, "byte", "96"), (TIME, "nsecond", "900")]),
        ]
    )
    first, second = ncu_runs.read(text, counting.METRICS)
    assert (first.kernel, first.grid) == ("gemm_tiled", (16, 8, 1))
    assert first.counts == pytest.approx({"ffma": 419430400, "read": 2.5e6, "seconds": 45.1e-6})
    assert second.counts == pytest.approx({"ffma": 7, "read": 96, "seconds": 0.9e-6})


def launches_of(listed):
    return [
        ncu_runs.Launch(
            "gemm_tiled",
            (-(-product.M // 64), -(-product.N // 64), 1),
            {"ffma": product.flops, "read": product.bytes_read / 2, "seconds": 1e-5},
        )
        for product in listed
    ]


def test_counters_are_held_against_the_products_in_their_order():
    listed = counting.products(counting.listed_step({**POINT, "hidden": 100, "batch": 1000}, 1))
    assert listed[0][:4] == ("forward GEMM 1", 1000, 100, 784)
    rows = counting.counters_compared(listed, [*launches_of(listed), *launches_of(listed[:1])])
    assert len(rows) == 10
    assert all(row["counted"] == 2 * row["listed"] for row in rows if row["unit"] == counting.FLOP)
    assert all(row["counted"] == row["listed"] / 2 for row in rows if row["unit"] == counting.BYTE)
    assert rows[1]["listed"] == 4 * (1000 * 784 + 100 * 784)
    with pytest.raises(UserError, match="is not backward GEMM"):
        counting.counters_compared(listed, [*launches_of(listed[:2]), *launches_of(listed[-1:]) * 3])
    with pytest.raises(UserError, match="counted 4 products"):
        counting.counters_compared(listed, launches_of(listed)[:4])


def test_the_course_adds_times_and_a_roof_takes_the_longer():
    # 100 flops of 10 bytes: 0.1 s at 1000 flop/s and 0.4 s at 25 B/s.
    assert course_rate(10, 1000, 25) == pytest.approx(100 / 0.5)
    assert roof(10, 1000, 25) == 250
    assert roof(100, 1000, 25) == 1000


def test_a_line_through_transfers():
    sizes = [1e4, 1e6, 1e7]
    assert fitted(sizes, [5 + size / 20e3 for size in sizes]) == pytest.approx((5, 20))
    assert fitted(sizes, [size / 20e3 for size in sizes]) == pytest.approx((0, 20), abs=1e-6)
    assert fitted([1e6], [100]) == pytest.approx((0, 10))
    latency, rate = fitted([1e6, 2e6], [10, 40])  # through the origin, where no latency would do
    assert latency == 0 and 2e6 / 40e3 < rate < 1e6 / 10e3


LINK = 100.0


def rows_of(folder, gpus):
    """A table as a machine would give that takes 2 us more than the cost model says for every step."""
    setup = setup_of(folder, FULL, gpus)
    rates = random_rates(0, HOPPER)
    found = []
    for point in roofline.points(setup):
        ranks = point["ranks"]
        plain = counting.listed_step(point, ranks)
        moved = counting.transfers(plain, ranks)
        if point["kind"] == "rates":
            found.append({**point, "peak_gflop_s": 9e4, "memory_gb_s": 2000.0, "operation_us": 2.0})
            found[-1].update(way="peer", link_us=3.0, link_message_us=0.5, link_gb_s=LINK)
        elif point["kind"] in ("step", "streamed"):
            way = "local" if ranks == 1 else "peer" if point["kind"] == "step" else "host"
            listed = counting.listed_step(point, ranks, HOPPER, way)
            cost = Costing(listed, dataclasses.replace(rates, exchange=way)).cost
            is_step = point["kind"] == "step"
            us = 1e6 * cost.seconds + 2
            found.append({**point, "us": us, "least_us": 0.9 * us, "most_us": 1.3 * us})
            found[-1].update(way=way, sent=cost.sent, product_std_us=1.0)
            found[-1].update(predicted_us=1e6 * cost.seconds if is_step else None)
            found[-1].update(flops=cost.flops, traffic=cost.traffic)
            found[-1].update(uploaded=0 if is_step else moved[counting.UPLOAD])
            found[-1].update(staged=2 * moved.get(counting.DOWN, 0) if way == "host" else 0)
            found[-1].update(product_flops=cost.flops, product_us=cost.flops / 5e7)
        elif point["kind"] == "transfers":
            for what, nbytes in moved.items():
                if what in roofline.PHASES:
                    found.append(
                        {**point, "what": what, "bytes": nbytes, "us": 4 + nbytes / 25e3, "std_us": 1.0}
                    )
        elif point["kind"] == "counted":
            counted = Counter((product.M, product.N, product.K) for product in counting.products(plain))
            buckets = [panel.bucket for panel in plain.panels]
            counted.update(moved)
            counted[counting.LOSSES] = 32
            counted[counting.SHARDS] = 4 * exchanges()["device"].sent(buckets, ranks, 0, 4).elements
            found += [{**point, **row} for row in counting.compared(plain, counted, point, ranks)]
        else:
            listed = counting.products(plain)
            rows = counting.counters_compared(listed, launches_of(listed))
            found += [{**point, **row} for row in rows]
    return setup, pd.DataFrame(found, columns=[*roofline.COLUMNS, FAILED])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
        return rows_of(tmp_path_factory.mktemp("roofline"), 2)


def test_the_models_by_hand(measured):
    setup, rows = measured
    known = Known.of(rows, setup)
    step = rows[(rows.kind == "step") & (rows.ranks == 2)].iloc[:1]
    row = step.iloc[0]
    expected = row.flops / 9e7 + row.traffic / 2e6 + row.sent / (LINK * 1e3)
    assert known.course_us(step).iloc[0] == pytest.approx(expected)
    assert known.better_us(step).iloc[0] == row.predicted_us  # no rows go up that it would wait for
    streamed = rows[rows.kind == "streamed"].iloc[:1].assign(predicted_us=100.0)
    upload = 4 + streamed.uploaded.iloc[0] / 25e3
    assert known.better_us(streamed).iloc[0] == pytest.approx(100 + upload)
    assert known.link("host").gb_s == pytest.approx(known.fastest(counting.SUM))
    # Gradients that go through host memory take the time of their copies too, at 25 GB/s but for 4 us.
    staged = rows[rows.kind == "streamed"].iloc[:1]
    row, both = staged.iloc[0], known.fastest(counting.DOWN, counting.UP)
    assert row.staged > 0 and 20 < both < 25
    expected = row.flops / 9e7 + row.traffic / 2e6 + row.uploaded / (known.fastest(counting.UPLOAD) * 1e3)
    expected += row.staged / (both * 1e3) + row.sent / (known.fastest(counting.SUM) * 1e3)
    assert known.course_us(staged).iloc[0] == pytest.approx(expected)
    faster = rows.assign(product_us=rows.product_flops / 2e8)
    assert Known.of(faster, setup).peak_gflop_s == pytest.approx(2e5)


def test_an_intensity_is_flops_a_byte():
    steps = pd.DataFrame({"flops": [100.0], "uploaded": [10.0], "staged": [15.0], "sent": [0.0]})
    level = Level("PCIe", 25.0, ("uploaded", "staged"))
    assert level.intensity(steps).iloc[0] == 4 and level.is_used(steps)
    assert not Level("MPI", 25.0, ("sent",)).is_used(steps)
    assert not Level("PCIe", math.inf, ("uploaded",)).is_used(steps)


def test_the_section_says_what_the_rows_say(measured):
    setup, rows = measured
    section = roofline.section(rows, setup)
    text = " ".join(section.findings)
    assert "5 of 5 counted products take the flops of the list" in text
    assert "9 of 11 counted transfers move the bytes of the list (losses down: 32 for 4)" in text
    assert "2.00 to 2.00 times the listed flops" in text
    assert "0.50 to 0.50 times the listed bytes" in text
    assert "50 TFLOP/s" in text
    assert "images and labels up 25 GB/s after 4 us" in text
    assert "repeats of the same work lie 40% of their median apart, 40% at most" in text
    for ranks, words in ((1, "1 rank:"), (2, "2 ranks:")):
        steps = rows[(rows.kind == "step") & (rows.ranks == ranks)]
        ratios = steps.us / Known.of(rows, setup).course_us(steps)
        better = steps.us / steps.predicted_us
        line = next(line for line in section.findings if f"time on {words}" in line)
        for name, ratio in ((COURSE, ratios), (BETTER, better)):
            assert f"{name}: median {ratio.median():.2f}, from {ratio.min():.2f} to {ratio.max():.2f}" in line
    for figure in section.figures:
        assert (setup.folder / figure.file).stat().st_size > 20_000
        assert len(figure.caption) > 40
    assert {figure.file for figure in section.figures} == {
        *("products.png", "transfers.png", "roofline.png", "hierarchy.png", "models.png"),
    }
    assert len(section.tables) == 3
    assert len(section.tables[0].rows) == 5 + 5 + 1 + 5


def test_the_lowest_roof_is_told(measured, unsaved):
    setup, rows = measured
    slow = rows.assign(link_gb_s=1e-3)
    text = " ".join(roofline.section(slow, setup).findings)
    assert "rows on the device: the lowest roof is exchange peer for 24 of 24 steps" in text


@pytest.mark.parametrize(
    "kinds", [(), ("rates",), ("step",), ("rates", "step"), ("counters",), ("transfers",)]
)
def test_a_section_of_few_rows(measured, unsaved, kinds):
    setup, rows = measured
    some = rows[rows.kind.isin(kinds)].reset_index(drop=True)
    section = roofline.section(some, setup)
    assert bool(section.findings) == bool(set(kinds) - {"rates"})
    assert ("models.png" in {figure.file for figure in section.figures}) == ({"rates", "step"} <= set(kinds))
