"""nn/train/replay.py: which steps are queued at once; no graph and no placement changes the bits of a run."""

import dataclasses
import itertools
import re
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from nn.app.console import Console
from nn.app.options import Options
from nn.input import placement, streamed, upload_queue
from nn.input.schedule import Schedule
from nn.launch.gemm.versions import runs_gemm
from nn.parallel import buckets
from nn.train.diverged import Diverged
from nn.train.replay import MOST, is_timed, next_run
from nn.train.step_queue import StepQueue
from pyrt.errors import UserError
from pyrt.job import join
from tests import few
from tests.nn.small_runs import saved
from train import train

SMALL = Options(hidden=(9, 7), epochs=3, batch=10, lr=0.5, momentum=0.0, reg=0.01, val_fraction=0.0, seed=3)

WAYS = [{"graph": graph, "placement": where} for graph in (False, True) for where in ("stream", "resident")]


def runs(schedule, step, most, ends, stop=None):
    """All runs from a step on, up to ``stop``."""
    stop = schedule.steps if stop is None else stop
    while step < stop:
        yield (found := next_run(schedule, step, stop, most, ends))
        step = found.stop


def all_runs(schedule, most=MOST, ends=()):
    """Those of each epoch."""
    found = [[] for _ in range(schedule.epochs)]
    for steps in runs(schedule, 0, most, ends):
        found[schedule.epoch(steps.first)].append(steps)
    return found


def schedule(samples, batch, epochs=5):
    return Schedule(samples, samples, batch, epochs, True, 0)


class TestRuns:
    @pytest.mark.parametrize(("samples", "batch"), [(200, 10), (203, 10), (7, 7), (9, 7), (1500, 10)])
    @pytest.mark.parametrize("most", [1, 2, 8])
    @pytest.mark.parametrize("ends", [(), (1,), (5,), (7, 4), (1000, 64)])
    def test_no_run_crosses_what_must_end_one(self, samples, batch, most, ends):
        batches = schedule(samples, batch)
        passed = 0
        for epoch, found in enumerate(all_runs(batches, most, ends)):
            for first, steps, timed in found:
                assert (first, epoch) == (passed, batches.epoch(first))
                assert steps in (1, 2, 4, 8) and steps <= most
                assert timed == is_timed(first, batches.steps) and (steps == 1 or not timed)
                inside = range(first, first + steps)
                assert steps == 1 or all(batches.size(step) == batch for step in inside)
                assert not any(is_timed(step, batches.steps) for step in inside[1:])
                for end in ends:
                    assert [step for step in inside if (step + 1) % end == 0] in ([], [inside[-1]])
                passed += steps
            assert passed == (epoch + 1) * batches.batches

    def test_they_are_as_long_as_may_be(self):
        first, second, *_, seventh = all_runs(schedule(203, 10, epochs=7))
        assert [steps for _, steps, _ in first] == [1, 1, 1, 1, 1, 8, 4, 2, 1, 1]
        assert [steps for _, steps, _ in second] == [8, 8, 4, 1]
        assert [steps for _, steps, _ in seventh] == [1, 1, 8, 8, 2, 1]
        printing = all_runs(schedule(200, 10), ends=[6])[1]
        assert [steps for _, steps, _ in printing] == [4, 4, 2, 4, 2, 4]

    def test_they_begin_at_any_step_and_end_at_any(self):
        """And are the steps between, each once."""
        batches = schedule(203, 10, 3)
        for first, stop in itertools.combinations(range(batches.steps + 1), 2):
            found = list(runs(batches, first, MOST, (6,), stop))
            steps = [step for one in found for step in range(one.first, one.stop)]
            assert steps == list(range(first, stop))
            assert all(batches.epoch(one.first) == batches.epoch(one.stop - 1) for one in found)

    def test_few_steps_are_timed_and_short_ones_among_them(self):
        timed = [step for step in range(3000) if is_timed(step, 3000)]
        assert timed[:5] == [1, 2, 3, 4, 127] and len(timed) < 3000 / 120 + 5
        for batches in range(1, 20):
            assert {step % batches for step in timed} == set(range(batches))
        assert is_timed(0, 1)


@pytest.fixture
def ended(driver, tmp_path, monkeypatch):
    """Makes a run on random images, in this process: all that it can be told by, bit by bit.

    Having the ``driver`` open keeps a GPU's context from one run to the next.
    """
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (50, 3, 4)).astype(np.uint8)
    np.savez(tmp_path / "digits.npz", x_train=images, y_train=np.arange(50) % 3)
    folder = join().comm.bcast(tmp_path)
    monkeypatch.setattr(buckets, "PANEL_BYTES", 200)  # two panels of the first layer

    def run_to_end(console=None, **changes):
        where = {"device": driver.name, "data": str(tmp_path / "digits.npz"), "share_gpus": True}
        options = dataclasses.replace(SMALL, save=folder / "w.npz", **{**where, **changes})
        report = train(options, console=console)
        join().comm.Barrier()
        weights = saved(folder / "w.npz")
        join().comm.Barrier()
        return weights, report.losses, [epoch.loss for epoch in report.epochs], report

    return run_to_end


