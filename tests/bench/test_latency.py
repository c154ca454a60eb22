"""bench/latency.py: our calls on the emulated device, checked; the table; what PyTorch computes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from bench import latency
from bench.baselines import torch_latency
from bench.latency import DENSE, NUMBERS, Case, cases, fastest, main, ours, table
from bench.nets import IMAGES, network_of
from bench.program import WrongResult
from nn.model import reference
from nn.model.network import Network
from nn.train.latency import Latency
from pyrt import clock
from pyrt.errors import UserError

SECONDS = Latency(1, 1000, 12e-6, 15e-6, 8e4)


def line(case: Case, pixels: str, median: float) -> dict[str, Any]:
    return {"case": list(case), "pixels": pixels, "median": median, "p99": 2 * median}


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our side as it is, with few calls on the emulated device."""
    monkeypatch.setattr(latency, "DEVICE", "emulated")
    monkeypatch.setattr(clock, "WARM_UP", 0.0)
    monkeypatch.setattr(clock, "MOST", 2)
    monkeypatch.setitem(NUMBERS, DENSE, (1, 3))


def test_every_network_is_there_and_is_timed_with_one_image() -> None:
    assert cases(DENSE) == [Case(DENSE, count, "float32") for count in (1, 32, 3000)]
    for name in NUMBERS:
        network = network_of(name)
        if name != DENSE:
            assert (network.layer_shapes[0], network.classes) == IMAGES[name]
            assert cases(name) == [Case(name, 1, math) for math in ("float32", "tf32", "bf16")]


@pytest.mark.kernels
@pytest.mark.usefixtures("emulated")
def test_ours_is_checked_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = dict(ours(DENSE))
    assert list(found) == [Case(DENSE, 1, "float32"), Case(DENSE, 3, "float32")]
    assert all(one.calls == 2 and 0 < one.median <= one.p99 for one in found.values())
    forward = reference.forward

    def other(parameters: Any, X: np.ndarray, network: Any) -> Any:
        inputs, logits = forward(parameters, X, network)
        logits[1:] *= 1.001  # right for one image, wrong for three
        return inputs, logits

    monkeypatch.setattr(reference, "forward", other)
    with pytest.raises(WrongResult, match=rf"^{DENSE}, float32, 3 images: logits are off by 1\.0e-03$"):
        dict(ours(DENSE))


@pytest.mark.kernels
@pytest.mark.usefixtures("emulated")
def test_a_convolutional_network_is_checked_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32: the emulated device takes its tensor cores only where a version is named."""
    monkeypatch.setattr(latency, "MATHS", ("float32",))
    assert [case for case, _ in ours("lenet5")] == [Case("lenet5", 1, "float32")]


def test_the_table_compares_with_the_faster_way_of_pytorch() -> None:
    one, many = Case(DENSE, 1, "float32"), Case("lenet5", 1, "bf16")
    lines = [line(one, "uint8", 30e-6), line(one, "divided", 24e-6), line(many, "uint8", 9.0)]
    assert fastest(lines)[one]["pixels"] == fastest(lines[::-1])[one]["pixels"] == "divided"
    other = Case(DENSE, 32, "float32")
    header, _, first, second = table({one: SECONDS, other: SECONDS}, fastest(lines)).splitlines()
    assert header.endswith("PyTorch / ours")
    numbers = ["12.0", "15.0", "80000"]
    assert first.split() == [DENSE, "1", "float32", *numbers, "divided", "24.0", "48.0", "2.00"]
    assert second.split() == [DENSE, "32", "float32", *numbers, "-", "-", "-", "-"]


def test_all_is_told_also_without_pytorch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(latency, "require_gpu", lambda: 1)
    monkeypatch.setattr(latency, "ours", lambda name: ((case, SECONDS) for case in cases(name)))
    run, programs = subprocess.run, []

    def instead(command: list[str], **how: Any) -> Any:
        programs.append(command[1:])
        return run([sys.executable, "-c", program], **how)

    monkeypatch.setattr(subprocess, "run", instead)
    program = "import sys; sys.exit('no PyTorch')"
    assert main(["lenet5"]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert first == "left out: PyTorch: no PyTorch"
    assert [row.split()[2] for row in rows if row.startswith("lenet5")] == ["float32", "tf32", "bf16"]
    program = f"print({json.dumps(line(Case('lenet5', 1, 'tf32'), 'uint8', 24e-6))!r})"
    assert main(["lenet5"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[-1] for row in rows if row.startswith("lenet5")] == ["-", "2.00", "-"]
    assert all(path.endswith("torch_latency.py") and name == "lenet5" for path, name in programs)


def test_a_network_that_is_not_there_is_named_before_a_gpu_is_looked_for() -> None:
    with pytest.raises(UserError, match=r"no network is called lenet6: there are 784-512-10, lenet5, "):
        main(["lenet6"])


def test_pytorch_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_latency, "torch", None)
    with pytest.raises(UserError, match=r"^needs PyTorch and an NVIDIA GPU$"):
        torch_latency.main([])


@pytest.mark.parametrize("pixels", torch_latency.PIXELS)
@pytest.mark.parametrize("name", ["lenet5", DENSE])
def test_pytorch_computes_logits_from_pixels(name: str, pixels: str) -> None:
    """On the CPU: whichever way pixels go up, they are between 0 and 1 in the network."""
    torch = pytest.importorskip("torch")
    network: Network = network_of(name)
    torch.manual_seed(0)
    work, logits = torch_latency.host_to_host(network, 3, torch.float32, pixels, "cpu")
    with torch.no_grad():
        work()
    assert tuple(logits.shape) == (3, network.classes)
    assert 0 < float(logits.abs().max()) < 2
