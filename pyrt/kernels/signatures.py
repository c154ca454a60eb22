"""Reads the kernels of a CUDA source and their parameters, without a compiler.

A run reads dozens of sources when it starts, so this parses only the text around each ``__global__``, and the
braces that say which blocks it is in. docs/reference/kernel_files.md lists the forms that can be
launched; a kernel of another form is listed with the reason why it cannot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from pyrt.kernels.c_types import BYTES, WORDS, CType, Parameter, c_type
from pyrt.kernels.preprocess import Macros, preprocess

# These begin with what is rare: re is slow where it must look closely at every word.
_BRACE_OR_KERNEL = re.compile(r"[{}]|__global__\b")
_BRACE_OR_TYPE = re.compile(r"[{}]|typedef\b|using\b")
_TYPEDEF = re.compile(
    r"typedef\s+(?P<meaning>[\w\s:*<>]+?[\s*])(?P<name>\w+)\s*(?P<others>(?:,[\s*]*\w+\s*)*);"
)
_USING = re.compile(r"using\s+(?P<name>\w+)\s*=(?P<meaning>[\w\s:*<>]+);")
_SCOPE = re.compile(r"\b(?:namespace|struct|class|union)\b[^()=]*$")
_STRUCTURE = re.compile(r"\b(?:struct|class|union)\b(?:\s*(?:__align__|alignas)\s*\([^()]*\))?[^()=]*$")
_C_LINKAGE = re.compile(r'\bextern\s*"C"')
_WORD_AFTER = re.compile(r"\s*(\w+)\s*")
_NAME_AFTER = re.compile(r"\s*(?!__|noexcept\b)\w")
_WAITS_FIRST = re.compile(r"\s*(?:wait_for_previous_kernel\(\)|start_beside_previous_kernel\(\w+\));")
_QUALIFIERS = frozenset(
    (
        *("const", "volatile", "register", "restrict", "__restrict", "__restrict__", "__grid_constant__"),
        *("struct", "class", "union", "enum", "typename", "std", "cuda"),
    )
)
_PLAIN_TYPE = re.compile(r"[\w\s:*<>]*")
_ATTRIBUTE = re.compile(r"\[\[.*?\]\]", re.DOTALL)
_UNDECIDED = "under an #if that only a compiler can decide: let a `// constants:` line decide"
_POINTER = CType(np.dtype(np.uint64))
"""Elements of an array of pointers."""


class _NotTaken(Exception):
    """Why a kernel cannot be launched."""


@dataclass(frozen=True)
class Signature:
    """A kernel of a source, and what its launches take."""

    name: str
    parameters: list[Parameter] = field(default_factory=list)
    overlaps: bool = False
    """Whether its first line is ``wait_for_previous_kernel();`` (kernels/common.cuh), or
    ``start_beside_previous_kernel(..);`` where it waits later: it is launched while the previous kernel in
    the stream still runs."""
    obstacle: str = ""
    """Why it cannot be launched; empty where it can."""


@cache
def read_kernels(source: str) -> Mapping[str, Signature]:
    """Find the kernels that a source defines, by name. The constants are ``#define`` lines of the source."""
    text, macros = preprocess(source)
    text = _with_declaring_macros(text, macros)
    types = _Types(macros, text)
    declarations = list(_declarations(text))
    with_c_names = {one.name for one in declarations if one.is_c}
    found: dict[str, Signature] = {}
    for one in declarations:
        if one.body is not None:
            signature = _signature(one, text, types, one.name in with_c_names)
            found[one.name] = _either(found.get(one.name, signature), signature)
    return found


def launchable(source: str) -> list[str]:
    """List the names of the kernels of a source that can be launched."""
    return [kernel.name for kernel in read_kernels(source).values() if not kernel.obstacle]


def _with_declaring_macros(text: str, macros: Macros) -> str:
    """Replace the macros that stand for ``__global__`` or ``extern "C"``."""
    for name, values in reversed(macros.items()):  # a macro uses those before it
        declaring = [value for value in values if "__global__" in value or 'extern "C"' in value]
        if declaring:
            text = re.sub(rf"\b{name}\b", declaring[0].replace("\\", r"\\"), text)
    return text


