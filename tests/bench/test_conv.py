"""bench/conv.py: each version is right and timed on the emulated device, and cuDNN's stands beside it."""

from __future__ import annotations

from functools import partial

import pytest

import pyrt
from bench import conv, timing
from bench.conv import WAYS, error, rows
from bench.nets import Layer
from nn.launch.conv import convolve
from nn.launch.conv.versions import CONV_VERSIONS
from nn.launch.kernels import Kernels
from pyrt.clock import StreamClock
from pyrt.errors import UserError
from tests import few

LAYER = Layer(5, 4, 8, 6, 1)
"""Samples that are not all checked; channels and filters that no tile divides."""


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """No time is of interest here."""
    monkeypatch.setattr(timing, "SLOW", 0.0)
    monkeypatch.setattr(conv, "ROUNDS", 1)


@pytest.fixture
def clock(driver):
    return StreamClock(driver, driver.create_stream())


@pytest.fixture
def printed(monkeypatch, capsys):
    """What the program prints of this layer on the emulated device, beside cuDNN's lines or without it."""

    def run(*theirs, failure=None):
        def baseline(words):
            assert words == "--layers"
            if failure:
                raise UserError(failure)
            return iter(theirs)

        monkeypatch.setattr(conv, "LAYERS", [LAYER])
        monkeypatch.setattr(conv, "baseline", baseline)
        monkeypatch.setattr(conv, "require_gpu", lambda: 1)
        monkeypatch.setattr(pyrt, "start", partial(pyrt.start, "emulated"))
        assert conv.main([]) == 0
        return capsys.readouterr().out.splitlines()

    return run


LIMITS = {"float32": 2e-6, "tf32": 2e-3, "bf16": 2e-2}
"""Of errors, relative to the largest element: of sums of 72 products of numbers of so many bits."""


@pytest.mark.long
@pytest.mark.parametrize("way", few(list(WAYS)[:1], of=list(WAYS)))
def test_every_version_is_timed_and_close_to_float64(clock, library, way):
    found = {name: (kernel, error) for name, kernel, us, rate, error in rows(clock, library, LAYER, way)}
    assert {name.split()[0].strip(",") for name in found} == set(CONV_VERSIONS)
    for name, (kernel, off) in found.items():
        assert kernel in (*CONV_VERSIONS, "narrow", "implicit_mma")
        tiles = 10 if kernel == "winograd" else 1  # whose transforms magnify roundings
        assert 0 < off < tiles * LIMITS[name.split(", ")[1]], name


def test_a_wrong_result_shows_in_the_error(clock, library, monkeypatch):
    monkeypatch.setattr(conv.Arrays, "exact", lambda self, way: 1.5 * EXACT(self, way))
    bind = partial(convolve, Kernels(library, "float32", conv="direct"))
    assert error(clock, bind, LAYER, "forward") > 0.2


EXACT = conv.Arrays.exact


@pytest.mark.long
@pytest.mark.kernels
def test_a_table_for_each_way_with_cudnn_beside(printed):
    what = [str(LAYER), "to the input"]
    lines = printed({"what": what, "math": "tf32", "us": 2.0})
    titles = [line for line in lines if line.startswith(str(LAYER))]
    assert titles == [f"5 x 4x4x8 -> 6, {way}" for way in WAYS]
    (cudnn,) = [line.split() for line in lines if line.startswith("cuDNN")]
    flops = 2 * 5 * 16 * 6 * 9 * 8
    assert cudnn == ["cuDNN,", "tf32", "2.0", f"{flops / 2e6:.1f}", "-"]
    assert lines.index(titles[1]) < lines.index(next(line for line in lines if "cuDNN" in line))


@pytest.mark.long
@pytest.mark.kernels
def test_without_pytorch_the_reason_is_said(printed):
    lines = printed(failure="PyTorch: needs PyTorch and an NVIDIA GPU")
    assert lines[0] == "left out: PyTorch: needs PyTorch and an NVIDIA GPU"
    assert sum(line.startswith("direct, float32") for line in lines) == len(WAYS)
