"""bench/nets.py: steps of ours and of PyTorch in one table; the nets that it names can be made."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from bench import nets
from bench.nets import IMAGES, MATHS, NETS, baseline, network_of, table
from bench.timing import Times
from nn.app.options import Options
from pyrt.errors import UserError

KEY = ("lenet5", 128, "float32")


def their(key, us, nbytes):
    *what, math = key
    return {"what": what, "math": math, "us": us, "bytes": nbytes}


@pytest.mark.parametrize("name", NETS)
def test_every_net_takes_its_images(name):
    network = network_of(name)
    assert (network.layer_shapes[0], network.classes) == IMAGES[name]


def test_the_table_compares_with_pytorch_in_the_same_arithmetic():
    mine = {KEY: (Times(80.0, 79.0, 90.0), 3 << 20), ("lenet5", 128, "tf32"): (Times(70.0, 70.0, 71.0), 0)}
    header, _, first, second = table(mine, {KEY: their(KEY, 200.0, 5 << 20)}).splitlines()
    assert header.split()[:3] == ["network", "batch", "math"] and header.endswith("PyTorch / ours")
    assert first.split() == [
        "lenet5",
        "128",
        "float32",
        "80.0",
        *["79.0", "to", "90.0", "3", "200.0", "5", "2.50"],
    ]
    assert second.split() == ["lenet5", "128", "tf32", "70.0", *["70.0", "to", "71.0", "0", "-", "-", "-"]]


def test_our_steps_are_those_of_a_run(monkeypatch):
    """The first epochs do not count, nor does a step more or less."""
    asked = []

    def train(options):
        assert isinstance(options, Options)
        asked.append(options)
        epochs = [SimpleNamespace(seconds=seconds) for seconds in (9.0, 9.0, 0.2, 0.4, 0.3)]
        lines = [
            SimpleNamespace(name=name, device=nbytes) for name, nbytes in (("layer 1", 1200), ("all", 34))
        ]
        memory = SimpleNamespace(lines=[*lines, SimpleNamespace(name="batches", device=10**6)])
        return SimpleNamespace(epochs=epochs, memory=memory)

    monkeypatch.setattr("train.train", train)
    assert nets.ours("vgg16", 64, "bf16") == (Times.of([0.01, 0.02, 0.015]), 1234)
    assert nets.ours("lenet5", 3000, "tf32") == (Times.of([0.05, 0.1, 0.075]), 1234)
    assert [(one.data, one.batch, one.math, one.device) for one in asked] == [
        ("synthetic:224x224x3:1000:1280", 64, "bf16", "cuda"),
        ("synthetic:28x28x1:10:12000", 3000, "tf32", "cuda"),
    ]


def run_as_baseline(monkeypatch, program):
    """Run this source in the place of PyTorch's program."""
    run = nets.subprocess.run

    def instead(command, **how):
        assert command[0] == sys.executable and command[1].endswith("torch_nets.py")
        return run([sys.executable, "-c", program, *command[2:]], **how)

    monkeypatch.setattr(nets.subprocess, "run", instead)


def test_the_baseline_answers_in_lines(monkeypatch):
    run_as_baseline(monkeypatch, f"import sys; print({json.dumps(their(KEY, 2.0, 3))!r}); print()")
    assert list(baseline("lenet5")) == [their(KEY, 2.0, 3)]


def test_a_baseline_that_fails_says_why_in_its_last_line(monkeypatch):
    run_as_baseline(monkeypatch, "import sys; sys.exit('Traceback\\nneeds PyTorch: ' + sys.argv[1])")
    with pytest.raises(UserError, match=r"^PyTorch: needs PyTorch: lenet5$"):
        list(baseline("lenet5"))


def test_a_net_is_timed_in_every_arithmetic_also_without_pytorch(monkeypatch, capsys):
    monkeypatch.setattr(nets, "require_gpu", lambda: 1)
    monkeypatch.setattr(nets, "ours", lambda *case: (Times(float(case[1]), 1.0, 2.0), 0))
    run_as_baseline(monkeypatch, "import sys; sys.exit('no PyTorch')")
    assert nets.main(["lenet5"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "left out: PyTorch: no PyTorch"
    rows = [line.split()[:4] for line in lines if line.startswith("lenet5")]
    assert rows == [["lenet5", str(batch), math, f"{batch}.0"] for batch in NETS["lenet5"] for math in MATHS]


def test_a_net_that_is_not_there_is_named_before_a_gpu_is_looked_for():
    with pytest.raises(UserError, match=r"no network is called lenet6: there are lenet5, "):
        nets.main(["lenet6"])