@dataclass(frozen=True)
class _Declaration:
    """A ``__global__`` function as it is written."""

    name: str
    head: str
    """The text before its name."""
    parameters: str
    blocks: list[str]
    """The text that opens each block around it."""
    body: int | None
    """The place at which its body begins; None for a declaration without one."""

    @property
    def is_c(self) -> bool:
        return any(_C_LINKAGE.search(text) for text in (self.head, *self.blocks))


def _declarations(text: str) -> Iterator[_Declaration]:
    for place, blocks in _places(_BRACE_OR_KERNEL, text):
        declaration = _declaration(text, place, blocks)
        if declaration is not None:
            yield declaration


def _places(brace_or_other: re.Pattern[str], text: str) -> Iterator[tuple[int, list[str]]]:
    """Find the places of what is no brace, each with the text that opens each block around it."""
    open_braces: list[int] = []
    for match in brace_or_other.finditer(text):
        if match[0] == "{":
            open_braces.append(match.start())
        elif match[0] == "}":
            del open_braces[-1:]
        else:
            yield match.start(), [text[_beginning(text, brace) : brace] for brace in open_braces]


def _beginning(text: str, place: int) -> int:
    """Find the beginning of the statement or declaration around ``place``."""
    return 1 + max(text.rfind(end, 0, place) for end in ";{}")


def _declaration(text: str, start: int, blocks: list[str]) -> _Declaration | None:
    """Read the function declared around the ``__global__`` at ``start``; None where there is none."""
    begin, place = _beginning(text, start), start
    while word := _WORD_AFTER.match(text, place):
        place = word.end()
        if text[place : place + 1] == "(":
            after = _closing(text, place)
            is_attribute = word[1].startswith("__") or _NAME_AFTER.match(text, after)  # __launch_bounds__(..)
            if not is_attribute:
                head, parameters = text[begin : word.start()], text[place + 1 : after - 1]
                return _Declaration(word[1], head, parameters, blocks, _body(text, after))
            place = after
        elif text[place : place + 1] == "<":  # template <> __global__ void name<int>(..)
            return _Declaration(word[1], "template " + text[begin:place], "", blocks, place)
    return None


def _body(text: str, place: int) -> int | None:
    """Find the place behind the next opening brace; None where a semicolon comes first."""
    end = re.compile(r"[;{]").search(text, place)
    return end.end() if end and end[0] == "{" else None


def _closing(text: str, place: int) -> int:
    """Find the place behind the bracket that closes the one at ``place``."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, place):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return len(text)


def _signature(one: _Declaration, text: str, types: _Types, has_c_name: bool) -> Signature:
    """Read the parameters of a kernel, or say why it cannot be launched."""
    try:
        if re.search(r"\btemplate\b", one.head):
            raise _NotTaken(
                'it is a template: write an extern "C" kernel that calls a __device__ template, or let a '
                "`// constants: T=float|double` line choose the type"
            )
        if any(map(_SCOPE.search, one.blocks)):
            raise _NotTaken("it is in a namespace: move it out")
        if not has_c_name:
            raise _NotTaken('its compiled name is mangled: write extern "C" in front of __global__')
        if re.search(r"\bstatic\b", one.head):
            raise _NotTaken("it is static: take that word away")
        parts = [] if one.parameters.strip() == "void" else _split(one.parameters)
        parameters = [types.parameter(part, index) for index, part in enumerate(parts)]
    except _NotTaken as why:
        return Signature(one.name, obstacle=str(why))
    return Signature(one.name, parameters, bool(_WAITS_FIRST.match(text, one.body or 0)))


def _either(first: Signature, second: Signature) -> Signature:
    """Combine two definitions of a kernel, as under an ``#if`` and its ``#else``."""
    if first.obstacle or second.obstacle:
        return second if first.obstacle else first
    if first.parameters == second.parameters:
        return first
    return Signature(first.name, obstacle=f"it is defined twice, with other parameters, {_UNDECIDED}")


