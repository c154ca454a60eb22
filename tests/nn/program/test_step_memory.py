"""nn/program/step_memory.py: a list reads what it would read if every array had its own memory."""

from dataclasses import replace

import numpy as np
import pytest

from nn.autotune.listed_step import Task, kernels_on, on_null
from nn.launch.arrays_of import arrays_of
from nn.launch.elementwise import Zeros
from nn.launch.take_columns import TakeColumns
from nn.model.net_text import make_network
from nn.parallel.plan import Plan
from nn.program import lifetimes
from nn.program.lifetimes import Lifetime
from nn.program.operations import FORWARD, FinishRedistribution, Operation, StartRedistribution
from nn.program.rewrite import read_by, written
from nn.program.step_memory import StepMemory
from pyrt.arrays import DeviceArray
from pyrt.driver import TENSOR_MAP_BYTES
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.kernels.c_types import Parameter
from pyrt.redistribute import Redistribution
from tests import spread
from tests.nn.autotune.rates import HOPPER

NOWHERE = 1 << 62

NETS = [
    ("conv3x3x8p1,relu,pool2,conv3x3x64p1,relu,conv3x3x64,tanh,avgpool2,dropout0.5,dense40,relu,dense10", 1),
    ("conv3x3x8,sigmoid,conv3x3x16,relu,pool3s2,dense300,relu,dropout0.2,dense200,relu,dense40", 1),
    ("dense70,relu,dense512,tanh,dense10", 1),
    ("dense70,relu,dense64,tanh,dense10", 3),
    ("conv3x3x8p1,relu,pool3s2,conv3x3x16,relu,dense12", 2),
]
"""Layers, and the ranks that share them."""


def plans(ranks, layers):
    return Plan.data(1, layers) if ranks == 1 else Plan.model(1, ranks, layers)


class Writers:
    """Who has written the bytes of a memory last, item by item."""

    def __init__(self):
        self._spans = []

    def note(self, number, array):
        for row in rows_of(array):
            self._spans = [part for span in self._spans for part in without(span, row)]
            self._spans.append((*row, number))

    def of(self, array):
        """The items, and how much of the array each has written, in the order of its rows."""
        result = []
        for start, stop in rows_of(array):
            mine = [(max(start, a) - start, min(stop, b) - start, who) for a, b, who in self._spans]
            result.append(sorted(span for span in mine if span[0] < span[1]))
        return result


def rows_of(array):
    if not array.size:
        return []
    if array.is_contiguous:
        return [(array.pointer, array.pointer + array.nbytes)]
    width, step = array.shape[1] * array.dtype.itemsize, array.ld * array.dtype.itemsize
    return [(array.pointer + row * step, array.pointer + row * step + width) for row in range(array.shape[0])]


def without(span, row):
    """What is left of a span where a row is written over."""
    start, stop, who = span
    parts = (start, min(stop, row[0]), who), (max(start, row[1]), stop, who)
    return [part for part in parts if part[0] < part[1]]


def seen(items):
    """For each item what wrote each of the arrays that it reads."""
    writers, result = Writers(), []
    for number, item in enumerate(items):
        result.append([writers.of(array) for array in read_by(item)])
        for array in written(item):
            writers.note(number, array)
    return result


@pytest.fixture
def both(monkeypatch):
    """Builds a step; returns its list before it is placed, and after that."""

    def build(net, ranks, **how):
        lists = []
        place = StepMemory.place

        def note(memory, items, results=()):
            placed = place(memory, items, results)
            lists.append((items, placed.items))
            return placed

        with monkeypatch.context() as patch:
            patch.setattr(StepMemory, "place", note)
            network = make_network(net, (12, 12, 3), int(net.split("dense")[-1]), "softmax")
            task = Task(network, 6, **how)
            on_null(task, plans(ranks, len(network.numbers)), HOPPER, exchange="host")
        (found,) = lists
        return found

    return build


@pytest.mark.parametrize("math", ["float32", "bf16"])
@pytest.mark.parametrize(("net", "ranks"), NETS)
def test_a_placed_list_reads_what_the_list_reads(both, net, ranks, math):
    items, placed = both(net, ranks, math=math)
    assert seen(items) == seen(placed)
    assert all(array.pointer < NOWHERE for item in placed for array in (*read_by(item), *written(item)))


@pytest.mark.parametrize(("net", "ranks"), NETS)
def test_arrays_at_the_place_of_others_in_use_are_noticed(both, monkeypatch, net, ranks):
    """This test's own check: where nothing meets, all arrays lie at one place."""
    monkeypatch.setattr(Lifetime, "meets", lambda *_: False)
    items, placed = both(net, ranks)
    assert seen(items) != seen(placed)