CASES = {
    "one step": {"samples": 8, "batch": 8, "epochs": 1},
    "ragged last batch": {"samples": 45, "momentum": 0.9, "print_every": 7},
    "repeated samples, in order": {"samples": 120, "batch": 9, "shuffle": False, "epochs": 2},
    "ranks without samples": {"samples": 7, "batch": 3, "print_every": 2, "epochs": 5},
}


@pytest.mark.parallel(few([1], of=[1, 2, 3, 4]))
def test_graphs_and_placements_give_the_same_bits(ended):
    """One rank takes all cases, two the second, three the third and four the last."""
    ranks, failed, names = join().size, [], list(CASES)
    for name in few(names[1::2], of=names) if ranks == 1 else [names[ranks - 1]]:
        results = [ended(**CASES[name], **way)[:3] for way in WAYS]
        failed += [(name, way) for way, got in zip(WAYS, results, strict=True) if got != results[0]]
    assert not failed


@pytest.mark.long
@pytest.mark.parallel(few([2], of=[1, 2, 3]))
def test_chunks_of_any_size_give_the_same_bits(ended, monkeypatch):
    """As a resident set: rows of 12 bytes, at most 10, 5 or 4 of a batch to a rank, in chunks of 1 to 4."""
    some = {
        "ragged last batch": [(1, False), (400, True)],
        "ranks without samples": [(250, True), (10**6, False)],
    }
    of = list(itertools.product((1, 250, 400, 10**6), (False, True)))
    for name, ways in some.items():
        case = CASES[name]
        expected = ended(placement="resident", **case)[:3]
        for chunk_bytes, graph in few(ways, of=of):
            monkeypatch.setattr(streamed, "CHUNK_BYTES", chunk_bytes)
            got = ended(placement="stream", graph=graph, **case)[:3]
            assert got == expected, (case, chunk_bytes, graph)


