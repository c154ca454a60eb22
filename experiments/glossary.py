"""Links terms of docs/glossary.md in the text of the page, each where a section first uses it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from markupsafe import Markup, escape

_PAGE = Path(__file__).resolve().parents[1] / "docs" / "glossary.md"

TOO_COMMON = {
    *("rows", "columns", "samples", "whole", "space", "split", "slot", "piece", "parts", "spread"),
    *("version", "chain"),
}
"""Terms that are everyday words, too."""


@cache
def terms() -> Mapping[str, str]:
    """Return the meaning of each term, by the term as a text has it."""
    found = {}
    for line in _PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 2 and cells[0] != "term":
            for term in cells[0].split(", "):
                found[term.split(" (")[0]] = cells[1]
    return {term: meaning for term, meaning in found.items() if term not in TOO_COMMON}


class Linker:
    """Links terms and figures in the texts of one section of the page."""

    def __init__(self, study: str) -> None:
        self._study = study
        self.used: dict[str, str] = {}
        """The terms that were linked, and their meanings."""

    def linked(self, text: str) -> Markup:
        """Return the text as HTML: terms at their first place and "(figure NAME)" are links."""
        words, *rest = _FIGURE.split(str(escape(text)))
        html = self._terms(words)
        for figure, words in zip(rest[::2], rest[1::2], strict=True):
            html += f'(<a href="#{self._study}-{figure}">figure {figure}</a>){self._terms(words)}'
        return Markup(html)

    def _terms(self, text: str) -> str:
        def link(found: re.Match[str]) -> str:
            term = _singular(found[0])
            if term in self.used:
                return found[0]
            self.used[term] = terms()[term]
            return f'<a class="term" href="#term-{anchor(term)}">{found[0]}</a>'

        return _words().sub(link, text)


_FIGURE = re.compile(r"\(figure ([\w.-]+)\)")


@cache
def _words() -> re.Pattern[str]:
    longest = sorted(map(re.escape, terms()), key=len, reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(longest)})s?(?![\w-])")


def _singular(word: str) -> str:
    return word if word in terms() else word.removesuffix("s")


def anchor(term: str) -> str:
    """Return a term's name in links."""
    return re.sub(r"\W+", "-", term)
