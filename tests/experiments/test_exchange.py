"""experiments/exchange.py: what is measured where, who measures it, findings from made-up rows of GPUs."""

import pytest

pytest.importorskip("pandas", reason="make test installs what the report needs")
pytest.importorskip("matplotlib")

import pandas as pd

from bench import exchange as bench
from bench.timing import Times
from experiments import exchange, jobs
from experiments.study import FAILED, Setup
from pyrt.exchange import device
from pyrt.job import AgreedError, join
from pyrt.mpi_probe.libraries import Verdict


def setup_of(size, gpus, folder, cores=2):
    return Setup(size, gpus, cores, False, folder)


@pytest.mark.parametrize(("gpus", "cores", "ranks"), [(0, 2, 2), (0, 16, 8), (1, 4, 4)])
def test_without_several_gpus_ranks_on_the_cpu_exchange(gpus, cores, ranks, tmp_path):
    points = exchange.points(setup_of("full", gpus, tmp_path, cores))
    assert {(point["device"], point["ranks"]) for point in points} == {("cpu", ranks)}
    assert {point["way"] for point in points} == {"root", "blocking", "host"}
    assert len(points) == 3 * len(bench.SIZES)


def test_several_gpus_take_all_ways_and_nccl(tmp_path):
    two = exchange.points(setup_of("full", 2, tmp_path))
    assert len(two) == len({tuple(point.values()) for point in two}) == 8 * len(bench.SIZES)
    assert {point["way"] for point in two} == {*bench.WAYS, "NCCL"}
    four = exchange.points(setup_of("full", 4, tmp_path))
    assert {point["ranks"] for point in four} == {2, 4}
    assert max(point["bytes"] for point in four if point["ranks"] == 2) == 16 << 20
    assert max(point["bytes"] for point in four if point["ranks"] == 4) == 64 << 20


def test_the_small_size_has_no_large_buffers(tmp_path):
    points = exchange.points(setup_of("small", 0, tmp_path))
    assert {point["bytes"] for point in points} == {*bench.SIZES} - {64 << 20}


def test_jobs_take_ours_and_nccl_its_own(tmp_path, monkeypatch):
    def nccl(gpus, sizes):
        assert list(sizes) == list(bench.SIZES if gpus == 4 else exchange.FEW)
        times = {nbytes: Times(10.0, 9.0, 12.0) for nbytes in sizes[:-1]}
        return times, "killed"

    def measured(study, points, setup):
        assert study == "experiments.exchange"
        yield from ((point, [{"us": 1.0}]) for point in points)

    monkeypatch.setattr(bench, "nccl", nccl)
    monkeypatch.setattr(jobs, "measured", measured)
    setup = setup_of("full", 4, tmp_path)
    taken = list(exchange.take(exchange.points(setup), setup))
    assert len(taken) == len(exchange.points(setup))
    by_nccl = {(point["ranks"], point["bytes"]): rows for point, rows in taken if point["way"] == "NCCL"}
    (row,) = by_nccl[4, 1628200]
    assert row == {"us": 10.0, "least": 9.0, "most": 12.0, "gbps": pytest.approx(162.82)}
    assert by_nccl[4, 64 << 20] == [{FAILED: "NCCL: killed"}]
    assert all(rows == [{"us": 1.0}] for point, rows in taken if point["way"] != "NCCL")


@pytest.mark.parallel([2])
def test_ranks_measure_on_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "ROUNDS", 2)
    point = {"device": "cpu", "ranks": 2, "way": "blocking", "bytes": 4096}
    (row,) = exchange.measure(point, join(), tmp_path)
    assert 0 < row["least"] <= row["us"] <= row["most"]
    assert row["gbps"] == pytest.approx(4096e-9 / (row["us"] * 1e-6))