def test_steps_of_two_chunks_are_never_queued_at_once(ended, monkeypatch):
    """Those of one are: four rows of 12 bytes a batch, four batches in a chunk."""
    monkeypatch.setattr(streamed, "CHUNK_BYTES", 4 * 4 * 12)
    queue, queued = StepQueue.queue, []

    def noted(training, run):
        queued.append(range(run.first, run.first + run.steps))
        queue(training, run)

    monkeypatch.setattr(StepQueue, "queue", noted)
    ended(placement="stream", batch=4, samples=80, epochs=3)
    assert all(steps[0] // 4 == steps[-1] // 4 for steps in queued)
    assert max(map(len, queued)) == 4 and sum(map(len, queued)) == 60


@pytest.mark.parallel([2])
@pytest.mark.parametrize("exchange", few(["blocking"], of=["root", "blocking"]))
def test_graphs_around_exchanges_that_wait_give_the_same_bits(ended, exchange):
    case = {"exchange": exchange, "samples": 25}
    assert ended(graph=False, **case)[:3] == ended(**case)[:3]


@pytest.mark.long
@pytest.mark.parallel([3])
@pytest.mark.kernels
def test_graphs_around_the_device_exchange_give_the_same_bits(ended):
    """On the emulated device, whose memory every MPI takes."""
    case = {"exchange": "device", "samples": 25, "device": "emulated"}
    assert ended(graph=False, **case)[:3] == ended(**case)[:3] == ended(sanitize=True, **case)[:3]


@pytest.mark.kernels
def test_in_every_order_and_under_the_checks_too(ended):
    """On the emulated device; tests/nn/app/test_run_on_several_ranks.py has the default placement."""
    case = {"device": "emulated", "samples": 25, "batch": 4, "epochs": 2, "placement": "stream"}
    expected = ended(graph=False, **case)[:3]
    apart = {"sanitize": True}, {"order_seed": 1}
    for how in few([{"sanitize": True, "order_seed": 1}], of=[*apart, {"sanitize": True, "order_seed": 1}]):
        assert ended(**how, **case)[:3] == expected


class Lines(Console):
    """Keeps what is said of steps."""

    def __init__(self):
        super().__init__(speaking=False)
        self.lines = []

    def say(self, line):
        if line.startswith("step "):
            self.lines.append(line)


@pytest.mark.parallel(few([2], of=[1, 2]))
def test_a_run_diverges_at_the_same_step(ended):
    """Every rank stops there, and all losses before it have been printed: weights grow 10^4 times a step."""
    changes = {"samples": 160, "batch": 5, "epochs": 9, "lr": 1e6}
    for print_every in (None, 5) if join().size == 1 else (5,):
        told = set()
        for way in few(WAYS[::3], of=WAYS):
            said = Lines()
            with pytest.raises(Diverged) as caught:
                ended(said, print_every=print_every, **changes, **way)
            told.add((str(caught.value), tuple(said.lines)))
        ((message, _),) = set().union(*join().comm.allgather(told))
        assert re.search(r"epoch 1, step ([789]|1[012]):", message)  # in the first graph of eight steps


@pytest.mark.parametrize("fails", ["a loss", "a helper", "an order"])
def test_no_thread_outlives_a_run_that_ends_early(ended, monkeypatch, fails):
    """And what a thread raised ends the run, whose chunks have two steps."""
    monkeypatch.setattr(streamed, "CHUNK_BYTES", 2 * 5 * 12)
    take, calls = np.take, itertools.count()

    def at_third_call(*arguments, **keywords):
        if next(calls) == 2:
            raise MemoryError
        return take(*arguments, **keywords)

    if fails != "a loss":
        module = upload_queue if fails == "a helper" else streamed
        monkeypatch.setattr(module, "np", SimpleNamespace(**{**vars(np), "take": at_third_call}))
    before = set(threading.enumerate())  # of other tests
    with pytest.raises(Diverged if fails == "a loss" else MemoryError):
        ended(placement="stream", batch=5, epochs=9, lr=1e6 if fails == "a loss" else 0.1)
    assert "helper" not in [thread.name for thread in set(threading.enumerate()) - before]


ENDS = [("tiled", "sum of losses"), ("wgmma", "sums of the blocks")]


@pytest.mark.parallel(few([2], of=[1, 2]))
@pytest.mark.parametrize(("gemm", "end"), few(ENDS[:1], of=ENDS))
def test_phases_in_graphs_are_counted_and_timed(driver, ended, gemm, end):
    """As often as without graphs; some of them are timed, and the host's part is the replays alone. One phase
    of the network's ``end`` is among them, which is one kernel where products are on tensor cores."""
    if not runs_gemm(gemm, driver.architecture):
        pytest.skip("needs the tensor cores of sm_90")
    changes = {"samples": 40, "batch": 5, "epochs": 2, "gemm": gemm, "exchange": "host"}
    *_, plain = ended(graph=False, **changes)
    *_, graphs = ended(**changes)
    if join().rank > 0:
        return
    on_device = [row for row in plain.phases if row.device is not None]
    assert len(on_device) > 12
    for row in on_device:
        assert graphs.phase(row.name).calls == row.calls, row.name
    replays = graphs.phase("graph replay").calls
    panels = 4 * 16 if join().size > 1 else 0
    assert (replays < 20) if join().size == 1 else (replays == panels), replays
    for name in ("forward", "scale pixels", "forward GEMM 1", end, "backward", "backward GEMM 5"):
        assert graphs.phase(name).device > 0 and graphs.phase(name).host == 0
    assert graphs.phase("forward").device > graphs.phase("forward GEMM 1").device


@pytest.mark.parallel([2])
def test_ranks_that_reach_each_other_replay_many_steps_at_once(driver, ended):
    """No host between them: 16 steps in fewer than 10 graphs, with the numbers of single launches."""
    changes = {"samples": 40, "batch": 5, "epochs": 2, "exchange": "peer"}
    *numbers, plain = ended(graph=False, **changes)
    *replayed, graphs = ended(**changes)
    assert numbers == replayed
    if join().rank == 0:
        assert graphs.phase("graph replay").calls < 10
        assert (
            graphs.phase("sum, update and spread").calls == plain.phase("sum, update and spread").calls == 16
        )


def test_a_profile_launches_each_kernel(ended):
    *_, report = ended(profile=True, samples=30)
    assert "graph replay" not in [row.name for row in report.phases]
    assert report.phase("forward GEMM 1").host > 0
    assert not report.environment["graphs"]


@pytest.mark.parametrize("way", WAYS)
def test_the_header_says_where_the_batches_come_from(ended, way):
    *_, report = ended(samples=10, epochs=0, **way)
    (line,) = (line for line in report.environment["header"] if line.startswith("batches"))
    assert way["placement"] in line and ("graphs are replayed" in line) == way["graph"]


def test_auto_is_resident_where_there_is_room(ended, driver, monkeypatch):
    assert ended(samples=10, epochs=0)[3].environment["placement"] == "resident"
    monkeypatch.setattr(type(driver), "free_memory", lambda self: placement.MARGIN)
    assert ended(samples=10, epochs=0)[3].environment["placement"] == "stream"


def test_there_is_no_place_for_the_set_but_the_cpus(ended):
    assert ended(device="cpu", epochs=0)[3].environment["placement"] == "stream"
    with pytest.raises(UserError, match="--placement resident: there is no device"):
        ended(device="cpu", epochs=0, placement="resident")
