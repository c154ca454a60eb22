"""nn/program/rewrite.py: rules rewrite a list; nn/program/panels.py: one of them, on lists made by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nn.launch.gemm.product import Product
from nn.program import operations
from nn.program.operations import (
    BACKWARD,
    BucketReady,
    FinishRedistribution,
    Operation,
    StartRedistribution,
)
from nn.program.panels import split_into_panels
from nn.program.rewrite import (
    Replacement,
    columns_within,
    overlap,
    reads,
    rewrite,
    same,
    with_array,
    writes,
)
from pyrt.arrays import DeviceArray
from pyrt.driver.cpu import CpuDriver
from pyrt.ledger import Row
from pyrt.redistribute import Redistribution


@pytest.fixture
def driver():
    return CpuDriver()


@pytest.fixture
def rng():
    return np.random.default_rng(17)


def buckets(*numbers):
    """Items that are told from each other by a number."""
    return [BucketReady(number) for number in numbers]


def numbers(items):
    return [item.bucket for item in items]


def pair_rule(first, second, *, items=(), rest=()):
    """Where these two stand one behind the other, others take their place."""

    def rule(left, done):
        if numbers(left[:2]) == [first, second]:
            return Replacement(2, buckets(*items), buckets(*rest))
        return None

    return rule


class TestEngine:
    def test_what_no_rule_takes_stays_as_it_is(self):
        items = buckets(3, 1, 2)
        assert rewrite(items, []) == items
        assert rewrite(items, [pair_rule(2, 3, items=[9])]) == items
        assert rewrite([], [pair_rule(2, 3, items=[9])]) == []

    def test_a_pattern_is_found_anywhere(self):
        rule = pair_rule(1, 2, items=[9])
        for items, expected in (
            ([1, 2], [9]),
            ([0, 1, 2, 0], [0, 9, 0]),
            ([1, 1, 2, 1, 2, 2], [1, 9, 9, 2]),
        ):
            assert numbers(rewrite(buckets(*items), [rule])) == expected

    def test_a_pattern_may_be_replaced_by_nothing_and_by_more(self):
        assert numbers(rewrite(buckets(0, 1, 2), [pair_rule(1, 2)])) == [0]
        assert numbers(rewrite(buckets(1, 2, 0), [pair_rule(1, 2, items=[7, 8, 9])])) == [7, 8, 9, 0]

    def test_the_first_rule_that_matches_wins(self):
        rules = [pair_rule(1, 2, items=[8]), pair_rule(1, 2, items=[9])]
        assert numbers(rewrite(buckets(1, 2), rules)) == [8]
        assert numbers(rewrite(buckets(1, 2), rules[::-1])) == [9]

    def test_an_earlier_item_wins_over_an_earlier_rule(self):
        rules = [pair_rule(2, 3, items=[8]), pair_rule(1, 2, items=[9])]
        assert numbers(rewrite(buckets(1, 2, 3), rules)) == [9, 3]

    def test_what_is_done_is_not_looked_at_again_but_what_is_left_is(self):
        rules = [pair_rule(1, 2, items=[3]), pair_rule(3, 4, items=[9])]
        assert numbers(rewrite(buckets(1, 2, 4), rules)) == [3, 4]
        rules[0] = pair_rule(1, 2, rest=[3])
        assert numbers(rewrite(buckets(1, 2, 4), rules)) == [9]
        rules[0] = pair_rule(1, 2, items=[7], rest=[1])
        assert numbers(rewrite(buckets(1, 2, 2, 5), rules)) == [7, 7, 1, 5]

    def test_a_rule_sees_what_is_left_and_what_is_done(self):
        seen = []

        def rule(left, done):
            seen.append((numbers(left), numbers(done)))
            return Replacement(1, buckets(10 * left[0].bucket))

        rewrite(buckets(1, 2, 3), [rule])
        assert seen == [([1, 2, 3], []), ([2, 3], [10]), ([3], [10, 20])]

    def test_the_given_list_stays_as_it_is(self):
        items = buckets(1, 2)
        rewrite(items, [pair_rule(1, 2, items=[3])])
        assert items == buckets(1, 2)

    def test_memory_is_charged_to_the_layer_of_the_item(self, driver):
        array = DeviceArray.empty(driver, (4, 3), np.float32)
        items = [
            replace(operations.zeros("zeros", BACKWARD, array), layer=2),
            replace(operations.zeros("zeros", BACKWARD, array), layer=5),
        ]

        def rule(left, done):
            DeviceArray.empty(driver, (len(left), 7), np.float64)
            return None

        rewrite(items, [rule], driver)
        of_layers = {layer: driver.ledger.device[Row("workspaces", layer)] for layer in (2, 3, 5)}
        assert of_layers == {2: 2 * 7 * 8, 3: 0, 5: 7 * 8}


class TestViews:
    @pytest.fixture
    def whole(self, driver):
        return DeviceArray.empty(driver, (6, 10), np.float32)

    def test_same(self, whole):
        assert same(whole, whole.rows(0, 6)) and same(whole, whole.columns(0, 10))
        others = whole.rows(0, 5), whole.rows(1, 6), whole.columns(0, 9), whole.columns(1, 10)
        assert not any(same(whole, other) or same(other, whole) for other in others)
        assert not same(whole, whole.reshape(60)) and not same(whole, whole.reshape(10, 6))

    def test_overlap(self, driver, whole):
        top, bottom = whole.rows(0, 3), whole.rows(3, 6)
        assert overlap(whole, top) and overlap(bottom, whole) and not overlap(top, bottom)
        assert not overlap(bottom, top) and overlap(whole.rows(0, 4), bottom)
        assert not overlap(whole, DeviceArray.empty(driver, (6, 10), np.float32))
        # The last row of a view ends with its columns, not with the whole array's.
        last, end = whole.rows(5, 6).columns(7, 10), whole.rows(5, 6).columns(2, 7)
        assert not overlap(last, end) and not overlap(end, last)

    def test_columns_within(self, driver, whole):
        assert columns_within(whole.columns(3, 8), whole) == (3, 8)
        assert columns_within(whole, whole) == (0, 10)
        part = whole.columns(2, 9)
        assert columns_within(whole.columns(4, 6), part) == (2, 4)
        for array in (
            whole.columns(1, 6),
            whole.columns(4, 10),
            whole.rows(1, 6).columns(2, 9),
            DeviceArray.empty(driver, (6, 7), np.float32),
        ):
            assert columns_within(array, part) is None


def test_another_array_takes_the_place_of_all_views_of_one(driver):
    whole, other, beside = (DeviceArray.empty(driver, (5, 2), np.float32) for _ in range(3))
    item = Operation("product", BACKWARD, Product(whole.rows(0, 2), beside.rows(0, 2), whole.rows(2, 4)))
    D, A, B = with_array(item, whole, other).work.writes + with_array(item, whole, other).work.reads
    assert same(D, other.rows(0, 2))
    assert same(A, beside.rows(0, 2))
    assert same(B, other.rows(2, 4))
    bucket = BucketReady(0)
    assert with_array(bucket, whole, other) is bucket


def test_what_items_read_and_write(driver):
    A, B, D, other = (
        DeviceArray.empty(driver, shape, np.float32) for shape in ((4, 3), (3, 5), (4, 5), (4, 5))
    )
    product = operations.gemm("product", BACKWARD, Product(D, A, B))
    move = StartRedistribution("move", BACKWARD, Redistribution((4, 5), "rows", "columns"), D, other)
    for item, read, written in (
        (product, [A, B], [D]),
        (move, [D], [other]),
        (FinishRedistribution(move), [], []),
        (BucketReady(0, leaves=D), [], []),
    ):
        arrays = (A, B, D, other)
        assert [array for array in arrays if reads(item, array)] == read
        assert [array for array in arrays if writes(item, array)] == written
    assert writes(product, D.rows(3, 4)) and reads(product, A.columns(2, 3))


class Layer:
    """A layer's weight gradient dW = dZ' X; 23 units of 7 inputs, 11 samples."""

    def __init__(self, driver, rng):
        def array(*shape):
            return DeviceArray.from_host(driver, rng.standard_normal(shape).astype("f4"))

        self.dZ, self.X, self.dW = array(11, 23), array(11, 7), array(23, 7)
        work = Product(self.dW, self.dZ, self.X, transpose_a=True)
        self.product = replace(operations.gemm("dW", BACKWARD, work), layer=4)

    def leaves(self, *rows):
        return [BucketReady(number, rows=rows) for number, rows in enumerate(rows)]


class TestPanels:
    @pytest.mark.parametrize("cuts", [(23,), (8, 23), (4, 8, 20, 23), (1, 2, 23)])
    def test_a_gradient_that_leaves_in_buckets_is_made_in_as_many_products(self, driver, rng, cuts):
        layer = Layer(driver, rng)
        spans = list(zip((0, *cuts), cuts, strict=False))
        before, after = operations.zeros("before", BACKWARD, layer.X), BucketReady(9)
        items = [before, layer.product, *layer.leaves(*spans), after]
        first, *made, last = rewrite(items, [split_into_panels])
        assert first is before and last is after
        assert made[1::2] == layer.leaves(*spans)
        products = made[::2]
        assert [(one.name, one.layer, one.part) for one in products] == [("dW", 4, BACKWARD)] * len(cuts)
        for one, (start, stop) in zip(products, spans, strict=True):
            assert one.work.transpose_a and not one.work.transpose_b
            assert same(one.work.D, layer.dW.rows(start, stop)) and same(one.work.B, layer.X)
            assert same(one.work.A, layer.dZ.columns(start, stop))

    def test_all_of_a_panel_is_there_before_its_bucket_leaves(self, driver, rng):
        layer = Layer(driver, rng)
        expected = layer.dZ.to_host().T @ layer.X.to_host()
        layer.dW.set(np.full((23, 7), np.nan, "f4"))
        there = layer.dW.host_view()
        for item in rewrite([layer.product, *layer.leaves((0, 8), (8, 23))], [split_into_panels]):
            if isinstance(item, Operation):
                item.in_numpy()()
                continue
            _, stop = item.rows
            np.testing.assert_allclose(there[:stop], expected[:stop], rtol=0, atol=1e-5)
            assert np.isnan(there[stop:]).all()

    def test_what_is_no_such_gradient_stays(self, driver, rng):
        layer = Layer(driver, rng)
        without_rows = BucketReady(0, leaves=layer.dW)
        sums = operations.column_sums("sums", BACKWARD, layer.dZ, DeviceArray.empty(driver, (23,), "f4"))
        leaves = layer.leaves((0, 8), (8, 23))
        for items in (
            [layer.product],
            [layer.product, without_rows],
            [layer.product, sums, *leaves],
            [sums, *leaves],
            leaves,
        ):
            assert rewrite(items, [split_into_panels]) == items

    def test_buckets_behind_it_that_are_not_of_its_rows_stay_behind(self, driver, rng):
        """The loss alone, or another layer's bucket."""
        layer = Layer(driver, rng)
        alone = BucketReady(7)
        items = rewrite([layer.product, *layer.leaves((0, 8), (8, 23)), alone], [split_into_panels])
        assert [item.bucket for item in items if isinstance(item, BucketReady)] == [0, 1, 7]
        assert items[-1] is alone and isinstance(items[2], Operation)
