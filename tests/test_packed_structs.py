"""Structs that Python packs for kernels have the sizes that the kernels' compiler gives them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from nn.launch.conv.flip import TURN
from nn.launch.kernels import Kernels
from nn.launch.update import LossRing, Optimiser, Segment, UpdateArrays
from nn.optimisers import OPTIMISERS, Sgd
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.exchange import Bucket, NoUpdate, PackedUpdate
from pyrt.exchange.peer import MOST_RANKS, Peers, shares
from pyrt.kernels import KERNELS, REALS, KernelLibrary
from pyrt.redistribute import Redistribution
from pyrt.redistribute.peer import _PAST_BYTES, _packed_plan, _packed_stage
from pyrt.redistribute.regions import Region
from pyrt.redistribute.slices import BYTES, packed_slice
from tests import few
from tests.pyrt.sources import folder_of

ALL = [pytest.param(make(), id=name) for name, make in OPTIMISERS.items()]


def sizes(
    driver: Driver, include: str, structs: Sequence[str], constants: Mapping[str, str | int]
) -> list[int]:
    """What sizeof says, in bytes, of structs that a file of the project has under these constants."""
    line = " ".join(f"{name}={value}" for name, value in constants.items())
    found = "".join(f"found[{place}] = sizeof({name});" for place, name in enumerate(structs))
    source = (
        f'// constants: {line}\n#include "{include}"\n'
        f'extern "C" __global__ void sizes(int *found) {{ {found} }}\n'
    )
    library = KernelLibrary(driver, [folder_of("sizes", source), KERNELS])
    result = DeviceArray.from_host(driver, np.zeros(len(structs), np.int32))
    stream = driver.create_stream()
    library.kernel("sizes", "sizes", **constants).bind((1,), (1,), result)(stream)
    driver.synchronize_stream(stream)
    return result.to_host().tolist()


def arrays_of(driver: Driver, optimiser: Optimiser, dtype: np.dtype) -> tuple[UpdateArrays, LossRing]:
    flat = {name: DeviceArray.empty(driver, (8,), dtype) for name in ("p", "g", *optimiser.states)}
    clock = np.array(optimiser.clock_at(0), np.float64)
    on_device = DeviceArray.from_host(driver, clock) if optimiser.clock else None
    p, g = flat.pop("p"), flat.pop("g")
    place = DeviceArray.from_host(driver, np.zeros(1, np.int32))
    return UpdateArrays(optimiser, p, g, flat, on_device), LossRing(p.rows(0, 1), p, place)


@pytest.mark.parametrize("optimiser", ALL)
def test_an_update(driver: Driver, dtype: np.dtype, optimiser: Optimiser) -> None:
    arrays, ring = arrays_of(driver, optimiser, dtype)
    kernels = Kernels(KernelLibrary(driver), dtype)
    constants = {"REAL": REALS[dtype], "UPDATE": optimiser.header}
    structs = ["Update", "Segment", "LossRing"]
    assert sizes(driver, optimiser.header, structs, constants) == [
        arrays.packed(kernels, ring).nbytes,
        len(Segment(0, 8, 4).packed()),
        len(ring.packed()),
    ]


def test_the_clock_of_adam(driver: Driver) -> None:
    adam = OPTIMISERS["adam"]()
    (size,) = sizes(driver, adam.header, ["AdamClock"], {"REAL": "float", "UPDATE": adam.header})
    assert size == 8 * adam.clock == 8 * len(adam.clock_at(7))


def test_filters_that_are_turned(driver: Driver) -> None:
    assert sizes(driver, "conv/flip.cu", ["Turn"], {"REAL": "float"}) == [TURN.size]


class Notes:
    """A library whose kernels note the bytes of the arrays that they are bound to."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.nbytes: list[int] = []

    def kernel(self, file: str, name: str, **constants: str | int) -> Notes:
        return self

    def bind(self, grid: object, block: object, *arguments: object) -> None:
        self.nbytes = [one.nbytes for one in arguments if isinstance(one, DeviceArray)]


BUCKETS = [Bucket(0, 4), Bucket(4, 8), Bucket(8, 12)]


def peers_of(driver: Driver, ranks: int, kinds: int) -> Peers:
    """So many ranks, each with so many kinds of memory."""
    g, slots = DeviceArray.empty(driver, (12,), "f4"), DeviceArray.empty(driver, (1,), "i4")
    return Peers(g, 0, ranks, shares(BUCKETS, ranks), "a file", [[g] * ranks] * kinds, slots, 0, 32)


