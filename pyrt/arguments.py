"""Command lines: a mistake is a UserError of one line, which names the option or value that was meant."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from pyrt.errors import UserError, shown

_NO_NAMES: Mapping[str, str] = MappingProxyType({})

_SHORTEST = 3
"""Letters of a beginning that stands for the whole name in a suggestion."""


class Parser(argparse.ArgumentParser):
    """Reads a command line: takes no abbreviations, and raises UserError for what it does not understand."""

    def __init__(
        self,
        program: str,
        description: str | None,
        epilog: str | None = None,
        usage: str | None = None,
        other_names: Mapping[str, str] = _NO_NAMES,
    ) -> None:
        """``other_names``: what other programs call our options (without dashes) and their values."""
        super().__init__(
            prog=program,
            usage=usage,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._other_names = other_names

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{shown(message)} (--help lists the options)")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._meant(unknown)}")
        return found

    def _meant(self, unknown: Sequence[str]) -> str:
        """Ask which of our options were meant; return an empty text where no option is like them."""
        ours = [name.removeprefix("--") for name in self._option_string_actions if name.startswith("--")]
        words = [word.lstrip("-").split("=")[0] for word in unknown if word.startswith("-")]
        found = [closest(word, ours, self._other_names) for word in words]
        return _question(dict.fromkeys(f"--{name}" for name in found if name))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """argparse calls this for each value."""
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            meant = closest(value, choices, self._other_names)
            question = _question([meant] if meant else [])
            raise argparse.ArgumentError(action, f"{value} is none of {', '.join(choices)}{question}")


def closest(word: str, names: Iterable[str], other_names: Mapping[str, str] = _NO_NAMES) -> str:
    """Find the name that somebody who wrote ``word`` has meant; empty where none is like it."""
    word, names = word.lower().replace("_", "-"), list(names)
    if other_names.get(word) in names:
        return other_names[word]
    begun = [name for name in names if len(word) >= _SHORTEST and name.startswith(word)]
    return next(iter(difflib.get_close_matches(word, names, 1) or begun), "")


def _question(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f": did you mean {listed}?" if listed else ""
