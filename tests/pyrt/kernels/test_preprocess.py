"""Comments, strings, directives and conditions of a CUDA source."""

from __future__ import annotations

import pytest

from pyrt.kernels.preprocess import preprocess


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("#if 1", True),
        ("#if 0", False),
        ("#if A", True),
        ("#if A == 2 && B != 2", True),
        ("#if A == 2 && (B > 3 || !B)", False),
        ("#if !A == 0", True),  # (!A) == 0
        ("#if A + 2 * B - 0x10UL / 4 % 3 < 8", True),
        ("#if C >= 4", True),  # a macro of macros
        ("#if -A < 0", True),
        ("#if MISSING", False),
        ("#ifdef A", True),
        ("#ifndef A", False),
        ("#if defined(A) && defined B && !defined(MISSING)", True),
        ("#ifdef MISSING", False),
        ("#if __CUDA_ARCH__ >= 800", None),
        ("#ifdef PYRT_EMULATED", None),
        ("#if A / 0", None),
        ("#if A == \\\n 2", True),
        ("#if (A", None),
        ("#if A B", None),
        ("#if A ? 0 : 1", False),
        ("#if MISSING ? 0 : A == 2 ? 1 : 0", True),
        ("#if A ? 1", None),
        ("#if true", True),
        ("#if false", False),
        ("#if USE && USE == 1", True),  # a macro that is true
        ("#if 010 == 8", True),
        ("#if 09", None),
        ("#if -7 / 2 == -3 && 7 / -2 == -3 && -7 / -2 == 3", True),
        ("#if -7 % 2 == -1 && 7 % -2 == 1", True),
        ("#if (6 & 3 | 8 ^ 1) == 11 && ~5 == -6", True),
        ("#if 1 | 2 == 2 && (1 << 4 >> 1 + 1) == 4 && -1 >> 1 == -1", True),
        ("#if 1 << 64", None),
        ("#if ~0u > 0", None),  # numbers without a sign wrap around
        ("#if defined MISSING && (10 / MISSING) > 1", False),
        ("#if A == 2 || __CUDA_ARCH__ >= 800", True),
        ("#if A == 2 && __CUDA_ARCH__ >= 800", None),
        ("#ifdef CALLED", True),
        ("#ifndef CALLED", False),
        ("#if CALLED(0)", None),
        ("#if LOOP", None),
        ("#", True),
    ],
)
def test_conditions(condition: str, holds: bool | None) -> None:
    macros = "#define A 2\n#define B (A + 1)\n#define C (A+A)\n#define LOOP LOOP\n#define USE true\n"
    macros += "#define CALLED(x) x\n"
    end = "#endif" if condition.startswith("#if") else ""
    text, _ = preprocess(
        f"{macros}{condition}\nyes\n{'#else' if end else ''}\n{'no' if end else ''}\n{end}\nend"
    )
    assert text.split() == {True: ["yes", "end"], False: ["no", "end"], None: ["yes", "no", "end"]}[holds]


def test_branches() -> None:
    source = "#if X == 1\na\n#elif X == 2\nb\n#if 0\nc\n#endif\n#elif 1\nd\n#else\ne\n#endif\nf"
    for x, expected in ((1, "a f"), (2, "b f"), (3, "d f")):
        assert " ".join(preprocess(f"#define X {x}\n{source}")[0].split()) == expected
    assert " ".join(preprocess(source.replace("X", "_X"))[0].split()) == "a b d e f"


def test_macros() -> None:
    source = (
        "#define A 1\n#define F(x) x\n#define B\n#undef A\n#define C float \\\n *\n#if 0\n#define D 1\n#endif"
    )
    assert preprocess(source)[1] == {"A": ["1", "A"], "B": [""], "C": ["float   *"]}
    unsure = "#ifdef __X\n#define A 1\n#else\n#define A 2\n#endif\n#if A == 1\nyes\n#else\nno\n#endif"
    text, macros = preprocess(unsure)
    assert macros == {"A": ["1", "2"]}
    assert text.split() == ["yes", "no"]


def test_conditions_see_the_macros_as_they_are_there() -> None:
    source = "#define A 1\n#undef A\n#ifdef A\nno\n#endif\n#define A 2\n#if A == 2\nyes\n#endif\n#undef B"
    text, macros = preprocess(source)
    assert text.split() == ["yes"]
    assert macros == {"A": ["1", "A", "2"]}


def test_a_comment_that_ends_in_a_backslash_goes_on() -> None:
    assert preprocess("a // b \\\n c\nd")[0].split() == ["a", "d"]


def test_comments_and_strings() -> None:
    source = """a /* " */ "//" b // '
    extern "C" '"' c '\\'' R"(")" d 1'000'000 e"""
    assert preprocess(source)[0].split() == [
        "a",
        '""',
        "b",
        "extern",
        '"C"',
        '""',
        "c",
        '""',
        '""',
        "d",
        "1'000'000",
        "e",
    ]
