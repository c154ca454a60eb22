"""Removes comments, strings and directives from a CUDA source, as far as reading its kernels needs it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable

Macros = dict[str, list[str]]
"""Macros without parameters, each with all the values that it has anywhere in the source.

Where an ``#undef`` ends one, its own name is a further value.
"""

COMMENT_OR_LITERAL = re.compile(
    r"/\*.*?\*/|//(?:\\\n|[^\n])*"
    r'|R"(?P<end>[^\s()\\]{0,16})\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\[^\n']{1,9}|\\'|[^'\\\n])'",
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"#[ \t]*(\w*)((?:\\\n|[^\n])*)")  # C has a # nowhere else
_MACRO = re.compile(r"\s*(\w+)(\(?)(.*)", re.DOTALL)
_TOKEN = re.compile(
    r"\s*(defined\s*\(\s*\w+\s*\)|defined\s+\w+|\w+|&&|\|\||<<|>>|[=!<>]=|[-+*/%()<>!~&|^?:])"
)
_UNKNOWN = "unknown"
"""The token of a number that only a compiler knows; no name is left among the tokens."""


def _quotient(a: int, b: int) -> int:
    """Divide as C does: towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _shifted(a: int, by: int) -> int:
    if not 0 <= by < 64:
        raise ArithmeticError
    return a << by


_LEVELS: list[dict[str, Callable[[int, int], int]]] = [
    {"||": lambda a, b: a != 0 or b != 0},
    {"&&": lambda a, b: a != 0 and b != 0},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"<<": _shifted, ">>": lambda a, by: a // _shifted(1, by)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _quotient, "%": lambda a, b: a - b * _quotient(a, b)},
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
        self._values: dict[str, str | None] = {}  # of the macros as they are now; None: one with parameters
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
        if match is None:
            return
        macro, has_parameters, value = match[1], bool(match[2]), match[3].strip()
        if any(holds is None for holds, _ in self._branches):
            self._unsure.add(macro)
        if name == "define":
            self._values[macro] = None if has_parameters else value
        else:
            self._values.pop(macro, None)
        if name == "undef" and macro not in self.macros:
            return
        values = self.macros.setdefault(macro, []) if not has_parameters else []
        meaning = value if name == "define" else macro
        if meaning not in values:
            values.append(meaning)

    def _holds(self, name: str, rest: str) -> bool | None:
        """Decide a condition; None where only a compiler can."""
        condition = rest if name == "if" else f"{'!' if name == 'ifndef' else ''}defined {rest}"
        try:
            value = _Expression(self._tokens(condition, 0)).value()
        except _Undecided:
            return None
        return None if value is None else value != 0

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
            return [_UNKNOWN]
        if asked:
            return [str(int(name in self._values))]
        value = self._values.get(name)
        if value is None:  # a name that is no macro is 0, but for one of C++'s
            return [str(int(name == "true"))]
        return ["(", *self._tokens(value, depth + 1), ")"]


class _Expression:
    """Computes an expression of whole numbers, None where only a compiler can.

    ``0 && x`` and ``1 || x`` are known whatever x is.
    """

    def __init__(self, tokens: list[str]) -> None:
        self._left = tokens[::-1]  # the next one last
        # C's numbers have 64 bits, and one without a sign makes others so, too.
        is_unsigned = any(token[0].isdigit() and "u" in token.lower() for token in tokens)
        self._lowest = 0 if is_unsigned else -(2**63)

    def value(self) -> int | None:
        """Compute it. Raises _Undecided for tokens that are not an expression."""
        value = self._choice()
        if self._left:
            raise _Undecided
        return value

    def _next(self) -> str:
        return self._left.pop() if self._left else ""

    def _choice(self) -> int | None:
        """Compute an expression with ``?:``."""
        condition = self._operation(0)
        if self._left[-1:] != ["?"]:
            return condition
        self._left.pop()
        first = self._choice()
        if self._next() != ":":
            raise _Undecided
        second = self._choice()
        return None if condition is None else first if condition else second

    def _operation(self, level: int) -> int | None:
        if level == len(_LEVELS):
            return self._operand()
        value = self._operation(level + 1)
        while self._left and self._left[-1] in _LEVELS[level]:
            operator_ = self._left.pop()
            value = self._operated(operator_, _LEVELS[level][operator_], value, self._operation(level + 1))
        return value

    def _operated(
        self, name: str, operate: Callable[[int, int], int], a: int | None, b: int | None
    ) -> int | None:
        if name == "&&" and 0 in (a, b):
            return 0
        if name == "||" and (a or b):
            return 1
        if a is None or b is None:
            return None
        try:
            return self._in_range(int(operate(a, b)))
        except ArithmeticError:
            return None

    def _in_range(self, value: int) -> int | None:
        return value if self._lowest <= value < 2**63 else None

    def _operand(self) -> int | None:
        token = self._next()
        if token == _UNKNOWN:
            return None
        if token == "(":
            value = self._choice()
            if self._next() != ")":
                raise _Undecided
            return value
        if token in ("!", "-", "+", "~"):
            value = self._operand()
            if value is None:
                return None
            return self._in_range({"!": int(not value), "-": -value, "+": value, "~": ~value}[token])
        if number := re.fullmatch(r"(0[xX][\da-fA-F]+|0[0-7]*|[1-9]\d*)[uUlL]*", token):
            digits = number[1].lower()
            base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
            return self._in_range(int(digits, base))
        raise _Undecided
