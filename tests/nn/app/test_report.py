"""nn/app/report.py: the phase rows add up to the job's wall time; the table, the header and the JSON file."""

import json
import math
import time
from types import SimpleNamespace

import pytest

from nn.app import start
from nn.app.options import Options
from nn.app.report import PhaseRow, RankCalls, gather_phases, phase_table, stats_table
from pyrt.durations import Durations, Statistics, statistics
from pyrt.errors import UserError
from pyrt.phases import Phases, PhaseTimes
from train import train

QUICK = {"hidden": (9,), "epochs": 2, "batch": 500, "device": "cpu"}


def times(name, host, calls=2, elapsed=0.0, device=0.0, device_calls=0):
    on_host, on_device = Durations(), Durations()
    if elapsed:
        on_host.add(elapsed, calls)
    if device_calls:
        on_device.add(device, device_calls)
    return PhaseTimes(name, calls, host, on_host.measured(), on_device.measured())


def rows(*ranks):
    """What rank 0 gathers from the phase times of all ranks."""
    comm = SimpleNamespace(gather=lambda mine: [{phase.name: phase for phase in rank} for rank in ranks])
    return gather_phases(SimpleNamespace(comm=comm), ranks[0])


def test_a_row_has_the_mean_over_ranks_and_the_least_and_most():
    found, other = rows(
        [times("forward", 1.0, elapsed=4.0), times("other", 3.0)],
        [times("forward", 2.0, elapsed=6.0), times("other", 2.0)],
    )
    assert (found.name, found.calls, found.host, found.least, found.most) == ("forward", 2, 1.5, 1.0, 2.0)
    assert found.mean == 2.5  # of the calls' 4 / 2 and 6 / 2 seconds
    assert (found.share, other.share) == (1.5 / 4, 2.5 / 4)


def test_a_phase_that_some_ranks_never_enter_still_adds_up():
    """A rank without samples has no forward pass: its host time there is 0."""
    found = rows([times("forward", 1.0), times("other", 1.0)], [times("other", 3.0)])
    assert [row.host for row in found] == [0.5, 2.0]
    assert sum(row.share for row in found) == 1


def test_all_times_of_a_phase_are_of_the_same_ranks():
    """Two of four enter it: the others have spent 0 s there, on the host and on the device."""
    idle = [times("other", 3.0)]
    found, _ = rows(
        [times("forward", 1.0, calls=1, elapsed=5.0, device=8.0, device_calls=1), times("other", 2.0)],
        [times("forward", 3.0, calls=3, elapsed=7.0, device=4.0, device_calls=1), times("other", 0.0)],
        idle,
        idle,
    )
    assert (found.host, found.least, found.most) == (1.0, 0.0, 3.0)
    assert found.device == (8.0 + 3 * 4.0) / 4
    assert (found.calls, found.mean) == (3, 3.0)  # of four calls, of 12 seconds


def test_a_phase_in_which_the_host_spent_no_time_has_no_mean():
    """As in steps that are replayed from graphs."""
    found, _ = rows([times("forward", 0.0, device=1.0, device_calls=2), times("other", 1.0)])
    assert (found.mean, found.calls, found.device) == (None, 2, 1.0)


def test_a_phase_that_rank_0_never_enters_adds_up_too():
    """Behind its own: the others take over parameters which rank 0 has."""
    found = rows([times("other", 4.0)], [times("up", 1.0, calls=3), times("other", 3.0)])
    assert [(row.name, row.calls, row.host) for row in found] == [("other", 2, 3.5), ("up", 3, 0.5)]
    assert sum(row.share for row in found) == 1


def test_calls_that_were_not_timed_on_the_device_count_as_long_as_the_others():
    timed, untimed = rows([times("forward", 1, calls=10, device=0.3, device_calls=3), times("load", 1)])
    assert timed.device == pytest.approx(1.0)
    assert untimed.device is None


