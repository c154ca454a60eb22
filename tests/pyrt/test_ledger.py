"""pyrt/ledger.py: bytes by what they are for, as drivers charge them."""

import pytest

from pyrt.arrays import pinned
from pyrt.driver import Driver
from pyrt.driver.cpu import CpuDriver
from pyrt.ledger import OTHER, Row


def taken(counter):
    return {row: nbytes for row, nbytes in counter.items() if nbytes}


def check_rows(driver):
    ledger = driver.ledger
    before = ledger.device[OTHER]
    first = driver.allocate(100)
    with ledger.of("weights", 2):
        second = driver.allocate(30)
        with ledger.of("exchange"):
            driver.allocate(7)
            pinned(driver, (3,), "f8")
        pinned(driver, (5,), "f4", write_only=True)
        driver.allocate(3)
    assert ledger.device[OTHER] == before + 100
    assert (ledger.device[Row("weights", 2)], ledger.device[Row("exchange")]) == (33, 7)
    assert (ledger.pinned[Row("weights", 2)], ledger.pinned[Row("exchange")]) == (20, 24)
    with ledger.of("exchange"):
        driver.free(second)
        driver.free(first)
    assert (ledger.device[Row("weights", 2)], ledger.device[Row("exchange")]) == (3, 7)
    assert ledger.device[OTHER] == before


def test_the_cpu_charges_the_innermost_row_and_takes_off_what_is_freed():
    check_rows(CpuDriver())


def test_devices_do_too_and_memory_for_both_is_host_memory(driver: Driver) -> None:
    check_rows(driver)
    with driver.ledger.of("mapped"):
        driver.allocate_mapped(11)
    assert driver.ledger.pinned[Row("mapped")] == 11
    assert driver.ledger.device[Row("mapped")] == 0


def test_a_block_that_raises_ends_too():
    driver = CpuDriver()
    with pytest.raises(KeyError), driver.ledger.of("weights"):
        raise KeyError
    driver.allocate(9)
    assert taken(driver.ledger.device) == {OTHER: 9}
