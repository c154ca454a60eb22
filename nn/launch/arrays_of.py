"""Finds the device arrays that a work is made of, and puts others in their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from pyrt.arrays import DeviceArray


def arrays_of(value: Any) -> Iterator[DeviceArray]:
    """Yield all device arrays of a work, and of what it is made of: of its parts, and of its calls."""
    if isinstance(value, DeviceArray):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from arrays_of(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from arrays_of(part)
    elif isinstance(value, partial):
        yield from arrays_of((*value.args, value.keywords))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from arrays_of(getattr(value, field.name))


def with_arrays(value: Any, change: Callable[[DeviceArray], DeviceArray]) -> Any:
    """Rebuild a work on other arrays: ``change`` returns the one to take in the place of each."""
    if isinstance(value, DeviceArray):
        return change(value)
    if isinstance(value, Mapping):
        return {name: with_arrays(part, change) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [with_arrays(part, change) for part in value]
    if isinstance(value, partial):
        arguments, keywords = with_arrays((value.args, value.keywords), change)
        return partial(value.func, *arguments, **keywords)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **{name: with_arrays(part, change) for name, part in parts.items()})
    return value
