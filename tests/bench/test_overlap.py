"""bench/overlap.py: what is timed and when, what is made of it, and what is left out."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace

import pytest

from bench import exchange, overlap, step
from bench.overlap import Measured, Row, Work
from bench.timing import Times
from nn.app.options import Options
from nn.train.training_exchange import ExchangeOpener
from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.errors import UserError
from pyrt.exchange.registry import exchanges
from pyrt.job import AgreedError, Job, join
from pyrt.mpi_probe.libraries import Verdict


def us(median: float) -> Times:
    return Times(median, median - 1, median + 1)


MEASURED = Measured(
    Work((512,), 12000),
    [Row("host", us(700.0), us(600.0)), Row("peer", us(80.0), us(30.0))],
    none=us(50.0),
    one_gpu=us(160.0),
    part=us(60.0),
)


def test_what_is_made_of_the_times():
    host, peer = MEASURED.rows
    assert MEASURED.exposed(host) == 650 and MEASURED.exposed(peer) == 30
    assert MEASURED.rule(host) == (700 - 600) / 50
    assert MEASURED.rule(peer) == (80 - 50) / 30
    assert MEASURED.gain(peer) == 2
    assert MEASURED.efficiency(peer) == 0.75
    assert MEASURED.fastest() is peer


def test_the_table_has_each_exchange_in_a_line():
    head, _, host, peer = overlap.table(MEASURED).splitlines()
    names = ["exchange", "step us", "min to max", "x 1 GPU", "efficiency", "no exchange us", "exposed us"]
    assert head.split() == " ".join([*names, "exchange alone us", "overlap rule"]).split()
    assert " ".join(host.split()) == "host 700.0 699.0 to 701.0 0.23 0.09 50.0 650.0 600.0 2.00"
    assert " ".join(peer.split()) == "peer 80.0 79.0 to 81.0 2.00 0.75 50.0 30.0 30.0 1.00"


def test_what_was_not_measured_is_not_in_the_table():
    bare = Measured(Work((9,), 7), MEASURED.rows, us(50.0))
    assert overlap.table(bare).splitlines()[2].split()[5:7] == ["-", "-"]
    assert overlap.title(bare, "two cards") == "784-9-10, batch 7, two cards"
    assert overlap.title(MEASURED, "x").endswith(
        "x; one GPU: 160.0 us; efficiency: batch 3000 on one GPU (60.0 us) / step"
    )


def test_the_numbers_that_matter():
    strong = Measured(overlap.STRONG, [Row("peer", us(40.0), us(20.0))], us(30.0), us(60.0))
    slow = [Row(way, us(time), us(1.0)) for way, time in (("device", 900), ("host", 400), ("blocking", 500))]
    wide = Measured(overlap.WIDE, slow, us(200.0), us(300.0))
    even = Measured(Work((2048,), 99000), [Row("host", us(500.0), us(380.0))], us(400.0))
    assert list(overlap.in_short("4 GPUs", strong, MEASURED, wide, even)) == [
        "4 GPUs over 1, hidden 512, batch 3000: 1.50 (peer, exposed exchange 10.0 us)",
        "4 GPUs over 1, hidden 512, batch 12000: 2.00 (peer, exposed exchange 30.0 us)",
        "4 GPUs over 1, hidden 2048, batch 12000: 0.75 (host, exposed exchange 200.0 us)",
        "weak scaling, 3000 a rank: 0.75 (peer, exposed exchange 30.0 us)",
        "through MPI, hidden 2048, batch 12000, us: device 900.0, host 400.0, blocking 500.0",
        "host where products and exchange take about as long, hidden 2048, batch 99000: overlap rule 0.26",
    ]
    assert len(list(overlap.in_short("4 GPUs", strong, MEASURED, strong))) == 4


def test_windows_are_of_whole_epochs(monkeypatch):
    monkeypatch.setattr(overlap, "SECONDS", 0.5)
    assert overlap.epochs_of_window(50e-6) == 50
    assert overlap.epochs_of_window(8e-3) == 1


def test_the_batch_grows_until_products_take_as_long():
    assert overlap.balanced(Work((2048,), 12000), 300.0, 3210.0) == Work((2048,), 193000)
    assert overlap.balanced(Work((2048,), 12000), 200.0, 10.0) == Work((2048,), 1000)
    assert overlap.balanced(Work((2048,), 12000), 1.0, 1e9) == Work((2048,), 768000)


def test_an_exchange_alone_has_the_buckets_of_training(monkeypatch):
    made = {}
    monkeypatch.setattr(
        ExchangeOpener, "open", lambda self, _: made.update(panels=self.arrays.panels) or stop()
    )
    for hidden in ((512,), (2048,), (1024,) * 4):
        with pytest.raises(Stop):
            step_options = Options(hidden=hidden, batch=20, epochs=1, device="cpu")
            run(step_options)
        assert overlap.buckets(Work(hidden, 3), "local") == [panel.bucket for panel in made["panels"]]
    assert len(overlap.buckets(Work((2048,), 3), "host")) > 2


class Stop(Exception):
    pass


def stop():
    raise Stop


def run(options):
    from train import train

    return train(options)


@pytest.mark.parametrize(
    ("here", "proven", "ways"),
    [
        (4, True, ["peer", "device", "host", "blocking", "root"]),
        (2, True, ["hierarchical", "device", "host", "blocking", "root"]),
        (4, False, ["peer", "host", "blocking", "root"]),
    ],
)
def test_ways_that_have_a_use_here(monkeypatch, capsys, here, proven, ways):
    monkeypatch.setattr("pyrt.exchange.device.verdict", lambda *_: Verdict("", False, proven))
    job = SimpleNamespace(size=4, rank=0, node=SimpleNamespace(size=here))
    assert list(overlap.default_ways(job, CpuDriver())) == ways
    assert ("device: left out" in capsys.readouterr().out) == (not proven)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Works that the emulated device does in moments."""
    monkeypatch.setattr(step, "DEVICE", "emulated")
    monkeypatch.setattr(overlap, "require_gpu", lambda: 2)
    for name, value in (
        ("STRONG", Work((5,), 12)),
        ("WIDE", Work((9,), 24)),
        ("DEEP", Work((4, 3), 24)),
        ("PART", 12),
        ("STEPS", 2),
        ("WINDOWS", 2),
        ("SECONDS", 0),
    ):
        monkeypatch.setattr(overlap, name, value)
    monkeypatch.setattr(overlap, "balanced", lambda work, *times: Work(work.hidden, 30))
    monkeypatch.setattr(exchange, "ROUNDS", 2)
    monkeypatch.setattr(exchange, "repetitions", lambda nbytes: 2)


