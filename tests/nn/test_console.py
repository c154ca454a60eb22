"""nn/console.py: who speaks, and when there is a progress bar."""

import pytest

from nn import console
from nn.console import Console


def test_only_a_speaking_console_prints(capsys):
    Console(speaking=True).say("a line")
    Console(speaking=False).say("another")
    assert capsys.readouterr() == ("a line\n", "")


@pytest.mark.parametrize(("speaking", "terminal"), [(True, True), (True, False), (False, True)])
def test_a_progress_bar_only_for_a_speaking_rank_on_a_terminal(capsys, monkeypatch, speaking, terminal):
    monkeypatch.setattr(console, "launched_from_terminal", lambda: terminal)
    with Console(speaking).bar(10) as bar:
        bar.update(10)
    assert ("step" in capsys.readouterr().err) == (speaking and terminal)
