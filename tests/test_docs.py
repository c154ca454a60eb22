"""README, CONTRIBUTING and docs: links, files, commands, options, API, phases, and the code on the pages.

A page that names what is not there any more fails here.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

import nn
import pyrt
from bench.__main__ import PROGRAMS
from experiments import STUDIES
from nn.app.command_line import GROUPS, parse
from nn.app.options import Options
from nn.autotune.__main__ import parse as parse_autotune
from nn.problem.option import flag
from tests import few
from tests.mpi import ROOT, TIMEOUT, environment

README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LONGEST = 150
"""Lines of the README."""

RUNNERS = ("python", "python3", "mpirun", "make", "srun", "sbatch", "nsys", "ncu")
"""Text in backticks that begins with one of these and a space is a command."""

OTHERS = ("source", "trap", "wait", "jq", "pip", "compute-sanitizer")
"""What else commands may begin with; nothing of the project's is checked in these."""

FOLDERS = ("kernels", "pyrt", "nn", "bench", "experiments", "tests", "tools", "docs", "data", "examples")

PLACEHOLDER = re.compile(r"\b(NAME|FORMAT|STUDY)\b|_(NAME|FORMAT)\.")
"""Words that stand for a name of the reader's own."""


class Block(NamedTuple):
    """A fenced block, and the text between it and the one before."""

    language: str
    text: str
    before: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    pieces = re.split(r"^```(\w*)\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return tuple(map(Block, pieces[1::3], pieces[2::3], pieces[0::3]))


@cache
def prose(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def quoted(page: Path) -> list[str]:
    """Return what stands in backticks."""
    return [" ".join(text.split()) for text in re.findall(r"`([^`]+)`", prose(page))]


on_each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= LONGEST


@on_each_page
def test_fences_are_closed_and_named(page: Path) -> None:
    """Each block has a language, and nothing but blocks is indented so far that it is code."""
    assert all(block.language for block in blocks(page))
    assert "```" not in prose(page)


def anchors(page: Path) -> set[str]:
    """Return the names that a page's headings have in links."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """Return the targets of links and images that lead to files of the project."""
    found = re.findall(r"\]\(([^()\s]+(?:\([^()]*\))?[^()\s]*)\)", prose(page))
    return [target for target in found if not target.startswith(("http://", "https://"))]


@on_each_page
def test_links_resolve(page: Path) -> None:
    for target in links(page):
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    reached = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}
    assert set(PAGES) - {README, index} <= reached


@on_each_page
def test_files_that_are_named_are_there(page: Path) -> None:
    for text in quoted(page):
        if not re.fullmatch(r"\.?[\w-]+(/[\w.*-]+)+", text) or text.split("/")[0] not in FOLDERS:
            continue
        if not PLACEHOLDER.search(text):
            assert list(ROOT.glob(text)), text


def test_pages_that_code_names_are_there() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix in (".py", ".cu", ".cuh", ".json", ".sh", ".toml") and path != Path(__file__):
            for page in re.findall(r"\bdocs/[\w/]+\.(?:md|sh|png)", path.read_text()):
                assert (ROOT / page).is_file(), f"{name} names {page}"


def commands(page: Path) -> Iterator[str]:
    """Give the lines of shell blocks, and what stands in backticks and begins with a program."""
    for block in blocks(page):
        if block.language == "sh":
            yield from filter(None, block.text.splitlines())
    yield from (text for text in quoted(page) if text.split()[0] in RUNNERS and " " in text)


def words_of(command: str) -> list[str]:
    """Return the words of a line's first command, without variables that are set in front of it."""
    words = shlex.split(command, comments=True)
    end = next((place for place, word in enumerate(words) if word in ("|", "&", "||", "&&")), len(words))
    while words and re.match(r"[A-Z_]+=", words[0]):
        words, end = words[1:], end - 1
    return words[:end]


def require_command(words: list[str], page: Path) -> None:
    """Fail unless the command's program is there, and takes these arguments."""
    program, *arguments = words
    if program == "make":
        require_make(arguments)
    elif program.startswith("python"):
        require_python(arguments, page)
    elif program == "sbatch":
        assert (ROOT / arguments[0]).is_file()
        require_options(arguments[1:])
    else:
        assert program in (*RUNNERS, *OTHERS), program
        inner = [place for place, word in enumerate(arguments) if word in ("mpirun", "python")]
        if inner:
            require_command(arguments[inner[0] :], page)


def require_options(arguments: list[str]) -> None:
    """Fail unless these are arguments of train.py."""
    if arguments not in (["--help"], ["--version"]):
        parse(arguments)


def require_make(arguments: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = [word for word in arguments if "=" not in word]
    assert named and set(named) <= set(targets)
    given = dict(word.split("=", 1) for word in arguments if "=" in word).get("ARGS", "").split()
    if named == ["run"]:
        require_options(given)
    if named == ["test"]:
        assert all((ROOT / word).exists() for word in given if not word.startswith("-"))
    words = {"bench": PROGRAMS, "report": (*STUDIES, "--draw", "NAME")}
    if named[0] in words:
        assert set(given) <= set(words[named[0]])


def require_python(arguments: list[str], page: Path) -> None:
    if arguments[0] == "-m":
        module, *rest = arguments[1:]
        place = ROOT / module.replace(".", "/")
        assert module == "pytest" or place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()
        if module == "nn.autotune":
            parse_autotune(rest)
        if module == "experiments":
            assert set(rest) <= {*STUDIES, "--size", "small", "full"}
        return
    file, *rest = arguments
    assert (ROOT / file).is_file() or f"`{file}`" in page.read_text(), file
    if file == "train.py":
        require_options(rest)


@on_each_page
def test_commands_begin_with_what_is_there(page: Path) -> None:
    for command in commands(page):
        if words := words_of(command):
            require_command(words, page)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("frobnicate --all", AssertionError),
        ("make everything", AssertionError),
        ("make bench ARGS=gem", AssertionError),
        ("python no_such_file.py", AssertionError),
        ("python -m nn.no_such_module", AssertionError),
        ("mpirun -n 4 python train.py --no-such-option 3", Exception),
        ("nsys profile -t cuda python train.py --epochs many", Exception),
        ("make run ARGS=--no-such-option", Exception),
    ],
)
def test_wrong_commands_are_found(command: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        require_command(words_of(command), README)


def tables(page: Path) -> dict[str, list[list[str]]]:
    """Return for each heading of level two the rows of the tables below it, as cells."""
    found: dict[str, list[list[str]]] = {}
    for section in re.split(r"^#+ ", prose(page), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        rows = [line[1:-1].split("|") for line in text.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in row] for row in rows]
        found[title] = [row for row in cells if not set("".join(row)) <= {"-"}]
    return found


def plainly(default: object) -> str:
    """Write a default as --help does."""
    if default is None or default is False:
        return ""
    if isinstance(default, bool):
        return "on"
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def test_options_are_those_of_the_command_line() -> None:
    page = ROOT / "docs" / "reference" / "options.md"
    fields = {field.name: field for field in dataclasses.fields(Options)}
    sections = tables(page)
    assert [title for title in sections if title in GROUPS] == list(GROUPS)
    for group, names in GROUPS.items():
        rows = sections[group][1:]
        listed = [re.findall(r"`--([\w-]+)`", row[0]) for row in rows]
        assert [words[0] for words in listed] == [name.replace("_", "-") for name in names]
        for (_, values, default, meaning), words, name in zip(rows, listed, names, strict=True):
            field = fields[name]
            assert default == plainly(field.default), name
            said = re.findall(r"`([^`]+)`", values)
            assert said == list(field.metadata["choices"] or filter(None, [field.metadata["metavar"]])), name
            assert words[1:] == ([f"no-{words[0]}"] if field.default is True else []), name
            assert len(meaning) > 10, flag(name)


def resolve(name: str) -> object:
    """Return what a dotted name stands for."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def takes(function: object, words: str) -> bool:
    """Whether a function has these parameters, in this order, among others."""
    names = iter(inspect.signature(function).parameters)  # type: ignore[arg-type]
    return all(word.strip(" *") in names for word in filter(None, words.split(",")))


def test_the_api_is_that_of_the_code() -> None:
    page = ROOT / "docs" / "reference" / "api.md"
    sections = tables(page)
    names = {title for title in sections if re.fullmatch(r"(nn|pyrt)\.[\w.]+", title)}
    exported = {f"nn.{name}" for name in nn.__all__} | {f"pyrt.{name}" for name in pyrt.__all__}
    assert exported <= names
    for name in names:
        thing = resolve(name)
        short = name if name.startswith("nn.") else name.rsplit(".", 1)[-1]
        for words in re.findall(rf"^`(?:pyrt\.)?{re.escape(short)}\(([^)]*)\)`", prose(page), re.MULTILINE):
            assert takes(thing, words), f"{name}({words})"
        attributes = {*dir(thing), *getattr(thing, "__annotations__", {})}
        for row in sections[name][1:]:
            for member, brackets in re.findall(r"`(\w+)(\([^)]*\))?`", row[0]):
                assert member in attributes or member in source_of(thing), f"{name}.{member}"
                if brackets:
                    assert takes(getattr(thing, member), brackets.strip("()")), f"{name}.{member}{brackets}"


def source_of(thing: object) -> str:
    """Return the lines of a class that set attributes of its objects."""
    return "".join(re.findall(r"self\.\w+(?:, self\.\w+)* =", inspect.getsource(thing)))  # type: ignore[arg-type]


def phases_of_the_code() -> set[str]:
    """Return the names of phases as they stand in the code, N for what stands in braces."""
    patterns = (
        r'\bphase\(\s*f?"([^"]+)"',
        r'\bphases\.charge\(\s*"([^"]+)"',
        r'\bOperation\(\s*f?"([^"]+)"',
        r'\boperations\.\w+\(\s*f?"([^"]+)"',
        r'^SNAPSHOT, WAIT = "([^"]+)", "([^"]+)"',
        r'_Moved\.of\(\s*f"([^"]+)"',
        r'\b(?:product|products) = \(?f"([^"]+)"',
        r'\bname = f"((?:bias|activation)[^"]+)"',
        r'Phase\(self, "([^"]+)"',
    )
    found = set()
    for folder in ("nn", "pyrt"):
        for path in (ROOT / folder).rglob("*.py"):
            if "autotune" in path.parts:  # what it measures is in no table
                continue
            for pattern in patterns:
                for match in re.finditer(pattern, path.read_text(), re.MULTILINE):
                    found |= set(match.groups())
    found |= set(re.findall(r'phases?\.(?:charge|phase)\(\s*"([^"]+)"', (ROOT / "train.py").read_text()))
    return {re.sub(r"\{[^}]*\}", "N", name) for name in found}


def test_every_phase_is_explained() -> None:
    page = ROOT / "docs" / "reference" / "phases.md"
    explained = set(quoted(page)) | {"keep loss"}  # a kernel's own name, within `step`
    for name in phases_of_the_code():
        if name.startswith(("N", "/")):  # made of other names
            continue
        name = name.replace("sum of N", "sum of forward GEMM N")
        assert name in explained, name


Expected = str | None


def programs(page: Path) -> list[tuple[str, Expected]]:
    """Return the page's Python programs, each with what the page says that it prints, if anything."""
    found = []
    for block, after in pairwise((*blocks(page), Block("", "", ""))):
        if block.language == "python":
            says = after.language == "text" and "prints" in after.before
            found.append((block.text, after.text if says else None))
    return found


def kernel_files(page: Path) -> Mapping[str, str]:
    """Return the kernel files on a page: blocks whose first line is their name."""
    named = (re.match(r"// (\S+\.cuh?)\n", block.text) for block in blocks(page) if block.language == "c")
    texts = (block.text for block in blocks(page) if block.language == "c")
    return {match[1]: text for match, text in zip(named, texts, strict=True) if match}


WITH_PROGRAMS = [page for page in PAGES if programs(page)]


def test_there_are_programs_on_the_pages() -> None:
    assert {"README.md", "docs/howto/own_kernels.md", "docs/howto/own_mpi.md", "docs/tutorial.md"} <= set(
        map(name_of, WITH_PROGRAMS)
    )
    outputs = [expected for page in WITH_PROGRAMS for _, expected in programs(page)]
    assert len(list(filter(None, outputs))) >= 3


@pytest.mark.kernels
@pytest.mark.parametrize(
    "page",
    few([page for page in WITH_PROGRAMS if "reference" not in page.parts], of=WITH_PROGRAMS),
    ids=name_of,
)
def test_programs_run_as_they_are_written(page: Path, tmp_path: Path) -> None:
    for name, text in kernel_files(page).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for text, expected in programs(page):
        done = run_program(text, tmp_path)
        assert done.returncode == 0, done.stderr
        if expected is not None:
            assert done.stdout == expected


def run_program(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder,
        env=environment(),
        timeout=TIMEOUT,
        capture_output=True,
        text=True,
    )
