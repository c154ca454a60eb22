"""The page: all sections in one HTML file that needs no other one, and each as Markdown in its folder."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from tabulate import tabulate

from experiments.glossary import Linker, anchor
from experiments.study import Finding, Section
from nn.files.write import write_whole


@dataclass(frozen=True)
class Part:
    """A study as the page shows it."""

    name: str
    title: str
    question: str
    section: Section
    missing: Sequence[str]
    """What is not there, a sentence each."""
    machine: Mapping[str, str]
    """What it was measured on."""
    folder: Path


def write(path: Path, parts: Sequence[Part]) -> None:
    """Write the page. State once, at its top, what all studies were measured on."""
    machines = [part.machine for part in parts if part.machine]
    common = {
        name: text
        for name, text in (machines[0] if machines else {}).items()
        if all(machine.get(name) == text for machine in machines)
    }
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    linkers = {part.name: Linker(part.name) for part in parts}
    environment.filters["cell"] = cell
    environment.filters["said"] = said
    environment.filters["anchor"] = anchor
    environment.filters["linked"] = lambda text, part: linkers[part.name].linked(text)
    environment.globals["glossary"] = lambda: _used(linkers.values())
    text = environment.get_template("page.html").render(parts=parts, common=common, image=_image)
    write_whole("--out", path, lambda file: file.write(text.encode()))


def said(finding: str) -> str:
    """Return a finding with the name of its figure, where it knows it."""
    return finding.said if isinstance(finding, Finding) else finding


def _used(linkers: Iterable[Linker]) -> dict[str, str]:
    """Return the terms that the sections have linked, by name, and their meanings."""
    found = {term: meaning for linker in linkers for term, meaning in linker.used.items()}
    return dict(sorted(found.items()))


def write_markdown(part: Part) -> None:
    """Write the section beside its figures, for people who read files."""
    section = part.section
    lines = [f"# {part.title}", part.question, *(f"- {said(finding)}" for finding in section.findings)]
    lines += [f"- missing: {reason}" for reason in part.missing]
    lines += [
        f"![{figure.caption}]({figure.file})\n\n**Figure {figure.name}.** {figure.caption}"
        for figure in section.figures
    ]
    for table in section.tables:
        rows = [[cell(value) for value in row] for row in table.rows.itertuples(index=False)]
        body = tabulate(rows, headers=list(table.rows.columns), tablefmt="github", disable_numparse=True)
        lines.append(f"{table.caption}\n\n{body}")
    text = "\n\n".join(lines)
    write_whole("--out", part.folder / "section.md", lambda file: file.write(f"{text}\n".encode()))


def cell(value: Any) -> str:
    """Write floats with 3 significant digits, or whole from 1000 on; words as they are; None as nothing."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10000 else str(value)


def _image(part: Part, file: str) -> str:
    """Give a PNG as a data URI."""
    content = base64.b64encode((part.folder / file).read_bytes()).decode()
    return f"data:image/png;base64,{content}"
