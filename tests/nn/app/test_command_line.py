"""nn/app/command_line.py: help in groups with readable defaults, version, suggestions, stdout."""

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

import pyrt
from nn.app.command_line import GROUPS, OTHER_NAMES, parse
from nn.app.options import Options
from nn.app.written_files import WRITTEN
from nn.checkpoints import versions
from nn.files.write import STDOUT
from nn.problem.option import flag
from pyrt.errors import UserError
from tests.mpi import ROOT

FIELDS = {field.name: field for field in dataclasses.fields(Options)}


def printed(capsys, monkeypatch, option):
    """What an option prints that ends the program, in lines of any length."""
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as ended:
        parse([option])
    assert not ended.value.code
    return capsys.readouterr().out


def test_every_option_is_in_one_group():
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(FIELDS)


def test_help_says_defaults_in_words(capsys, monkeypatch):
    text = printed(capsys, monkeypatch, "--help")
    titles = re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE)
    assert titles == ["options", *GROUPS]
    assert not re.search("None|True|False|PosixPath|SUPPRESS|<", text)
    listed = re.sub(r"\n {9,}", " ", text)  # help that begins in the next line
    lines = {line.split()[0].rstrip(","): line for line in listed.splitlines() if line.startswith("  --")}
    defaults = {"hidden": "512", "reg": "0.0001", "momentum": "0.9", "head": "softmax", "shuffle": "on"}
    for name, default in defaults.items():
        assert lines[flag(name)].endswith(f"(default: {default})"), lines[flag(name)]
    assert lines["--lr"].endswith("(default: 0.07; 0.001 with --optimiser adam)")
    for name, field in FIELDS.items():
        assert field.metadata["help"] in lines[flag(name)]
        assert lines[flag(name)].count("(default: ") <= 1
        if field.default is None or field.default is False:
            assert lines[flag(name)].endswith(field.metadata["help"])


def test_the_version_is_that_of_the_package_and_of_the_checkout(capsys, monkeypatch):
    monkeypatch.setattr(versions, "revision", lambda: "0123456789ab and changes 01234567")
    revised = printed(capsys, monkeypatch, "--version")
    assert revised == f"pyrt {pyrt.__version__}, revision 0123456789ab and changes 01234567\n"
    monkeypatch.setattr(versions, "revision", lambda: versions.UNKNOWN)
    assert printed(capsys, monkeypatch, "--version") == f"pyrt {pyrt.__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "pyrt.__version__"}


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("--batch-size 100", "--batch"),
        ("--learning-rate 0.1", "--lr"),
        ("--epoch 3", "--epochs"),
        ("--hiden 9", "--hidden"),
        ("--weight-decay 0", "--reg"),
        ("--activation relo", "relu"),
        ("--exchange pear", "peer"),
        ("--device gpu", "cuda"),
        ("--dtype fp32", "float32"),
    ],
)
def test_what_was_meant(words, meant):
    with pytest.raises(UserError, match=rf": did you mean {meant}\? \(--help"):
        parse(words.split())


def test_what_other_programs_say_is_said_of_names_that_there_are():
    values = {choice for field in FIELDS.values() for choice in field.metadata["choices"]}
    names = {name.replace("_", "-") for name in FIELDS}
    assert set(OTHER_NAMES.values()) <= names | values
    assert not OTHER_NAMES.keys() & (names | values)


def test_standard_output_in_the_place_of_a_file():
    """For files that a run writes, one at a time; a file of that name is ./-."""
    for name in WRITTEN:
        more = ["--evaluate", "--init", "a.npz"] if name == "predictions" else []
        assert parse([flag(name), "-", *more]).written == {name: STDOUT}
        assert parse([flag(name), "./-", *more]).written == {name: Path("-")}
    for name in ("init", "checkpoint"):
        with pytest.raises(UserError, match=f"{flag(name)}: - is standard output .*: give a name"):
            parse([flag(name), "-"])
    with pytest.raises(UserError, match="a file of its own for each"):
        parse(["--json", "-", "--save", "-"])
