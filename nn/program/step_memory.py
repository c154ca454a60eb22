"""The memory of what a list makes and uses up: activations, their gradients, bf16 components, workspaces.

Such arrays are made without memory, at addresses at which nothing lies. So the rules that rewrite a list see
arrays that never overlap by chance. When the list is as it will run, each of its arrays gets a place in one
allocation, beside those that are in use at the same time. Lists run one after another, and hand over nothing:
all are placed in the same allocation, each by itself.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from nn.launch.arrays_of import with_arrays
from nn.launch.kernels import Kernels
from nn.program.lifetimes import Lifetime, end_of_use, known_to, place_by_lifetime, touched
from nn.program.operations import FinishRedistribution, Item, Operation, StartRedistribution
from nn.program.rewrite import read_by, written
from pyrt.arrays import ALIGNMENT, DeviceArray, aligned
from pyrt.driver import Driver

_NOWHERE = 1 << 62
"""From here on arrays without memory begin: no device has such addresses."""


@dataclass(frozen=True)
class Placed:
    """A list as it runs, and its results: arrays that are there when it has run."""

    items: list[Item]
    results: list[DeviceArray]


class StepMemory:
    """Makes arrays without memory, and places those of a list."""

    def __init__(self, driver: Driver, kernels: Kernels | None, shares: bool = True) -> None:
        """``kernels`` run the lists; None: NumPy does.

        If it ``shares``, arrays that are not in use at once may lie at one place. Else each has a place of
        its own, also one that a fused kernel leaves out.
        """
        self._driver, self._kernels, self._shares = driver, kernels, shares
        self._known = touched if shares else known_to
        self._starts: list[int] = []
        self._sizes: list[int] = []
        self._memory = DeviceArray(driver, 0, (0,), np.dtype(np.uint8), 0)

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """Make an array that has no memory until a list is placed."""
        dtype = np.dtype(dtype)
        end = self._starts[-1] + self._sizes[-1] if self._starts else _NOWHERE
        self._starts.append(aligned(end) + ALIGNMENT)
        self._sizes.append(math.prod(shape) * dtype.itemsize)
        return DeviceArray(self._driver, self._starts[-1], tuple(shape), dtype, shape[-1] if shape else 1)

    def place(self, items: Sequence[Item], results: Sequence[DeviceArray] = ()) -> Placed:
        """Place the arrays of a list that have no memory; ``results`` are views of some.

        Raises ValueError where an item reads what none before it has written: that would be anything.
        """
        self._require_written(items)
        items = [self._with_workspace(item) for item in items]
        lifetimes = self._lifetimes(items, results)
        begins = place_by_lifetime([(self._sizes[number], life) for number, life in lifetimes.items()])
        places = dict(zip(lifetimes, begins, strict=True))
        self._reserve(max((begin + self._sizes[number] for number, begin in places.items()), default=0))
        moved = {id(item): self._moved(item, places) for item in items}
        return Placed(
            [_with_start(moved[id(item)], moved) for item in items],
            [self._at(array, places) for array in results],
        )

    def _with_workspace(self, item: Item) -> Item:
        """Let an operation have memory for what its kernels use while they run."""
        if not isinstance(item, Operation) or self._kernels is None:
            return item
        nbytes = item.work.workspace(self._kernels)
        return replace(item, workspace=self.empty((nbytes,), np.uint8)) if nbytes else item

    def _numbers(self, arrays: Sequence[DeviceArray]) -> set[int]:
        """Return which of the arrays made here these are views of, by number."""
        return {
            bisect_right(self._starts, array.pointer) - 1 for array in arrays if array.pointer >= _NOWHERE
        }

    def _require_written(self, items: Sequence[Item]) -> None:
        there: set[int] = set()
        for item in items:
            read = [array for array in read_by(item) if array.size]
            if not self._numbers(read) <= there:
                raise ValueError(f"{item} reads an array that no item before it has written")
            there |= self._numbers(written(item))

    def _lifetimes(self, items: Sequence[Item], results: Sequence[DeviceArray]) -> dict[int, Lifetime]:
        """Return the lifetime of each array that the list uses, by its number."""
        lifetimes: dict[int, Lifetime] = {}
        last = len(items) - 1
        for place, item in enumerate(items):
            ends = end_of_use(items, place)
            for number in self._numbers(self._known(item)):
                life = lifetimes.get(number, Lifetime(place, ends)).until(ends)
                lifetimes[number] = life if self._shares else Lifetime(0, last)
        for number in self._numbers(results):  # a rank without samples touches no logits
            lifetimes[number] = lifetimes.get(number, Lifetime(last, last)).until(last)
        return dict(sorted(lifetimes.items()))

    def _reserve(self, nbytes: int) -> None:
        """Make the allocation large enough. A smaller one stays, for the lists that lie there."""
        if nbytes > self._memory.nbytes:
            with self._driver.ledger.of("activations"):
                self._memory = DeviceArray.empty(self._driver, (nbytes,), np.uint8)

    def _moved(self, item: Item, places: Mapping[int, int]) -> Item:
        """Return an item with its arrays where they lie; what it leaves out stays without memory."""
        used = self._numbers(self._known(item))
        own = {number: places[number] for number in used}
        if isinstance(item, Operation):
            place = partial(self._at, places=own)
            return replace(
                item, work=with_arrays(item.work, place), workspace=with_arrays(item.workspace, place)
            )
        if isinstance(item, StartRedistribution):
            return replace(item, source=self._at(item.source, own), target=self._at(item.target, own))
        return item

    def _at(self, array: DeviceArray, places: Mapping[int, int]) -> DeviceArray:
        """Return an array where it lies, if it is a view of one of those that have these places."""
        for number in self._numbers([array]) & places.keys():
            offset = array.pointer - self._starts[number]
            return replace(array, pointer=self._memory.pointer + places[number] + offset)
        return array


def _with_start(item: Item, moved: Mapping[int, Item]) -> Item:
    """Return the end of a redistribution as that of the one that has moved; any other item as it is."""
    if not isinstance(item, FinishRedistribution):
        return item
    started = moved[id(item.started)]
    assert isinstance(started, StartRedistribution)
    return FinishRedistribution(started)
