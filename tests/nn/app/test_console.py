"""nn/app/console.py: who speaks, and when there is a progress bar."""

import logging
from threading import Thread

import pytest

from nn.app import console
from nn.app.console import Console
from pyrt.log import log


def test_only_a_speaking_console_prints(capsys):
    Console(speaking=True).say("a line")
    Console(speaking=False).say("another")
    assert capsys.readouterr() == ("a line\n", "")


@pytest.mark.parametrize(
    ("quiet", "printed"), [(False, "a line\nwarning: mind\na result\n"), (True, "warning: mind\na result\n")]
)
def test_a_quiet_console_prints_warnings_and_results_alone(capsys, quiet, printed):
    console = Console(speaking=True, quiet=quiet)
    console.say("a line")
    console.warn("mind")
    console.tell("a result")
    assert capsys.readouterr() == (printed, "")


def test_the_log_is_said_within_the_block_alone(capsys):
    """On the rank that speaks, whatever thread logs."""
    for each in (Console(speaking=True), Console(speaking=False), Console(speaking=True, quiet=True)):
        with each.saying_log():
            thread = Thread(target=log.info, args=["compiling %d files", 3])
            thread.start()
            thread.join()
    log.info("nobody says this")
    assert not log.isEnabledFor(logging.INFO)
    assert capsys.readouterr().out == "compiling 3 files\n"


@pytest.mark.parametrize(
    ("speaking", "quiet", "terminal"),
    [(True, False, True), (True, False, False), (False, False, True), (True, True, True)],
)
def test_a_progress_bar_only_for_a_speaking_rank_on_a_terminal(
    capsys, monkeypatch, speaking, quiet, terminal
):
    monkeypatch.setattr(console, "launched_from_terminal", lambda: terminal)
    with Console(speaking, quiet).bar(10) as bar:
        bar.update(10)
    assert ("step" in capsys.readouterr().err) == (speaking and terminal and not quiet)
