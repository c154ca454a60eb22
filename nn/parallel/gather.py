"""Collects whole arrays on rank 0: parameters, and what updates keep from step to step.

An exchange updates some parts of the flat buffers on this rank and other parts on others. Arrays that only an
update writes, as momentum, are stale outside a rank's own parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nn.model.network import Network
from nn.parallel.shard import Shard, whole_parameters
from pyrt.arrays import Arena, DeviceArray, Layout
from pyrt.exchange import Bucket
from pyrt.job import Job


class Span(NamedTuple):
    """Elements ``start`` to ``stop`` of a named array, flat, as a shard has it."""

    shard: int
    name: str
    start: int
    stop: int


def gather_parameters(shard: Shard, parameters: Arena, job: Job) -> dict[str, np.ndarray]:
    """Collect all parameters on rank 0; return an empty dict on other ranks. Collective."""
    if shard.plan.is_data:
        mine = parameters.to_host() if job.rank == 0 else None
        job.wait_for_all()
        return shaped(shard.network, mine) if mine is not None else {}
    mine = parameters.to_host() if shard.group == 0 else None
    job.wait_for_all()
    parts = job.comm.gather(mine)
    return (
        whole_parameters(shard.plan, shard.network, parts[: shard.plan.shards]) if parts is not None else {}
    )


def gather_updated(
    shard: Shard, flat: DeviceArray, updates: Sequence[Bucket], job: Job
) -> dict[str, np.ndarray]:
    """Collect arrays named and shaped as all parameters on rank 0; return an empty dict on other ranks.

    ``flat`` (n,) is laid out as this rank's parameters and is right in ``updates``. Collective. Raises
    RuntimeError on rank 0 where no rank updates some element.
    """
    layout = Layout(shard.shapes, flat.dtype)
    job.wait_for_all()
    if job.survives:
        return _gather_of_survivors(shard, flat, _spans(shard, layout, updates), job)
    offered = job.comm.gather(_spans(shard, layout, updates))
    wanted = _first_owners(offered) if offered is not None else None
    mine = job.comm.scatter(wanted)
    places = [
        flat.rows(layout.offsets[name] + start, layout.offsets[name] + stop) for _, name, start, stop in mine
    ]
    if wanted is None:
        for place in places:
            job.comm.Send(place.to_host(), 0)
        return {}
    parts = _empty_parts(shard, flat.dtype)
    _require_complete(parts, wanted)
    flat.driver.synchronize()
    stream = flat.driver.create_stream()
    for span, place in zip(mine, places, strict=True):
        place.queue_download(_in(parts, span), stream)
    flat.driver.synchronize_stream(stream)
    for owner, spans in enumerate(wanted[1:], 1):
        for span in spans:
            job.comm.Recv(_in(parts, span), owner)
    if shard.plan.is_data:
        return shaped(shard.network, parts[0])
    return whole_parameters(shard.plan, shard.network, parts)


def _gather_of_survivors(
    shard: Shard, flat: DeviceArray, spans: Sequence[Span], job: Job
) -> dict[str, np.ndarray]:
    """Collect the same in one gather, what several ranks hold too: a rank that is asked later may be dead."""
    first = {name: Layout(shard.shapes, flat.dtype).offsets[name] for name in shard.shapes}
    mine = [
        (span, flat.rows(first[span.name] + span.start, first[span.name] + span.stop).to_host())
        for span in spans
    ]
    offered = job.comm.gather(mine)
    if offered is None:
        return {}
    parts, wanted = _empty_parts(shard, flat.dtype), _first_owners([[s for s, _ in one] for one in offered])
    _require_complete(parts, wanted)
    for span, array in (pair for one in reversed(offered) for pair in one):
        _in(parts, span)[:] = array
    return shaped(shard.network, parts[0])


def shaped(network: Network, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """View whole arrays, weights as matrices, in the shapes of the network's parameters."""
    return {name: arrays[name].reshape(shape) for name, shape in network.shapes.items()}


def _spans(shard: Shard, layout: Layout, updates: Sequence[Bucket]) -> list[Span]:
    """Cut this rank's updates into spans of arrays. Layers that all shards hold whole count as shard 0's."""
    result = []
    for name in layout.shapes:
        first, end = layout.span(name)
        index = 0 if _is_common(shard, name) else shard.index
        for start, stop in updates:
            start, stop = max(start, first), min(stop, end)
            if start < stop:
                result.append(Span(index, name, start - first, stop - first))
    return result


def _is_common(shard: Shard, name: str) -> bool:
    """Return whether all ranks hold this array, and update it together."""
    return shard.plan.over_all(int(name[1:]))


def _first_owners(offered: Sequence[Sequence[Span]]) -> list[list[Span]]:
    """Return, for each rank, its spans that no rank before it has."""
    seen: set[Span] = set()
    result = []
    for spans in offered:
        result.append([span for span in spans if span not in seen])
        seen.update(spans)
    return result


def _empty_parts(shard: Shard, dtype: np.dtype) -> list[dict[str, np.ndarray]]:
    """Make arrays of each shard, to be filled; a common one is the same array in all shards."""
    parts: list[dict[str, np.ndarray]] = []
    for index in range(shard.plan.shards):
        shapes = Shard(shard.plan, shard.network, index).shapes
        parts.append(
            {
                name: parts[0][name] if index and _is_common(shard, name) else np.empty(shape, dtype)
                for name, shape in shapes.items()
            }
        )
    return parts


def _require_complete(parts: Sequence[dict[str, np.ndarray]], wanted: Sequence[Sequence[Span]]) -> None:
    """Raise RuntimeError unless the spans fill all arrays: none may keep what memory held before."""
    sizes = {id(array): array.size for arrays in parts for array in arrays.values()}
    found = sum(span.stop - span.start for spans in wanted for span in spans)
    if found != sum(sizes.values()):
        raise RuntimeError(f"ranks update {found} of {sum(sizes.values())} parameters, each counted once")


def _in(parts: Sequence[dict[str, np.ndarray]], span: Span) -> np.ndarray:
    """Return the place (stop - start,) of a span."""
    return parts[span.shard][span.name].reshape(-1)[span.start : span.stop]
