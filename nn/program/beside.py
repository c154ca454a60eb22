"""Chooses the operations of a step that run on a stream beside the others: gradients of parameters.

The way back is a chain: each layer's gradient needs the one above. The gradients of parameters hang on it,
and nothing but the update needs them. A GPU has room for both at once where kernels are small; where they are
large, the last blocks of one leave multiprocessors to the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nn.launch.kernels import Kernels
from nn.program.operations import BACKWARD, Item, Operation
from nn.program.rewrite import overlap
from pyrt.arrays import DeviceArray

MOST_BYTES = 128 << 20
"""The way back waits once operations beside it read more than this for layers above: until they end nothing
may be written there."""


def place_beside(items: Sequence[Item], gradients: DeviceArray, kernels: Kernels) -> list[Item]:
    """Mark the operations that run beside the others, and those that must wait for them to end.

    ``gradients`` are those of all parameters, in one piece. An operation moves up the list to where what it
    reads is there. What began beside the kernel before it in the list does so no longer where another one is
    before it now, whose results it reads, or where that one runs on another stream. The list is for a step in
    which nothing but its end waits for gradients, and nothing is redistributed.
    """
    result: list[Item] = []
    for item in items:
        if isinstance(item, Operation) and _may_run_beside(item, gradients, kernels):
            result.insert(_first_place(item, result), replace(item, beside=True))
        else:
            result.append(item)
    return _ordered(_without_last(result), kernels)


def _first_place(operation: Operation, before: Sequence[Item]) -> int:
    """Return the first place in the list before an operation, in its part, at which it may come."""
    place = len(before)
    while place and before[place - 1].part == operation.part:
        item = before[place - 1]
        if isinstance(item, Operation) and (item.beside or _conflict(item, operation)):
            break
        place -= 1
    return place


def _ordered(items: Sequence[Item], kernels: Kernels) -> list[Item]:
    """Let operations wait for the one before them, and for those beside them whose arrays they touch.

    They also wait for layers above where these keep much memory in use, and for all where they take all of
    the device.
    """
    result: list[Item] = []
    pending: list[Operation] = []
    before: Operation | None = None
    for item in items:
        if isinstance(item, Operation):
            if item.beside or (before is not None and _waits_for(item, before)):
                item = _waiting(item)
            before = item
            if item.beside:
                pending.append(item)
            elif pending and (kernels.fills_device(item.work) or _must_wait(item, pending)):
                item, pending = replace(item, waits_for_beside=True), []
        result.append(item)
    return result


def _waits_for(item: Operation, before: Operation) -> bool:
    """Return whether an operation may not start early where this one is before it."""
    return before.beside or before.starts_early or _meet(before.writes, item.reads)


def _must_wait(item: Operation, pending: Sequence[Operation]) -> bool:
    """Return whether those beside it touch its arrays, or keep much memory in use for layers above."""
    above = [one for one in pending if item.layer < one.layer]
    read = {array.pointer: array.nbytes for one in above for array in one.reads}
    return sum(read.values()) > MOST_BYTES or any(_conflict(item, one) for one in pending)


def _may_run_beside(operation: Operation, gradients: DeviceArray, kernels: Kernels) -> bool:
    """Return whether it makes gradients alone, and its kernels may run while others do."""
    makes_gradients = all(overlap(array, gradients) for array in operation.writes)
    return operation.part == BACKWARD and makes_gradients and kernels.may_run_beside(operation.work)


def _conflict(one: Operation, other: Operation) -> bool:
    """Return whether one writes what the other reads or writes."""
    return _meet(one.writes, (*other.reads, *other.writes)) or _meet(other.writes, one.reads)


def _meet(some: Iterable[DeviceArray], others: Sequence[DeviceArray]) -> bool:
    return any(overlap(one, other) for one in some for other in others)


def _waiting(operation: Operation) -> Operation:
    """Return the operation so that it waits for the kernel before it in its stream."""
    if not operation.starts_early:
        return operation
    work = replace(operation.work, starts_early=False)  # type: ignore[type-var]
    return replace(operation, work=work, starts_early=False)


def _without_last(items: Sequence[Item]) -> list[Item]:
    """Leave operations behind which there are no others where they were: nothing runs beside them."""
    result = list(items)
    for place in reversed(range(len(result))):
        item = result[place]
        if isinstance(item, Operation):
            if not item.beside:
                break
            result[place] = replace(item, beside=False)
    return result