def test_the_statistics_are_of_all_ranks_together_and_of_each():
    """Rank 1 alone enters the phase `sum`: two calls on the host, one timed on the device."""
    calls, on_device = Durations(), Durations()
    for seconds in (1.0, 3.0):
        calls.add(seconds)
    on_device.add(0.5)
    mine = PhaseTimes("sum", 2, 4.0, calls.measured(), on_device.measured())
    _, found = rows([times("other", 4.0)], [times("other", 0.0), mine])
    assert found.on_host == Statistics(2, 4.0, 2.0, 2.0, math.sqrt(2), 1.0, 3.0)
    assert found.on_device == Statistics(1, 0.5, 0.5, 0.5, 0.0, 0.5, 0.5)
    assert found.ranks == [RankCalls(1, found.on_host, found.on_device)]
    both = rows([times("sum", 1.0, calls=1, elapsed=8.0)], [mine])[0]
    assert (both.on_host.count, both.on_host.median, both.on_host.max) == (3, 3.0, 8.0)
    assert [(one.rank, one.on_host.count) for one in both.ranks] == [(0, 1), (1, 2)]


def test_the_table_of_statistics_has_a_line_for_each_clock():
    calls = statistics([times("", 0, calls=4, elapsed=0.02).on_host])
    of_rank = statistics([times("", 0, calls=1, elapsed=0.003).on_host])
    row = PhaseRow(
        "forward", 4, 0.0, None, None, 1.0, 0.0, 0.0, calls, of_rank, [RankCalls(3, of_rank, None)]
    )
    lines = [line.split() for line in stats_table([row]).splitlines()]
    assert lines[0][:3] == ["phase", "on", "calls"]
    assert ["forward", "host", "4", "20.00", "5000.0", "5000.0", "0.0", "5000.0", "5000.0"] in lines
    assert ["forward", "device", "1", "3.00", "3000.0", "3000.0", "0.0", "3000.0", "3000.0"] in lines
    of_three = [line.split() for line in stats_table([row], 3).splitlines()[2:]]
    assert [line[:3] for line in of_three] == [["forward", "host", "1"]]


def test_statistics_of_a_rank_that_is_not_there_are_refused():
    job = SimpleNamespace(size=2)
    for stats in (None, True, 0, 1):
        start.require_ranks(Options(stats=stats), job)
    with pytest.raises(UserError, match="--stats 2: the last rank is 1"):
        start.require_ranks(Options(stats=2), job)
    with pytest.raises(UserError, match="--stats -1: must be a whole number"):
        Options(stats=-1)


def test_only_rank_0_has_rows():
    comm = SimpleNamespace(gather=lambda mine: None)
    assert gather_phases(SimpleNamespace(comm=comm), [times("other", 1.0)]) == []


def test_the_table_has_a_line_for_each_phase_and_the_sum():
    table = phase_table(
        [
            PhaseRow("forward", 6, 0.0015, 0.25, 0.0025, 0.75, 0.001, 0.002),
            PhaseRow("load data", 1, 0.0005, None, None, 0.25, 0.0005, 0.0005),
        ]
    )
    lines = [line.split() for line in table.splitlines()]
    assert table.startswith("phase ")
    assert ["forward", "6", "1.50", "250.00", "2500.0", "75.0", "1.00", "2.00"] in lines
    assert ["load", "data", "1", "0.50", "25.0", "0.50", "0.50"] in lines
    assert ["total", "(wall)", "2.00", "100.0"] in lines


def test_the_header_tells_the_threads_that_blas_takes(monkeypatch):
    monkeypatch.setattr("nn.train.environment.blas_threads", lambda: 7)
    environment = train(Options(**QUICK)).environment
    assert environment["blas_threads"] == 7
    assert any(line.endswith("7 BLAS thread(s) a rank") for line in environment["header"])


def test_the_header_of_a_net_has_a_row_for_each_layer_and_so_has_the_json_file(tmp_path):
    net, file = "conv5x5x4s2,relu,pool2,dense10", tmp_path / "report.json"
    report = train(Options(net=net, epochs=0, samples=20, device="cpu"))
    report.write_json(file)
    environment = json.loads(file.read_text())["environment"]
    rows = [
        {"layer": "conv5x5x4s2 relu", "output": "12x12x4", "parameters": 104},
        {"layer": "pool2", "output": "6x6x4", "parameters": 0},
        {"layer": "dense10", "output": "10", "parameters": 1450},
    ]
    assert environment["layers"] == rows and environment["parameters"] == 1554
    lines = environment["header"]
    start = next(place for place, line in enumerate(lines) if line.startswith("network   28x28x1, conv"))
    assert lines[start + 1].split() == ["layer", "output", "parameters"]
    assert [line.split() for line in lines[start + 3 : start + 6]] == [
        " ".join(map(str, row.values())).split() for row in rows
    ]
    assert lines[start + 6].startswith("training")


