"""Where arrays lie that are not in use at the same time: they share memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nn.launch.arrays_of import arrays_of
from nn.program.operations import FinishRedistribution, Item, Operation, StartRedistribution
from nn.program.rewrite import read_by, written
from pyrt.arrays import DeviceArray, aligned

_TRIES = 16
"""Orders in which arrays are placed: of vgg16 in bf16 the eleventh takes 10% less than the first."""


@dataclass(frozen=True)
class Lifetime:
    """The items of a list, from the ``first`` to the ``last`` by number, in which an array is in use."""

    first: int
    last: int

    def until(self, last: int) -> Lifetime:
        """Return this one, but not ended before an item."""
        return replace(self, last=max(self.last, last))

    def meets(self, other: Lifetime) -> bool:
        """Return whether both are in use in some item."""
        return self.first <= other.last and other.first <= self.last


def touched(item: Item) -> Sequence[DeviceArray]:
    """Return the arrays that an item reads or writes, and its workspace."""
    return *read_by(item), *written(item), *_workspace(item)


def known_to(item: Item) -> Sequence[DeviceArray]:
    """Return the arrays that an item is made of, those too that its kernel leaves out but NumPy does not."""
    return [*arrays_of(item.work), *_workspace(item)] if isinstance(item, Operation) else touched(item)


def _workspace(item: Item) -> Sequence[DeviceArray]:
    return [item.workspace] if isinstance(item, Operation) and item.workspace is not None else []


def end_of_use(items: Sequence[Item], place: int) -> int:
    """Return the last item beside which one may run: itself, its end, or that before what waits for it."""
    item, later = items[place], range(place + 1, len(items))
    if isinstance(item, StartRedistribution):
        ends = (at for at in later if _ends(items[at], item))
    elif isinstance(item, Operation) and item.beside:
        ends = (at - 1 for at in later if _waits_for_beside(items[at]))
    else:
        return place
    return next(ends, len(items) - 1)


def _ends(item: Item, started: StartRedistribution) -> bool:
    return isinstance(item, FinishRedistribution) and item.started is started


def _waits_for_beside(item: Item) -> bool:
    return isinstance(item, Operation) and item.waits_for_beside


def place_by_lifetime(arrays: Sequence[tuple[int, Lifetime]]) -> list[int]:
    """Choose where arrays of so many bytes begin in one allocation; those in use at once lie apart.

    The largest come first, each at the lowest place that is free in its lifetime. Then the array that reaches
    highest comes before all others, some times, until no more is taken than is in use at once; the lowest of
    these ways is taken.
    """
    least = _most_at_once(arrays)
    order = sorted(range(len(arrays)), key=lambda number: (-arrays[number][0], arrays[number][1].first))
    ways: list[tuple[int, list[int]]] = []
    for _ in range(_TRIES):
        begins = _placed_in(order, arrays)
        ends = [begin + aligned(nbytes) for begin, (nbytes, _) in zip(begins, arrays, strict=True)]
        ways.append((max(ends, default=0), begins))
        if ways[-1][0] == least:
            break
        highest = ends.index(max(ends))
        order = [highest, *(number for number in order if number != highest)]
    return min(ways)[1]


def _most_at_once(arrays: Sequence[tuple[int, Lifetime]]) -> int:
    """Count the most bytes that are in use in one item: in that in which some array's lifetime begins."""
    return max(
        (
            sum(aligned(nbytes) for nbytes, life in arrays if life.first <= item <= life.last)
            for item in {life.first for _, life in arrays}
        ),
        default=0,
    )


def _placed_in(order: Sequence[int], arrays: Sequence[tuple[int, Lifetime]]) -> list[int]:
    """Place arrays in this order, each at the lowest place that is free in its lifetime."""
    begins: dict[int, int] = {}
    for number in order:
        nbytes, lifetime = arrays[number]
        taken = sorted(
            (begin, begin + aligned(arrays[other][0]))
            for other, begin in begins.items()
            if arrays[other][1].meets(lifetime)
        )
        begins[number] = _first_gap(taken, aligned(nbytes))
    return [begins[number] for number in range(len(arrays))]


def _first_gap(taken: Iterable[tuple[int, int]], nbytes: int) -> int:
    """Return where so many bytes are free; what is taken is sorted."""
    begin = 0
    for start, stop in taken:
        if start - begin >= nbytes:
            break
        begin = max(begin, stop)
    return begin
