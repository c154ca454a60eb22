"""Removes comments, strings and directives from a CUDA source, as far as reading its kernels needs it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

Macros = dict[str, list[str]]
"""Macros without parameters, each with its value, or with several where only a compiler can choose."""

COMMENT_OR_LITERAL = re.compile(
    r"/\*.*?\*/|//[^\n]*"
    r'|R"(?P<end>[^\s()\\]{0,16})\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\[^\n']{1,9}|\\'|[^'\\\n])'",
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"#[ \t]*(\w*)((?:\\\n|[^\n])*)")  # C has a # nowhere else
_MACRO = re.compile(r"\s*(\w+)(\(?)(.*)", re.DOTALL)
_TOKEN = re.compile(r"\s*(defined\s*\(\s*\w+\s*\)|defined\s+\w+|\w+|&&|\|\||[=!<>]=|[-+*/%()<>!])")
_LEVELS: list[dict[str, Callable[[int, int], int]]] = [
    {"||": lambda a, b: a or b},
    {"&&": lambda a, b: a and b},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": operator.floordiv, "%": operator.mod},
]
"""Operators of two numbers, by precedence, the lowest first."""
_COMPILERS_OWN = re.compile(r"_|CUDA|PYRT_EMULATED$")
_DEEPEST = 20
"""Macros within macros that are followed."""


class _Undecided(Exception):
    """Only a compiler knows whether a condition holds."""


def preprocess(source: str) -> tuple[str, Macros]:
    """Remove comments, directives and branches whose conditions do not hold; return the rest, and the macros.

    Strings become empty, but for ``"C"``. A condition on names that compilers define, or one that is not an
    expression of whole numbers, is not decided: all its branches stay.
    """
    reader = _Reader()
    plain = COMMENT_OR_LITERAL.sub(_blank, source)
    place = 0
    for match in _DIRECTIVE.finditer(plain):
        reader.take(plain[place : match.start()])
        reader.direct(match[1], match[2].replace("\\\n", " "))
        place = match.end()
    reader.take(plain[place:])
    return "".join(reader.text), reader.macros


def _blank(match: re.Match[str]) -> str:
    text = match[0]
    if text == '"C"':
        return text
    return " " if text.startswith("/") else '""'


class _Reader:
    """Follows the directives of a source from its beginning."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.macros: Macros = {}
        self._unsure: set[str] = set()
        # For each open condition: whether this branch holds, and whether one before it did; None: not known.
        self._branches: list[tuple[bool | None, bool | None]] = []

    def take(self, text: str) -> None:
        if all(holds is not False for holds, _ in self._branches):
            self.text.append(text)

    def direct(self, name: str, rest: str) -> None:
        if name in ("if", "ifdef", "ifndef"):
            holds = self._holds(name, rest)
            self._branches.append((holds, holds))
        elif name in ("elif", "else") and self._branches:
            _, before = self._branches.pop()
            holds = None if before is None else not before and (name == "else" or self._holds("if", rest))
            self._branches.append((holds, before or holds))
        elif name == "endif":
            del self._branches[-1:]
        elif name in ("define", "undef") and all(holds is not False for holds, _ in self._branches):
            self._define(name, rest)

    def _define(self, name: str, rest: str) -> None:
        match = _MACRO.match(rest)
        if match is None or match[2]:  # one with parameters
            return
        macro, value = match[1], match[3].strip()
        if any(holds is None for holds, _ in self._branches):
            self._unsure.add(macro)
            values = self.macros.setdefault(macro, [])
            if name == "define" and value not in values:
                values.append(value)
        elif name == "define":
            self.macros[macro] = [value]
        else:
            self.macros.pop(macro, None)

    def _holds(self, name: str, rest: str) -> bool | None:
        """Decide a condition; None where only a compiler can."""
        condition = rest if name == "if" else f"{'!' if name == 'ifndef' else ''}defined {rest}"
        try:
            return bool(_evaluated(self._tokens(condition, 0)))
        except (_Undecided, ArithmeticError):
            return None

    def _tokens(self, expression: str, depth: int) -> list[str]:
        """Split an expression into numbers, operators and brackets, its macros replaced by their values."""
        tokens: list[str] = []
        place, expression = 0, expression.strip()
        while place < len(expression):
            match = _TOKEN.match(expression, place)
            if match is None or depth > _DEEPEST:
                raise _Undecided
            place = match.end()
            tokens += self._replaced(match[1], depth)
        return tokens

    def _replaced(self, token: str, depth: int) -> list[str]:
        if not re.match(r"[A-Za-z_]", token):
            return [token]
        asked = re.fullmatch(r"defined\W+(\w+)\W*", token)
        name = asked[1] if asked else token
        if name in self._unsure or _COMPILERS_OWN.match(name):
            raise _Undecided
        if asked or name not in self.macros:
            return [str(int(name in self.macros))]
        return ["(", *self._tokens(self.macros[name][0], depth + 1), ")"]


def _evaluated(tokens: list[str]) -> int:
    """Compute an expression. Raises _Undecided for tokens that are not one, and ArithmeticError."""
    left = tokens[::-1]  # the next one last
    value = _operation(left, 0)
    if left:
        raise _Undecided
    return value


def _operation(left: list[str], level: int) -> int:
    if level == len(_LEVELS):
        return _operand(left)
    value = _operation(left, level + 1)
    while left and left[-1] in _LEVELS[level]:
        operate = _LEVELS[level][left.pop()]
        value = int(operate(value, _operation(left, level + 1)))
    return value


def _operand(left: list[str]) -> int:
    token = left.pop() if left else ""
    if token == "(":
        value = _operation(left, 0)
        if not left or left.pop() != ")":
            raise _Undecided
        return value
    if token in ("!", "-", "+"):
        value = _operand(left)
        return {"!": int(not value), "-": -value, "+": value}[token]
    if number := re.fullmatch(r"(0x[\da-fA-F]+|\d+)[uUlL]*", token):
        return int(number[1], 16 if number[1].startswith("0x") else 10)
    raise _Undecided
