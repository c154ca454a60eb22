"""pyrt/arguments.py: mistakes are UserErrors of one line, which name what was meant."""

from __future__ import annotations

import pytest

from pyrt.arguments import Parser, closest
from pyrt.errors import UserError


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("epoch", "epochs"),
        ("hiden", "hidden"),
        ("Hidden", "hidden"),
        ("val", "val-fraction"),  # a beginning, too short to be like the whole
        ("learning-rate", "lr"),
        ("learning_rate", "lr"),
        ("h", ""),
        ("", ""),
        ("nonsense", ""),
        ("x" * 100_000, ""),
    ],
)
def test_the_name_that_was_meant(word: str, meant: str) -> None:
    names = ["epochs", "hidden", "val-fraction", "lr"]
    assert closest(word, names, {"learning-rate": "lr", "nonsense": "no name of ours"}) == meant


def refusal(*words: str) -> str:
    parser = Parser("program", None, other_names={"batch-size": "batch", "gpu": "cuda"})
    parser.add_argument("--batch", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"))
    with pytest.raises(UserError) as caught:
        parser.parse_args(words)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--batch-size 3", "unrecognized arguments: --batch-size 3: did you mean --batch? (--help"),
        ("--batch-size=3 --epoch -1", "--batch-size=3 --epoch -1: did you mean --batch, --epochs? (--help"),
        ("-epochs 3", "-epochs 3: did you mean --epochs? (--help"),
        ("epochs 3", "unrecognized arguments: epochs 3 (--help"),
        ("--nonsense", "unrecognized arguments: --nonsense (--help"),
        ("--device gpu", "argument --device: gpu is none of cpu, cuda: did you mean cuda? (--help"),
        ("--device=CPU", "argument --device: CPU is none of cpu, cuda: did you mean cpu? (--help"),
        ("--device x", "argument --device: x is none of cpu, cuda (--help"),
    ],
)
def test_a_refusal_asks_for_what_was_meant(words: str, message: str) -> None:
    assert message in refusal(*words.split())


def test_a_value_of_several_lines_is_shown_in_one() -> None:
    assert r"two\nlines" in refusal("--device", "two\nlines")