def _split(parameters: str) -> list[str]:
    """Split a list of parameters at the commas that are not within brackets.

    In a default value, < and > compare.
    """
    parts, depth, in_default = [""], 0, False
    for piece in re.split(r"([,()<>{}\[\]=])", parameters):
        if piece == "," and depth == 0:
            parts.append("")
            in_default = False
            continue
        in_default |= piece == "=" and depth == 0
        if piece not in ("<", ">") or not in_default:
            depth += (piece in ("(", "<", "{", "[")) - (piece in (")", ">", "}", "]"))
        parts[-1] += piece
    return [part.strip() for part in parts if part.strip()]


def _named_types(text: str) -> Iterator[tuple[str, str]]:
    """Find the names that typedef and using give to types outside of structures, each with its meaning."""
    for place, blocks in _places(_BRACE_OR_TYPE, text):
        match = _TYPEDEF.match(text, place) or _USING.match(text, place)
        if match and not any(map(_STRUCTURE.search, blocks)):
            yield match["name"], match["meaning"]
            base = match["meaning"].rstrip("* \t\n")
            for other in (match.groupdict().get("others") or "").split(",")[1:]:
                yield other.strip("* \t\n"), base + "*" * other.count("*")


class _Types:
    """The names of types that a source defines by typedef, using and #define."""

    def __init__(self, macros: Macros, text: str) -> None:
        self._meanings: Macros = {name: list(values) for name, values in macros.items()}
        for name, values in self._meanings.items():
            own = c_type([name])
            if own and any(c_type(_words(value)) != own for value in values) and name not in values:
                values.append(name)  # a kernel before the #define has CUDA's type
        for name, meaning in _named_types(text):
            others = self._meanings.setdefault(name, [])
            if _words(meaning) not in map(_words, others):
                others.append(meaning)

    def parameter(self, text: str, index: int) -> Parameter:
        """Read one parameter of a list. Raises _NotTaken."""
        declared = _ATTRIBUTE.sub("", text).split("=")[0]
        if declared.count("<") != declared.count(">"):
            raise _NotTaken("a default value among its parameters has a comma within <>: put it in brackets")
        is_array = re.search(r"\[[^]]*\]", declared)
        plain = re.sub(r"\[[^]]*\]", "", declared)
        if not _PLAIN_TYPE.fullmatch(plain) or not _words(plain):
            raise _NotTaken(f"its parameter `{text}` is not a number, a vector or a pointer")
        *kind, last = _words(plain)
        is_name = any(word != "*" for word in kind) and last not in WORDS and last != "*"
        words = self._resolve(kind if is_name else [*kind, last], frozenset())
        name = last if is_name else f"number {index + 1}"
        stars = words.count("*") + bool(is_array)
        base = [word for word in words if word != "*"]
        found = c_type(base)
        if stars:
            return Parameter(name, _POINTER if stars > 1 else found or CType(BYTES), is_array=True)
        if found is None:
            kind_text = " ".join(base)
            raise _NotTaken(f"its parameter {name} is a {kind_text}, by value: let it be a pointer to one")
        return Parameter(name, found)

    def _resolve(self, words: Sequence[str], within: frozenset[str]) -> list[str]:
        """Replace all names among the words by their meanings."""
        resolved = []
        for word in words:
            meanings = self._meanings.get(word, [])
            if not meanings or word in within:
                resolved.append(word)
            elif len(meanings) > 1:
                raise _NotTaken(
                    f"{word} has several meanings, by #undef or {_UNDECIDED}, or give each a name of its own"
                )
            elif not _PLAIN_TYPE.fullmatch(meanings[0]):
                raise _NotTaken(f"the macro {word} stands among its parameters: write them out")
            else:
                resolved += self._resolve(_words(meanings[0]), within | {word})
        return resolved


def _words(text: str) -> list[str]:
    """List the words and stars of a declaration, without qualifiers and template arguments."""
    while "<" in text and (shorter := re.sub(r"<[^<>]*>", "", text)) != text:
        text = shorter
    return [word for word in re.findall(r"\w+|\*", text) if word not in _QUALIFIERS]