def test_the_header_of_a_dense_network_has_no_table():
    environment = train(Options(**QUICK)).environment
    words = [line.split()[0] for line in environment["header"]]
    assert words == [*("ranks", "device", "plan", "exchange", "data", "network", "training", "batches")]
    assert [row["parameters"] for row in environment["layers"]] == [9 * 785, 100]


@pytest.mark.parametrize(
    ("device", "left_out"),
    [(0.1, ["min ms", "max ms", "mean us", "share %"]), (None, ["device ms", "min ms", "max ms"])],
)
def test_the_table_fits_into_80_columns(device, left_out):
    """With the longest name of a phase and the numbers of a long run. What the CPU has none of goes first."""
    name = "evaluation images host -> device"
    table = phase_table([PhaseRow(name, 123456, 1234.5, device, 0.01, 0.75, 1234.0, 1235.0)], 80)
    assert max(map(len, table.splitlines())) <= 80
    assert table.splitlines()[-1] == f"(no room for {', '.join(left_out)})"


def test_the_rows_of_a_run_add_up_to_its_wall_time():
    """Nothing is counted twice, and only the way out of ``run`` not at all.

    A busy machine may take its core away just there: one quiet run of five is enough.
    """
    covered = []
    for _ in range(5):
        started = time.perf_counter()
        report = train(Options(**QUICK), phases=Phases(started))
        wall = time.perf_counter() - started
        assert report.wall <= wall
        assert sum(row.share for row in report.phases) == pytest.approx(1)
        covered.append(report.wall / wall)
        if covered[-1] > 0.95:
            return
    pytest.fail(f"the rows cover {covered} of the wall time")


def test_the_phases_of_a_run_have_the_names_people_know():
    names = [row.name for row in train(Options(**QUICK)).phases]
    for name in (
        "train setup",
        "batch iteration",
        "copying images host -> device",
        "forward",
        "forward GEMM 1",
        "forward GEMM 2",
        "backward",
        "backward GEMM 1",
        "backward GEMM 3",
        "step",
    ):
        assert name in names


def test_steps_are_counted():
    report = train(Options(**QUICK))
    steps = 2 * 8  # 3600 training samples in batches of 500
    for name in ("batch iteration", "forward", "backward GEMM 2", "step", "copying images host -> device"):
        assert report.phase(name).calls == steps
    with pytest.raises(KeyError):
        report.phase("nonsense")


def test_the_json_file_has_all_of_the_report(tmp_path):
    file = tmp_path / "report.json"
    report = train(Options(**QUICK, check=True, tolerance=1e-30))
    report.write_json(file)
    content = json.loads(file.read_text(), parse_constant=pytest.fail)  # no NaN: JSON has none
    assert content["version"] == 1
    assert content["options"] == json.loads(json.dumps(report.options))
    assert content["environment"]["ranks"] == 1
    assert [epoch["loss"] for epoch in content["epochs"]] == [epoch.loss for epoch in report.epochs]
    assert content["test"]["precision"] == report.test.precision
    assert len(content["test"]["recall"]) == 10
    assert [row["name"] for row in content["phases"]] == [row.name for row in report.phases]
    step = next(row for row in content["phases"] if row["name"] == "step")
    assert list(step["on_host"]) == ["count", "total", "mean", "median", "std", "min", "max"]
    assert step["on_host"]["count"] == 2 * 8 and step["on_device"] is None
    assert step["ranks"] == [{"rank": 0, "on_host": step["on_host"], "on_device": None}]
    assert content["wall"] == report.wall
    assert [entry["name"] for entry in content["check"]["differences"]] == ["W1", "b1", "W2", "b2"]
    assert content["passed"] is report.passed is False