@pytest.mark.parametrize(
    ("math", "conv", "net"),
    spread(
        ["float32", "tf32", "bf16"],
        ["auto", "im2col", "winograd"],
        [net for net, ranks in NETS if ranks == 1],
        by=3,
    ),
)
def test_kernels_touch_only_what_operations_say(both, monkeypatch, net, conv, math):
    """What an operation does not say that it reads or writes has no memory when it is bound."""
    _, placed = both(net, 1, conv=conv, math=math)
    address = Parameter._address

    def checked(parameter, argument):
        found = address(parameter, argument)
        assert found < NOWHERE, f"{parameter.name} has no memory"
        return found

    def map_of(driver, pointer, *sizes):
        assert pointer < NOWHERE, "what a map is of has no memory"
        return bytes(TENSOR_MAP_BYTES)

    monkeypatch.setattr(Parameter, "_address", checked)
    for name in ("tensor_map", "window_map"):
        monkeypatch.setattr(NullDriver, name, map_of)
    driver = NullDriver(HOPPER)
    network = make_network(net, (12, 12, 3), int(net.split("dense")[-1]), "softmax")
    kernels = kernels_on(driver, Task(network, 6, conv=conv, math=math))
    for item in placed:
        if isinstance(item, Operation):
            item.on_device(kernels)


class TestPlace:
    """Lists made here."""

    @pytest.fixture
    def driver(self):
        return NullDriver(DeviceProperties())

    @pytest.fixture
    def memory(self, driver):
        return StepMemory(driver, None)

    @staticmethod
    def copy(source, target):
        return Operation("copy", FORWARD, TakeColumns(source, target))

    def chain(self, memory, count, rows=4):
        """Each array a copy of the one before it; the first is zeros."""
        arrays = [memory.empty((rows, 64), np.float32) for _ in range(count)]
        zeros = Operation("zeros", FORWARD, Zeros(arrays[0]))
        return arrays, [zeros, *map(self.copy, arrays, arrays[1:])]

    def test_two_of_a_chain_are_there_at_once(self, driver, memory):
        arrays, items = self.chain(memory, 7)
        placed = memory.place(items, [arrays[-1].rows(1, 3)])
        assert driver.ledger.device.total() == 2 * arrays[0].nbytes
        last, (result,) = placed.items[-1].writes[0], placed.results
        assert (result.pointer, result.shape) == (last.rows(1, 3).pointer, (2, 64))

    def test_lists_are_placed_in_the_same_memory(self, driver, memory):
        first = memory.place(self.chain(memory, 3)[1]).items
        before = driver.ledger.device.total()
        second = memory.place(self.chain(memory, 9)[1]).items
        assert driver.ledger.device.total() == before
        assert {array.pointer for item in first for array in item.writes} == {
            array.pointer for item in second for array in item.writes
        }

    def test_a_larger_list_has_its_own_memory(self, driver, memory):
        memory.place(self.chain(memory, 3)[1])
        before = driver.ledger.device.total()
        arrays, items = self.chain(memory, 3, rows=9)
        memory.place(items)
        assert driver.ledger.device.total() == before + 2 * arrays[0].nbytes

    def test_results_stay_until_the_end(self, driver, memory):
        arrays, items = self.chain(memory, 5)
        memory.place(items, [arrays[0]])
        assert driver.ledger.device.total() == 3 * arrays[0].nbytes

    def test_results_that_no_item_touches_have_a_place(self, memory):
        """As the logits of a rank without samples."""
        _, items = self.chain(memory, 2)
        nothing = memory.empty((4, 64), np.float32).rows(0, 0)
        for mine in (items, []):
            (result,) = memory.place(mine, [nothing]).results
            assert result.shape == (0, 64) and result.pointer < NOWHERE

    def test_each_array_has_its_own_place_where_operations_are_repeated(self, driver):
        memory = StepMemory(driver, None, shares=False)
        arrays, items = self.chain(memory, 5)
        placed = memory.place(items).items
        assert len({array.pointer for item in placed for array in item.writes}) == 5
        assert driver.ledger.device.total() == 5 * arrays[0].nbytes

    def test_the_end_of_a_move_is_that_of_the_move_that_was_placed(self, memory):
        arrays, items = self.chain(memory, 2)
        target = memory.empty((4, 64), np.float32)
        move = Redistribution((4, 64), "rows", "whole")
        start = StartRedistribution("move", FORWARD, move, arrays[-1], target)
        *_, start, end, _ = memory.place([*items, start, FinishRedistribution(start), items[0]]).items
        assert end.started is start and NOWHERE > start.target.pointer != start.source.pointer

    def test_a_list_that_reads_what_nothing_wrote_is_refused(self, memory):
        arrays, items = self.chain(memory, 3)
        with pytest.raises(ValueError, match="reads an array that no item before it has written"):
            memory.place(items[1:])
        empty = [replace(items[1], work=TakeColumns(*(array.rows(0, 0) for array in arrays[:2])))]
        assert memory.place(empty).items

    def test_arrays_that_have_memory_stay(self, driver, memory):
        there = DeviceArray.empty(driver, (4, 64), np.float32)
        made = memory.empty((4, 64), np.float32)
        (item,) = memory.place([self.copy(there, made)]).items
        assert item.reads[0].pointer == there.pointer
        assert {array.pointer for array in arrays_of(item.work)} == {there.pointer, item.writes[0].pointer}


def test_the_hook_is_the_end_of_use(monkeypatch):
    """Whoever runs beside later items is in use until these end."""
    driver = NullDriver(DeviceProperties())
    memory = StepMemory(driver, None)
    arrays, items = TestPlace().chain(memory, 7)
    monkeypatch.setattr("nn.program.step_memory.end_of_use", lambda items, place: len(items) - 1)
    memory.place(items)
    assert driver.ledger.device.total() == 7 * arrays[0].nbytes
    assert lifetimes.end_of_use(items, 0) == 0