@pytest.mark.parametrize(
    ("decided", "words"),
    [
        (Verdict("MPICH 4.0 is not built for device buffers", False, False), "not built for device buffers"),
        (Verdict("", False, False), "no probe has found"),
    ],
)
def test_mpi_gets_device_buffers_only_where_a_probe_found_that_it_takes_them(decided, words, monkeypatch):
    monkeypatch.setattr(device, "verdict", lambda job, driver: decided)
    with pytest.raises(AgreedError, match=f"exchange device: .*{words}"):
        exchange._require_proof(join(), None)
    monkeypatch.setattr(device, "verdict", lambda job, driver: Verdict("", False, True))
    exchange._require_proof(join(), None)


FIRST, BANDWIDTH = (
    {"root": 80, "blocking": 50, "host": 70, "device": 120, "peer": 4, "peer flags": 7, "NCCL": 12},
    {"root": 1, "blocking": 2, "host": 4, "device": 1, "peer": 280, "peer flags": 300, "NCCL": 250},
)
"""us of an empty step, and GB/s of large ones."""


def rows_of_gpus(gpus):
    rows = []
    for point in exchange.points(setup_of("full", gpus, None)):
        if point["way"] in FIRST:
            us = FIRST[point["way"]] + point["ranks"] + point["bytes"] / BANDWIDTH[point["way"]] * 1e-3
            rows.append({**point, **exchange._row(point, Times(us, us - 1, us + 1))})
    return pd.DataFrame(rows)


def test_what_gpus_find_is_said_with_its_numbers(tmp_path):
    section = exchange.section(rows_of_gpus(4), setup_of("full", 4, tmp_path))
    text = "\n".join(section.findings)
    # peer: 4 + 4 + 1628.2 / 280 = 13.8 us; NCCL: 12 + 4 + 1628.2 / 250 = 22.5.
    assert "1.63 MB (all gradients of 784-512-10), 4 GPUs: peer sums, updates and spreads in 13.82 us" in text
    assert "NCCL's sum alone takes 22.51 us, 1.63 times as long" in text
    assert "4 kB (latency), 4 GPUs" in text
    # 67.1 MB in 247.7 us.
    assert "64 MB (bandwidth), 4 GPUs: peer sums, updates and spreads in 247.7 us (271 GB/s)" in text
    assert "through MPI, 4 GPUs: blocking from 4 kB to 64 kB; host from 512 kB to 64 MB." in text
    assert "64 MB, 4 GPUs: peer flags is the fastest way, 234.7 us (286 GB/s); device takes 286 times" in text
    assert "1.63 MB among 2 and among 4 GPUs: NCCL 20.51 and 22.51 us; host" in text
    assert [figure.file for figure in section.figures] == ["times.png", "rates.png", "times-of-two.png"]
    assert all((tmp_path / figure.file).stat().st_size > 10000 for figure in section.figures)
    (table,) = section.tables
    assert [table.rows.columns[0], table.rows.columns[-1]] == ["size", "NCCL"]
    assert len(table.rows) == len(bench.SIZES)


def test_few_rows_are_enough(tmp_path, unsaved):
    rows, setup = rows_of_gpus(2), setup_of("full", 2, tmp_path)
    assert exchange.section(rows[:0], setup).findings == []
    for some in (rows[:1], rows[rows.way == "NCCL"], rows[rows.way == "peer"]):
        assert len(exchange.section(some, setup).figures) == 2


def test_sizes_are_named_as_people_say_them():
    names = [exchange.size_name(nbytes) for nbytes in bench.SIZES]
    assert names == ["4 kB", "64 kB", "512 kB", "1.63 MB", "4 MB", "16 MB", "64 MB"]


def test_what_is_missing_is_named(tmp_path):
    (no_gpu,), (one,) = (exchange.missing(setup_of("small", gpus, tmp_path)) for gpus in (0, 1))
    assert "NCCL: there is no GPU" in no_gpu and "NCCL: there is one GPU" in one
    assert exchange.missing(setup_of("full", 2, tmp_path)) == []
