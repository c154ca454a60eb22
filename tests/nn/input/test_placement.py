"""nn/input/placement.py: resident where it fits and may be, else streamed."""

import pytest

from nn.input import placement
from pyrt.driver.cpu import CpuDriver
from pyrt.driver.null import DeviceProperties, NullDriver
from pyrt.errors import UserError

GB = 10**9
DRIVER = NullDriver(DeviceProperties("a GPU", "sm_90a", 132, 232448))


@pytest.mark.parametrize(
    ("needed", "free", "expected"),
    [
        (47_000_000, 80 * GB, True),
        (GB, GB + placement.MARGIN, True),
        (GB, GB + placement.MARGIN - 1, False),
        (2 * GB, GB, False),
        (0, 0, False),
    ],
)
def test_auto_is_resident_where_it_fits_with_a_margin(needed, free, expected):
    assert placement.fits(needed, free) == expected


@pytest.mark.parametrize(("asked", "may"), [("auto", True), ("resident", True), ("stream", False)])
def test_what_is_asked_for_may_be(asked, may):
    assert placement.may_be_resident(asked, DRIVER, 60_000) == may


def test_places_in_two_orders_are_32_bit_integers():
    assert placement.may_be_resident("auto", DRIVER, 2**29)
    assert not placement.may_be_resident("auto", DRIVER, 2**29 + 1)
    with pytest.raises(UserError, match=r"--placement resident.*536870913"):
        placement.may_be_resident("resident", DRIVER, 2**29 + 1)


def test_the_cpu_has_no_memory_of_its_own():
    assert not placement.may_be_resident("auto", CpuDriver(), 60_000)
    with pytest.raises(UserError, match="--placement resident: there is no device"):
        placement.may_be_resident("resident", CpuDriver(), 60_000)
