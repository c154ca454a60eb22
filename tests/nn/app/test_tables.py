"""nn/app/tables.py: tables that leave columns out until they fit."""

import pytest

from pyrt.tables import table

HEADERS = ["phase", "calls", "host ms", "device ms"]
ROWS = [["forward", 6, 1.5, None], ["a phase of a long name", 140, 1000.25, None]]
FORMATS = ["", "", ".2f", ".1f"]


def laid_out(width):
    return table(HEADERS, ROWS, FORMATS, ["host ms", "calls", "device ms"], width)


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (None, []),
        (200, []),
        (55, []),
        (54, ["device ms"]),  # first, for it is empty
        (42, ["device ms"]),
        (41, ["device ms", "host ms"]),
        (22, ["device ms", "host ms", "calls"]),
        (10, ["device ms", "host ms", "calls"]),  # nothing more can go
    ],
)
def test_columns_are_left_out_until_the_rest_fits(width, left_out):
    lines = laid_out(width).splitlines()
    headers = [name for name in HEADERS if name not in left_out]
    assert lines[0].split() == " ".join(headers).split()
    named = " ".join(lines[4:])
    assert named == (f"(no room for {', '.join(left_out)})" if left_out else "")
    assert width is None or width < 22 or max(map(len, lines)) <= width


def test_a_column_keeps_its_own_format():
    assert laid_out(42).splitlines()[3].endswith("  1000.25")
