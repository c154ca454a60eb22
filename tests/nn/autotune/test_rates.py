"""nn/autotune/rates.py, and of nn/autotune/probe/links.py what needs no machine: files, fits."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from nn.autotune import rates as rates_module
from nn.autotune.listed_step import Task
from nn.autotune.probe.links import fit
from nn.autotune.rates import CONVOLUTIONS, KINDS, LAYOUTS, Convolutions, Link, Products, load
from nn.autotune.search import Search
from nn.autotune.table import table
from nn.model.network import Network
from pyrt.errors import UserError
from tests.nn.autotune.rates import HOPPER, random_rates

MACHINES = Path(rates_module.__file__).parent / "machines"


def power_law(sizes: list[int]) -> Products:
    """M sqrt(N) K^1.5 microseconds: straight lines in logarithms."""
    m, n, k = np.meshgrid(sizes, sizes, sizes, indexing="ij")
    return Products(sizes, {layout: (m * n**0.5 * k**1.5).tolist() for layout in LAYOUTS})


@pytest.mark.parametrize("sizes", [(16, 16, 16), (20, 300, 77), (1024, 16, 999)])
def test_products_between_those_measured_are_interpolated_in_logarithms(sizes):
    M, N, K = sizes
    expected = 1e-6 * M * N**0.5 * K**1.5
    assert power_law([16, 128, 1024]).seconds(M, N, K, "nt") == pytest.approx(expected, rel=1e-12)


def test_smaller_products_take_as_long_as_at_the_edge_and_larger_ones_longer_in_proportion():
    products = power_law([16, 128])
    edge = products.seconds(16, 128, 128, "nn")
    assert products.seconds(3, 128, 128, "nn") == edge
    assert products.seconds(16, 256, 384, "nn") == pytest.approx(6 * edge)


def test_each_layout_has_times_of_its_own():
    products = Products([8], {"nn": [[[1.0]]], "nt": [[[2.0]]], "tn": [[[3.0]]]})
    times = [products.seconds(8, 8, 8, layout) for layout in LAYOUTS]
    assert times == pytest.approx([1e-6, 2e-6, 3e-6])


def test_without_measured_products_the_later_of_flops_and_bytes_counts():
    rates = replace(random_rates(0), products=None, tflop_s=2.0, memory_gb_s=100.0, operation_us=5.0)
    assert rates.product_seconds(1000, 1000, 1000, "nn", 12_000_000) == pytest.approx(5e-6 + 1e-3)
    assert rates.product_seconds(1000, 1000, 1, "nn", 4_000_000) == pytest.approx(5e-6 + 40e-6)


def test_convolutions_between_those_measured_are_interpolated_in_logarithms():
    windows, filters, pixels = [64, 4096], [8, 32, 512], [27, 576]
    w, f, p = np.meshgrid(windows, filters, pixels, indexing="ij")
    us = {kind: (place * w * f**0.5 * p**0.3).tolist() for place, kind in enumerate(CONVOLUTIONS, 1)}
    rates = replace(random_rates(0), convolutions=Convolutions(windows, filters, pixels, us))
    for place, kind in enumerate(CONVOLUTIONS, 1):
        inside = place * 1e-6 * 100 * 20**0.5 * 144**0.3
        assert rates.convolution_seconds(kind, (100, 20, 144), 10) == pytest.approx(inside, rel=1e-12)
        # More windows than were measured take longer in proportion, fewer pixels as long as the fewest.
        beyond = place * 1e-6 * 40960 * 512**0.5 * 27**0.3
        assert rates.convolution_seconds(kind, (40960, 512, 9), 10) == pytest.approx(beyond, rel=1e-12)


def test_convolutions_that_are_not_measured_take_as_long_as_the_products_of_their_windows():
    rates = random_rates(0)
    windows, filters, pixels = sizes = 700, 30, 150
    products = [(windows, filters, pixels, "nt"), (windows, pixels, filters, "nn")]
    products += [(filters, pixels, windows, "tn")]
    for kind, product in zip(CONVOLUTIONS, products, strict=True):
        assert rates.convolution_seconds(kind, sizes, 10) == rates.product_seconds(*product, 10)
    by_flops = replace(rates, products=None, tflop_s=2.0, memory_gb_s=1000.0, operation_us=0.0)
    for kind in CONVOLUTIONS:
        assert by_flops.convolution_seconds(kind, sizes, 10) == pytest.approx(2 * 700 * 30 * 150 / 2e12)


def test_a_link_takes_its_once_its_messages_and_its_bytes():
    assert Link(3.0, 2.0, 10.0).seconds(1e6, 4) == pytest.approx(3e-6 + 8e-6 + 100e-6)


@pytest.mark.parametrize("seed", range(3))
def test_rates_survive_their_file(tmp_path, seed):
    rates = random_rates(seed, HOPPER)
    rates.save("--save-rates", tmp_path / "rates.json")
    assert load(tmp_path / "rates.json") == rates


def test_rates_of_convolutions_survive_their_file_and_older_files_have_none(tmp_path):
    times = Convolutions([1, 2], [8], [9], {kind: [[[1.0]], [[2.5]]] for kind in CONVOLUTIONS})
    rates = replace(random_rates(0, HOPPER), convolutions=times, conv="im2col")
    rates.save("--save-rates", tmp_path / "rates.json")
    assert load(tmp_path / "rates.json") == rates
    content = json.loads((tmp_path / "rates.json").read_text())
    del content["convolutions"], content["conv"]
    (tmp_path / "older.json").write_text(json.dumps(content))
    assert load(tmp_path / "older.json") == replace(rates, convolutions=None, conv="auto")


@pytest.mark.parametrize("file", sorted(MACHINES.glob("*.json")), ids=lambda file: file.name)
def test_the_machines_that_come_with_the_project_are_rates_and_say_their_sources(file):
    assert "docs/explain/measurements.md" in load(file).about


FOUR_TIMES = {layout: np.ones((2, 2, 2)).tolist() for layout in LAYOUTS}
"""Of products of two sizes."""

ONE_TIME = {kind: [[[1.0]]] for kind in CONVOLUTIONS}
"""Of convolutions of one size."""


def broken(**changes: object) -> str:
    content = {**asdict(random_rates(0)), **changes}
    return json.dumps({name: value for name, value in content.items() if value != "left out"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '"rates"',
        "[" * 100_000,
        broken(device="left out"),
        broken(device={"colour": "red"}),
        broken(memory_gb_s=0),
        broken(memory_gb_s="fast"),
        broken(operation_us=-1),
        broken(unknown=1),
        broken(passes_gb_s={"head": 0}),
        broken(products=None),
        broken(products={"sizes": [16], "us": {}}),
        broken(products={"sizes": [16, 8], "us": {"nn": [[[1.0]]]}}),
        broken(products={"sizes": [8, 16], "us": {layout: [[[1.0]]] for layout in LAYOUTS}}),
        broken(convolutions={"windows": [1], "filters": [1], "pixels": [1], "us": {}}),
        broken(convolutions={"windows": [2, 1], "filters": [1], "pixels": [1], "us": ONE_TIME}),
        broken(convolutions={"windows": [1, 2], "filters": [1], "pixels": [1], "us": ONE_TIME}),
        broken(convolutions={"windows": 1, "filters": [1], "pixels": [1], "us": ONE_TIME}),
        broken(conv="none"),
        broken(node={"gather": {"us": 1, "message_us": 1, "gb_s": 1}}),
        broken(network={kind: {"us": 1, "message_us": 1, "gb_s": 0} for kind in KINDS}),
        broken(ranks_per_node=0),
        broken(ranks_per_node=float("inf")),
        broken(products={"sizes": [], "us": {layout: [] for layout in LAYOUTS}}),
        broken(memory_gb="much"),
        broken(memory_gb=-1),
        broken(exchange="pigeons"),
        broken(dtype="float16"),
        broken(gemm="none"),
        broken(math="fuzzy"),
        broken(device={"multiprocessors": "many"}),
        broken(device={"shared_memory": None}),
        broken(device={"multiprocessors": 1.5}),
        broken(device={"name": ["a GPU"]}),
        broken(device={"architecture": 90}),
        broken(device={"architecture": "sm_" + "9" * 5000}),
        broken(about=None),
        broken(operation_us=True),
        broken(operation_us=10**400),
        broken(memory_gb_s=float("inf")),
        broken(memory_gb_s=1e-320),
        broken(memory_gb=float("nan")),
        broken(passes_gb_s={"head": float("inf")}),
        broken(tflop_s="fast"),
        broken(ranks_per_node=8.0),
        broken(products=None, tflop_s=float("inf")),
        broken(products={"sizes": [1, float("nan")], "us": FOUR_TIMES}),
        broken(products={"sizes": [1, 10**400], "us": FOUR_TIMES}),
        broken(products={"sizes": [1, 2], "us": {**FOUR_TIMES, "nn": np.full((2, 2, 2), np.inf).tolist()}}),
        broken(node={kind: {"us": 10**400, "message_us": 1, "gb_s": 1} for kind in KINDS}),
        broken(node={kind: {"us": 1, "message_us": float("inf"), "gb_s": 1} for kind in KINDS}),
        broken(device={"architecture": "sm_80"}, math="bf16"),
    ],
)
def test_a_file_that_holds_no_rates_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "rates.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=r"^--rates .*pipe: is not a file"):
        load(tmp_path / "pipe")


def test_words_of_a_file_are_printed_on_lines_of_their_own(tmp_path):
    device = replace(HOPPER, name="two\nlines")
    replace(random_rates(0, device), about="\x1b[31m half \ud800").save(
        "--save-rates", tmp_path / "rates.json"
    )
    rates = load(tmp_path / "rates.json")
    search = Search(Task(Network.dense((6, 5, 3), "sigmoid", "softmax"), 8), 2, rates)
    assert all(line.isprintable() for line in table(search, search.data).split("\n"))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"^--rates .*none\.json: No such file"):
        load(tmp_path / "none.json")


def test_ranks_that_no_link_reaches_are_refused():
    rates = random_rates(0, ranks_per_node=4)
    rates.require_reach(4096)
    with pytest.raises(UserError, match="--ranks 5: the rates have no links across nodes of 4"):
        replace(rates, network={}).require_reach(5)
    with pytest.raises(UserError, match="--ranks 2: the rates have no links within a node"):
        replace(rates, node={}).require_reach(2)
    replace(rates, node={}, network={}).require_reach(1)


def samples_of(link: Link, messages: list[int]) -> list[tuple[float, float, float]]:
    return [(b, m, link.seconds(b, m)) for m in messages for b in (1e4, 1e6, 3e7)]


def test_a_fit_finds_the_link_that_times_come_from():
    link = Link(3.0, 0.5, 300.0)
    found = fit(samples_of(link, [1, 3, 7]))
    assert asdict(found) == pytest.approx(asdict(link), rel=1e-6)


def test_a_fit_to_groups_of_one_size_charges_nothing_to_messages():
    found = fit(samples_of(Link(3.0, 0.5, 300.0), [3]))
    assert asdict(found) == pytest.approx({"us": 4.5, "message_us": 0.0, "gb_s": 300.0}, rel=1e-6)


def test_no_part_of_a_fit_is_negative():
    found = fit([(1e4, 1, 1e-6), (1e6, 1, 4e-4), (1e4, 3, 1e-6), (1e6, 3, 3e-4)])
    assert found.us >= 0 and found.message_us >= 0 and found.gb_s > 0
