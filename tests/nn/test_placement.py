"""nn/placement.py: resident where it fits and may be, else streamed."""

import pytest

from nn import placement
from pyrt.errors import UserError

GB = 10**9


@pytest.mark.parametrize(
    ("needed", "free", "expected"),
    [
        (47_000_000, 80 * GB, "resident"),
        (GB, GB + placement.MARGIN, "resident"),
        (GB, GB + placement.MARGIN - 1, "stream"),
        (2 * GB, GB, "stream"),
        (0, 0, "stream"),
    ],
)
def test_auto_is_resident_where_it_fits_with_a_margin(needed, free, expected):
    assert placement.choose("auto", needed, free, 60_000) == expected


@pytest.mark.parametrize("asked", ["resident", "stream"])
@pytest.mark.parametrize("free", [0, 80 * GB])
def test_what_is_asked_for_is_done(asked, free):
    assert placement.choose(asked, GB, free, 60_000) == asked


def test_places_in_two_orders_are_32_bit_integers():
    assert placement.choose("auto", 0, GB, 2**29) == "resident"
    assert placement.choose("auto", 0, GB, 2**29 + 1) == "stream"
    with pytest.raises(UserError, match=r"--placement resident.*536870913"):
        placement.choose("resident", 0, GB, 2**29 + 1)
