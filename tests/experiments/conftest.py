"""Figures are drawn as they lie: to lay them out takes longer than to draw them. test_report.py does both."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests import LONG


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
