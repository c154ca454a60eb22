"""nn/train/recorded_steps.py: which steps are recorded; they compute what others do, on all ranks."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nn.app.options import Options
from nn.train.recorded_steps import chosen
from pyrt.errors import UserError
from pyrt.job import join
from pyrt.timeline import EXCHANGE, HOST, KERNEL, STEP, Span
from pyrt.timeline.chrome import spans_of
from tests import few
from tests.nn.small_runs import saved, using
from train import train

SMALL = using(epochs=2, batch=10, samples=35, seed=3)


@pytest.mark.parametrize(
    ("asked", "done", "steps", "expected"),
    [
        (None, 0, 400, (10, 14)),
        (None, 9, 14, (10, 14)),
        (None, 0, 13, (9, 13)),  # the last five of a shorter run
        (None, 0, 3, (1, 3)),
        (None, 11, 400, (396, 400)),  # resumed behind the usual ones
        (None, 398, 400, (399, 400)),
        ((3, 3), 2, 3, (3, 3)),
    ],
)
def test_steps_are_chosen(
    asked: tuple[int, int] | None, done: int, steps: int, expected: tuple[int, int]
) -> None:
    assert chosen(asked, done, steps) == expected


@pytest.mark.parametrize(
    ("asked", "done", "steps", "said"),
    [
        ((3, 5), 0, 4, "--timeline-steps 3:5: the run has steps 1 to 4"),
        ((3, 5), 3, 9, "the run has steps 4 to 9"),
        (None, 9, 9, "the run has no steps left to record: leave it out"),
        ((8, 9), 9, 9, "the run has no steps left"),
    ],
)
def test_steps_that_the_run_has_not_are_refused(
    asked: tuple[int, int] | None, done: int, steps: int, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        chosen(asked, done, steps)


def trained(file: Path | None, folder: Path, **changes: object) -> dict[str, Any]:
    """The bits of the weights after a run that perhaps writes a timeline. Collective."""
    options = dataclasses.replace(SMALL, save=folder / "w.npz", timeline=file, **changes)
    train(options)
    join().comm.Barrier()
    weights = saved(folder / "w.npz")
    join().comm.Barrier()
    return weights


def spans_in(file: Path) -> list[tuple[int, Span]]:
    return spans_of(json.loads(file.read_text()))


def check_host(found: list[tuple[int, Span]], ranks: int, steps: list[int]) -> None:
    """Each rank has these steps, and in each of them one batch iteration with what is usual in it."""
    for rank in range(ranks):
        mine = [span for number, span in found if number == rank]
        assert [span.name for span in mine if span.kind == STEP] == [f"step {step}" for step in steps]
        assert {span.step for span in mine} == set(steps)
        phases = Counter((span.name, span.step) for span in mine if span.track == HOST)
        for step in steps:
            assert phases["batch iteration", step] == phases["forward", step] == 1


@pytest.mark.parallel([2])
def test_ranks_on_the_cpu_are_in_one_file(tmp_path: Path) -> None:
    folder: Path = join().comm.bcast(tmp_path)
    file = folder / "timeline.json"
    plain = trained(None, folder, device="cpu", exchange="host")
    assert trained(file, folder, device="cpu", exchange="host", timeline_steps="4:6") == plain
    found = spans_in(file)
    check_host(found, 2, [4, 5, 6])
    sums = Counter((rank, span.step) for rank, span in found if span.name == "Iallreduce")
    assert all(sums[rank, step] >= 2 for rank in (0, 1) for step in (4, 5, 6))  # of two buckets
    # No sum ends on a rank before it began on the other.
    first, second = (
        [span for number, span in found if number == rank and span.name == "Iallreduce"] for rank in (0, 1)
    )
    assert len(first) == len(second)
    for mine, other in zip(first, second, strict=True):
        assert max(mine.start, other.start) <= min(mine.stop, other.stop)


@pytest.mark.kernels
@pytest.mark.parallel([2])
@pytest.mark.parametrize("exchange", few(["peer"], of=["host", "peer"]))
def test_recorded_steps_are_launched_and_the_others_replayed(tmp_path: Path, exchange: str) -> None:
    """With the same bits as where all are replayed. The last batch of an epoch is a short one: step 4 too."""
    folder: Path = join().comm.bcast(tmp_path)
    file = folder / "timeline.json"
    ways = {"device": "emulated", "exchange": exchange}
    plain = trained(None, folder, **ways)
    assert trained(file, folder, **ways, timeline_steps="4:7") == plain
    found = spans_in(file)
    check_host(found, 2, [4, 5, 6, 7])
    assert "graph replay" not in {span.name for _, span in found}
    for rank in (0, 1):
        products = [span.step for number, span in found if number == rank and span.name.startswith("gemm")]
        assert Counter(products) == dict.fromkeys((4, 5, 6, 7), 5)
        exchanges = [span.step for number, span in found if number == rank and span.kind == EXCHANGE]
        assert exchanges == ([4, 5, 6, 7] if exchange == "peer" else [])
    kernels = [span for _, span in found if span.kind in (KERNEL, EXCHANGE)]
    assert {span.track for span in kernels} >= {"stream compute"}


def test_a_timeline_needs_steps() -> None:
    for wrong in ({"epochs": 0}, {"memory": True}, {"evaluate": True, "init": "w.npz"}):
        with pytest.raises(UserError, match="--timeline: records steps, and the run has none"):
            Options(timeline="t.json", **wrong)
    with pytest.raises(UserError, match="goes with --timeline FILE"):
        Options(timeline_steps="1:2")
    for text in ("", "3", "0:2", "2:1:3", "a:b", "5:4"):
        with pytest.raises(UserError, match="--timeline-steps"):
            Options(timeline="t.json", timeline_steps=text)


def test_one_rank_records_whatever_the_exchange(tmp_path: Path) -> None:
    """Alone it has no servers, so that it makes steps as any other run."""
    file = tmp_path / "timeline.json"
    trained(file, tmp_path, device="cpu", exchange="server", timeline_steps="2:3")
    check_host(spans_in(file), 1, [2, 3])


@pytest.mark.parallel([2])
def test_servers_make_no_steps_to_record() -> None:
    with pytest.raises(UserError, match="--timeline: records the steps of all ranks, and servers make none"):
        train(dataclasses.replace(SMALL, timeline=Path("t.json"), device="cpu", exchange="server"))
