"""Figures are drawn as they lie: to lay them out takes longer than to draw them. test_report.py does both."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests import LONG


@pytest.fixture
def unsaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn, but not to files: that takes most of the time."""
    from matplotlib import pyplot

    from experiments import figures

    def save(figure: Any, folder: Path, name: str) -> str:
        pyplot.close(figure)
        return f"{name}.png"

    monkeypatch.setattr(figures, "save", save)


@pytest.fixture(autouse=True)
def figures_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    with suppress(ImportError):
        from matplotlib.figure import Figure

        save = Figure.savefig

        def save_as_it_lies(figure: Figure, *arguments: Any, **settings: Any) -> None:
            figure.set_layout_engine("none")
            save(figure, *arguments, **settings)

        if not LONG:
            monkeypatch.setattr(Figure, "savefig", save_as_it_lies)
