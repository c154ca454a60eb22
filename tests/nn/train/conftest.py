"""Fixtures of tests of training."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["cpu", "kernels"])
def device(request: pytest.FixtureRequest) -> str:
    """Return the name of a device to train on."""
    if request.param == "cpu":
        return "cpu"
    name: str = request.getfixturevalue("driver").name
    return name