@pytest.mark.long
@pytest.mark.parallel([2])
def test_steps_are_timed_in_windows_of_epochs(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "DEVICE", "cpu")
    for way, epochs in (("local", 1), ("host", 2)):
        seconds = overlap.windows(join(), Work((5,), 12).by(way), epochs)
        assert len(seconds) == overlap.WINDOWS
        assert all(0 < each < 1 for each in seconds)


@pytest.mark.parallel([2])
def test_ranks_that_share_a_gpu_are_no_gpus() -> None:
    job, one, another = join(), SimpleNamespace(device_id="a"), SimpleNamespace(device_id="b")
    assert overlap.takers(job, another if job.rank else one) == "2 GPUs"
    assert overlap.takers(job, one) == "2 ranks on 1 GPU"


@pytest.mark.parallel([2])
def test_the_slowest_rank_decides() -> None:
    job = join()
    assert overlap.slowest(job, us(10.0 + job.rank)) == us(11.0)


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parallel([2])
def test_all_of_it(small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """Exchanges are checked; how long they and steps take is said here."""
    timed: list[tuple[int, tuple[int, ...], int, str, int]] = []

    def windows(job: Job, case: step.Case, epochs: int) -> list[float]:
        timed.append((job.size, case.hidden, case.batch, case.exchange, epochs))
        return [{"local": 1e-4, "host": 3e-4, "peer": 2e-4, "auto": 4e-4}[case.exchange]] * 3

    job = join()
    monkeypatch.setattr(overlap, "SECONDS", 10e-3)  # of 2 x 2 steps without an exchange: 25 epochs
    monkeypatch.setattr(overlap, "windows", windows)
    takes = {"host": us(150.0), "peer": us(25.0)}
    monkeypatch.setattr(overlap, "alone", lambda *given: {way: takes[way] for way in given[-1]})
    monkeypatch.setattr(sys, "argv", ["overlap.py", "host", "peer"])
    assert overlap.main(job) == 0
    expected = []
    for work in (((5,), 12), ((5,), 24), ((9,), 24)):
        ways = [("local", 1), ("local", 25), ("host", 10), ("peer", 20), ("local", 25)]
        expected += [(2, *work, *way) for way in ways]
        expected += [(1, *work, "auto", 12)] if job.rank == 0 else []
    deep = (4, 3)
    expected += [(2, deep, 24, "local", 1)]  # to find a batch
    expected += [(2, deep, 30, *way) for way in (("local", 1), ("local", 25), ("host", 10), ("local", 25))]
    assert timed == expected
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    if job.rank > 0:
        assert lines == []
        return
    host, peer = (f"{time} {time} to {time}" for time in ("300.0", "200.0"))
    assert [line for line in lines if line.startswith(("host ", "peer "))] == [
        *(f"host {host} 1.33 - 100.0 200.0 150.0 1.50", f"peer {peer} 2.00 - 100.0 100.0 25.0 4.00"),
        *(f"host {host} 1.33 1.33 100.0 200.0 150.0 1.50", f"peer {peer} 2.00 2.00 100.0 100.0 25.0 4.00"),
        *(f"host {host} 1.33 - 100.0 200.0 150.0 1.50", f"peer {peer} 2.00 - 100.0 100.0 25.0 4.00"),
        f"host {host} - - 100.0 200.0 150.0 1.50",
        "host where products and exchange take about as long, hidden 4,3, batch 30: overlap rule 1.50",
    ]
    assert sum(line.startswith("784-") for line in lines) == 4


@pytest.mark.parallel([2])
def test_exchanges_alone(small: None, driver: Driver) -> None:
    times = overlap.alone(join(), driver, Work((9,), 24), ["blocking", "peer"])
    assert list(times) == ["blocking", "peer"]
    assert all(0 < each.least <= each.median for each in times.values())


@pytest.mark.kernels
@pytest.mark.parallel([2])
def test_a_wrong_exchange_is_not_timed(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    wrong = dataclasses.replace(exchanges()["host"], make=exchanges()["local"].make)
    monkeypatch.setitem(exchanges(), "host", wrong)
    monkeypatch.setattr(overlap, "windows", None)
    monkeypatch.setattr(sys, "argv", ["overlap.py", "host"])
    assert overlap.main(join()) == 1
    told = capsys.readouterr().err
    assert ("overlap.py: error: our step, hidden 9, batch 12, exchange host" in told) == (join().rank == 0)


@pytest.mark.parallel([2])
def test_an_exchange_that_does_not_work_here_is_left_out(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The CPU has no peer memory."""
    monkeypatch.setattr(step, "DEVICE", "cpu")
    failures: list[str] = []
    assert overlap.check(join(), ["peer", "host"], failures) == ["host"]
    assert failures == []
    assert capsys.readouterr().out.startswith("peer: left out: ") == (join().rank == 0)


@pytest.mark.parallel([2])
def test_an_error_on_one_gpu_ends_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AgreedError("no room")

    monkeypatch.setattr(overlap, "windows", refuse)
    with pytest.raises(AgreedError, match=r"^no room$"):
        overlap.on_one_gpu(join(), Work((5,), 12), 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"), [(["nccl"], "no exchange is called nccl"), ([], "one rank has nothing to sum")]
)
def test_arguments(small, monkeypatch, arguments, message):
    monkeypatch.setattr(sys, "argv", ["overlap.py", *arguments])
    with pytest.raises(UserError, match=message):
        overlap.main(join())
