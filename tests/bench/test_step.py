"""bench/step.py: our times from a run's report, baselines as processes, the table."""

import sys

import pytest

from bench import step
from bench.baselines.work import Line
from bench.step import Case, Ours, Outcome, Row
from bench.timing import Times
from pyrt.errors import UserError
from pyrt.job import join


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a program in the place of PyTorch's baseline, by its source."""

    def place(source):
        path = tmp_path / "program.py"
        path.write_text(source)
        monkeypatch.setitem(step.BASELINES, "PyTorch", str(path))

    return place


def line(mode, math="float32", us=200.0):
    return Line("JAX", "0.11", math, 1, "a GPU", 3000, mode, us, us - 1, us + 1)


def test_our_runs_are_checked_and_timed_by_epochs(monkeypatch):
    monkeypatch.setattr(step, "DEVICE", "cpu")
    monkeypatch.setattr(step, "SAMPLES", 50)
    monkeypatch.setattr(step, "EPOCHS", 6)
    monkeypatch.setattr(step, "WINDOW", 2)
    case = Case(20)
    assert list(step.wrong_results(join(), [case])) == []
    ours = {case: Ours()}
    step.run_ours(join(), ours)
    assert len(ours[case].wall) == (6 - step.WARM_UP) // 2
    assert 0 < ours[case].wall[0] < 10
    assert ours[case].device == []  # there is none
    assert ours[case].machine


def test_a_wrong_step_is_told(monkeypatch):
    monkeypatch.setattr(step, "DEVICE", "cpu")
    monkeypatch.setattr("nn.app.pipeline.check.compare", lambda *_: Wrong())
    (told,) = step.wrong_results(join(), [Case(20)])
    assert told == "our step, hidden 512, batch 20, exchange local\nwrong"


class Wrong:
    passed = False

    def __str__(self):
        return "wrong"


def test_a_baseline_is_asked_for_all_and_answers_in_lines(program):
    answer = line("epoch scan")
    program(f"import sys; print('noise'); print({str(answer)!r}); print(sys.argv[1:], file=sys.stderr)")
    assert step.run_baseline("PyTorch", 1, [3000, 750]) == Outcome([answer])
    program("import sys; print('x: error:', *sys.argv[1:], file=sys.stderr); sys.exit(2)")
    asked = "--gpus 2 --hidden 512 --batch 3000 750 --math float32 tf32"
    assert step.run_baseline("PyTorch", 2, [3000, 750]) == Outcome([], asked)
    asked = "--gpus 1 --hidden 64 32 --batch 3000 --math bf16"
    assert step.run_baseline("PyTorch", 1, [3000], (64, 32), ["bf16"]) == Outcome([], asked)


def test_what_is_missing_is_said_and_what_fails_is_kept(program, monkeypatch, capsys):
    monkeypatch.delitem(step.BASELINES, "JAX")
    failures = []
    answer = line("eager")
    program(f"import sys; print({str(answer)!r}); sys.exit('torch_step.py: error: W1 is off')")
    assert step.run_baselines(1, [3000], failures) == [answer]
    assert failures == ["PyTorch: W1 is off"]
    program("import sys; print('torch_step.py: error: PyTorch is gone', file=sys.stderr); sys.exit(2)")
    assert step.run_baselines(1, [3000], failures) == []
    assert capsys.readouterr().out == "PyTorch: left out: PyTorch is gone\n"
    assert len(failures) == 1


def test_a_baseline_that_hangs_is_ended(program, monkeypatch):
    monkeypatch.setattr(step, "TIMEOUT", 0.1)
    program("import time; time.sleep(60)")
    assert step.run_baseline("PyTorch", 1, [3000]) == Outcome([], "not done after 0.1 s", failed=True)


def test_reason():
    assert step.reason("Traceback\n  x\nValueError: bad\n\n") == "ValueError: bad"
    assert step.reason("x.py: error: wrong\n[torchrun] a rank failed\n") == "wrong"
    assert step.reason("") == "no message"


def test_table_compares_within_the_same_arithmetic():
    ours = Ours(wall=[80e-6, 81e-6, 90e-6], device=[64e-6, 80e-6])
    cases = {Case(3000): ours, Case(3000, placement="stream"): Ours(wall=[162e-6])}
    rows = step.rows(cases, [line("epoch scan", us=202.5), line("epoch scan", "tf32", us=100.0)])
    assert rows[0] == Row("this project", "float32", Times.of(ours.wall), pytest.approx(72), is_ours=True)
    lines = step.table(rows).splitlines()[2:]
    assert lines.pop(1).split() == [
        *("this", "project,", "rows", "streamed", "float32", "162.0", "162.0", "to", "162.0", "-", "2.00")
    ]
    assert lines[0].split()[2:] == ["float32", "81.0", "80.0", "to", "90.0", "72.0", "1.00"]
    assert lines[1].split() == [
        *("JAX", "0.11,", "epoch", "scan", "float32", "202.5", "201.5", "to", "203.5", "-", "2.50")
    ]
    assert lines[2].split()[-1] == "-"


@pytest.mark.parametrize("arguments", [["--what"], ["3000"]])
def test_arguments(arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["step.py", *arguments])
    with pytest.raises(UserError):
        step.main(join())
