"""Rewrites a step's list by rules: a rule reads the items that are left, and replaces some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from nn.launch.arrays_of import with_arrays
from nn.program.operations import Item, Operation, StartRedistribution, charged
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver


@dataclass(frozen=True)
class Replacement:
    """What takes the place of the first items of those that are left."""

    count: int
    """So many of them go."""
    items: Sequence[Item]
    """These are done: no rule looks at them again."""
    rest: Sequence[Item] = field(default=())
    """These come first in what is left."""


Rule = Callable[[Sequence[Item], Sequence[Item]], Replacement | None]
"""Looks at the items that are left, and at those that are done; None where its pattern is not there."""


def rewrite(items: Sequence[Item], rules: Sequence[Rule], driver: Driver | None = None) -> list[Item]:
    """Apply to each item the first rule whose pattern begins with it; what no rule takes stays as it is.

    Memory that a rule allocates on the driver is charged to the layer of that item.
    """
    done: list[Item] = []
    rest = list(items)
    while rest:
        found = _first(rest, done, rules, driver)
        done += found.items
        rest[: found.count] = found.rest
    return done


def _first(
    rest: Sequence[Item], done: Sequence[Item], rules: Sequence[Rule], driver: Driver | None
) -> Replacement:
    for rule in rules:
        if driver is None:
            found = rule(rest, done)
        else:
            with charged(driver, rest[0]):
                found = rule(rest, done)
        if found is not None:
            return found
    return Replacement(1, rest[:1])


def same(one: DeviceArray, other: DeviceArray) -> bool:
    """Return whether both are the same view of the same memory."""
    return (one.pointer, one.shape, one.ld) == (other.pointer, other.shape, other.ld)


def overlap(one: DeviceArray, other: DeviceArray) -> bool:
    """Return whether they may share an element: each begins before the other ends."""
    return one.pointer < other.end and other.pointer < one.end


def with_array(item: Item, array: DeviceArray, instead: DeviceArray) -> Item:
    """Return an operation that reads and writes ``instead`` in the place of all views of an array.

    Both have no gaps, and one shape. Any other item is returned as it is.
    """

    def moved(view: DeviceArray) -> DeviceArray:
        within = overlap(view, array)
        return replace(view, pointer=instead.pointer + view.pointer - array.pointer) if within else view

    if not isinstance(item, Operation):
        return item
    return replace(item, work=with_arrays(item.work, moved))


def columns_within(array: DeviceArray, whole: DeviceArray) -> tuple[int, int] | None:
    """Return the columns of a matrix that the array is a view of, as start and stop; None: of none."""
    start = (array.pointer - whole.pointer) // whole.dtype.itemsize
    stop = start + array.shape[-1]
    alike = array.ld == whole.ld and array.shape[0] == whole.shape[0]
    return (start, stop) if alike and 0 <= start <= stop <= whole.shape[-1] else None


def reads(item: Item, array: DeviceArray) -> bool:
    """Return whether an item reads some of an array."""
    return any(overlap(array, one) for one in read_by(item))


def writes(item: Item, array: DeviceArray) -> bool:
    """Return whether an item writes some of an array."""
    return any(overlap(array, one) for one in written(item))


def written(item: Item) -> Sequence[DeviceArray]:
    """Return the arrays that an item writes."""
    if isinstance(item, StartRedistribution):
        return (item.target,)
    return item.writes if isinstance(item, Operation) else ()


def read_by(item: Item) -> Sequence[DeviceArray]:
    """Return the arrays that an item reads."""
    if isinstance(item, StartRedistribution):
        return (item.source,)
    return item.reads if isinstance(item, Operation) else ()