def bound(driver: Driver, peers: Peers, packed: PackedUpdate) -> tuple[int, int]:
    """The bytes of the ranks, and of a bucket, as a kernel gets them."""
    notes = Notes(driver)
    peers.bind("sum_shards", dataclasses.replace(packed, library=notes))  # type: ignore[arg-type]
    ranks, buckets, _ = notes.nbytes
    assert buckets % len(BUCKETS) == 0
    return ranks, buckets // len(BUCKETS)


@pytest.mark.parametrize(
    ("file", "kinds", "most"),
    [
        (*file, most)
        for file, most in few(
            [(("comm/peer.cu", 1), MOST_RANKS[0])],
            of=list(itertools.product([("comm/peer.cu", 1), ("comm/peer_flags.cu", 3)], MOST_RANKS)),
        )
    ],
)
def test_the_ranks_of_a_node(driver: Driver, file: str, kinds: int, most: int) -> None:
    """Also where there are fewer than a kernel is compiled for."""
    constants = {"REAL": "float", "MOST_RANKS": most, "UPDATE": "comm/sums_only.cuh"}
    (size,) = sizes(driver, file, ["Peers"], constants)
    for ranks in (most // 2 + 1, most):
        peers = peers_of(driver, ranks, kinds)
        assert bound(driver, peers, peers.pack(NoUpdate()))[0] == size


@pytest.mark.parametrize("optimiser", [None, *ALL])
def test_a_bucket(driver: Driver, dtype: np.dtype, optimiser: Optimiser | None) -> None:
    """Of an update, which has its own segment, and of sums alone."""
    peers = peers_of(driver, 2, 1)
    packed = peers.pack(NoUpdate())
    if optimiser is not None:
        segments = [Segment(start, stop - start, 0) for start, stop in BUCKETS]
        arrays, ring = arrays_of(driver, optimiser, dtype)
        packed = arrays.for_peers(Kernels(KernelLibrary(driver), dtype), segments, ring)
    constants = {"REAL": REALS[dtype], "MOST_RANKS": 2, "UPDATE": packed.header}
    structs = ["Bucket", "Segment", "Update"]
    assert sizes(driver, "comm/shard.cuh", structs, constants) == [
        bound(driver, peers, packed)[1],
        len(packed.segments[0]),
        packed.update.nbytes,
    ]


@pytest.mark.parametrize("most", few(MOST_RANKS[:1], of=MOST_RANKS))
def test_a_move(driver: Driver, most: int) -> None:
    """Of one stage, and of two; also where there are fewer ranks than a kernel is compiled for."""
    constants = {"REAL": "float", "MOST_RANKS": most}
    structs = ["Plan", "Stage", "Slice", "LastMove"]
    plan, stage, piece, last = sizes(driver, "comm/redistribute.cu", structs, constants)
    array = DeviceArray.empty(driver, (9, 9), "f4")
    whole = Region((0, 9), (0, 9))
    assert (len(packed_slice(array, whole, 0)), BYTES) == (piece, piece)
    assert last == _PAST_BYTES
    for ranks in (most // 2 + 1, most):
        links = SimpleNamespace(
            setting=SimpleNamespace(job=SimpleNamespace(rank=0, size=ranks)),
            mailboxes=SimpleNamespace(arrays=[[array] * ranks], given_up=0),
            capacity=1000,
        )
        for move in (
            Redistribution((9, 9), "rows", "columns"),
            Redistribution((9, 9), "whole", "whole", sums=True),
        ):
            assert len(_packed_plan(links, move, array, array)) == plan  # type: ignore[arg-type]
            assert len(_packed_stage(move, 0, ranks, 0, (array, whole), (array, whole))) == stage


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_rule_without_all_its_states(driver: Driver, momentum: float) -> None:
    """SGD without momentum has no velocity, and its struct a null pointer."""
    sgd = Sgd(momentum=momentum)
    arrays, _ = arrays_of(driver, sgd, np.dtype("f4"))
    packed = arrays.packed(Kernels(KernelLibrary(driver), "f4"), None)
    (size,) = sizes(driver, sgd.header, ["Update"], {"REAL": "float", "UPDATE": sgd.header})
    assert packed.nbytes == size
