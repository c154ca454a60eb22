"""A study's results in a CSV file, with what they were measured on beside it: a study that was stopped goes
on where it was."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.study import FAILED, Point, Row
from nn.files.write import write_whole


class Results:
    """Rows of a study, on disk as soon as their point is done."""

    def __init__(self, folder: Path, columns: Sequence[str]) -> None:
        """Read the rows that are there already."""
        self._file, self._columns = folder / "results.csv", [*columns, FAILED]
        self._about = folder / "machine.json"
        self._rows: list[dict[str, str]] = []
        if self._file.exists():
            with self._file.open(newline="") as file:
                self._rows = list(csv.DictReader(file))

    @property
    def about(self) -> dict[str, Any]:
        """What they were measured on; empty where there are none."""
        content: dict[str, Any] = json.loads(self._about.read_text()) if self._about.exists() else {}
        return content

    def begin(self, about: dict[str, Any]) -> None:
        """Begin rows of this machine and code; drop the rows of any other."""
        if self.about == about:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.unlink(missing_ok=True)
        self._rows.clear()
        text = json.dumps(about, indent=1)
        write_whole("--out", self._about, lambda file: file.write(f"{text}\n".encode()))

    def has(self, point: Point) -> bool:
        """Return whether the point was measured, and did not fail."""
        return any(not row[FAILED] for row in self._rows_of(point))

    def _rows_of(self, point: Point) -> list[dict[str, str]]:
        wanted = {name: _cell(value) for name, value in point.items()}
        return [row for row in self._rows if wanted.items() <= row.items()]

    def add(self, point: Point, rows: Sequence[Row]) -> None:
        """Put rows in place of the point's old ones. Raises KeyError for a column that the study lacks."""
        for row in self._rows_of(point):
            self._rows.remove(row)
        for row in rows:
            values = {**point, **row}
            unknown = values.keys() - set(self._columns)
            if unknown:
                raise KeyError(f"columns {', '.join(sorted(unknown))} are not among the study's")
            self._rows.append({name: _cell(values.get(name)) for name in self._columns})
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        write_whole("--out", self._file, lambda file: file.write(text.getvalue().encode()))

    def frame(self) -> pd.DataFrame:
        """Return all rows, numbers as numbers; an empty frame with the columns if there are none."""
        if not self._rows:
            return pd.DataFrame(columns=self._columns)
        return pd.read_csv(self._file, dtype={FAILED: str}, keep_default_na=False, na_values=[""])


def _cell(value: object) -> str:
    return "" if value is None else str(value)
