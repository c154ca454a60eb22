"""bench/nets.py: steps of ours and of others in one table; the nets that it names can be made."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest

from bench import nets, step
from bench.baselines.work import Line
from bench.nets import (
    IMAGES,
    MATHS,
    NETS,
    Mine,
    Theirs,
    baseline,
    is_dense,
    network_of,
    table,
    theirs,
    window_of,
)
from bench.timing import Times
from nn.app.options import Options
from pyrt.errors import UserError

DENSE = "784-512-10"


def their(name, batch, math, us, nbytes):
    return {"what": [name, batch], "math": math, "us": us, "bytes": nbytes}


LINE = their("lenet5", 128, "float32", 2.0, 3)


@pytest.mark.parametrize("name", NETS)
def test_every_net_is_what_its_name_says(name):
    network = network_of(name)
    if is_dense(name):
        assert network.is_dense and "-".join(map(str, network.sizes)) == name
        assert {layer.activation for layer in network.layers[:-1]} == {"sigmoid"}
    else:
        assert (network.layer_shapes[0], network.classes) == IMAGES[name]


def test_the_table_compares_in_the_same_arithmetic():
    mine = {
        (128, "float32"): Mine(Times(80.0, 79.0, 90.0), 3 << 20),
        (128, "tf32"): Mine(Times(70.0, 70.0, 71.0), 0),
    }
    others = Theirs({(128, "float32"): 200.0}, {(128, "float32"): 5 << 20}, {(128, "tf32"): 90.5})
    header, _, first, second = table("lenet5", mine, others).splitlines()
    assert header.split()[:3] == ["network", "batch", "math"] and header.endswith("JAX us")
    assert first.split() == [
        *("lenet5", "128", "float32", "80.0", "79.0", "to", "90.0", "3", "200.0", "5", "2.50", "-")
    ]
    assert second.split() == [
        *("lenet5", "128", "tf32", "70.0", "70.0", "to", "71.0", "0", "-", "-", "-", "90.5")
    ]


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


def test_our_steps_of_a_dense_network_are_those_of_windows_of_epochs(monkeypatch):
    """It is trained without momentum, on as many samples as the baselines."""
    asked = []

    def train(options):
        asked.append(options)
        epochs = [SimpleNamespace(seconds=2.0 if number else 0.2) for number in range(options.epochs)]
        memory = SimpleNamespace(lines=[SimpleNamespace(name="all", device=34)])
        return SimpleNamespace(epochs=epochs, memory=memory, environment={"devices": ["one"]}, phases=[])

    monkeypatch.setattr("train.train", train)
    found = nets.ours("784-1024-1024-1024-1024-10", 3000, "bf16")
    assert found == (Times(0.1e6, 0.1e6, 0.1e6), 34)
    (one,) = asked
    assert (one.hidden, one.net, one.momentum, one.optimiser) == ((1024,) * 4, None, 0.0, "sgd")
    assert (one.data, one.samples) == ("synthetic:28x28x1:10:60000", 60000)
    assert (one.batch, one.math, one.device, one.val_fraction) == (3000, "bf16", "cuda", 0.0)
    assert one.epochs == step.WARM_UP + 20 * window_of("784-1024-1024-1024-1024-10", 3000)


def test_a_dense_network_is_trained(monkeypatch):
    monkeypatch.setattr(step, "DEVICE", "cpu")
    monkeypatch.setattr(step, "SAMPLES", 100)
    monkeypatch.setattr(step, "WINDOW", 1)
    monkeypatch.setattr(nets, "WINDOWS", 3)
    times, nbytes = nets.ours("784-32-10", 64, "float32")
    assert 0 < times.least <= times.median <= times.most < 1e7
    assert nbytes >= 0


def test_windows_of_wide_networks_are_short():
    windows = {name: window_of(name, *NETS[name]) for name in NETS if is_dense(name)}
    assert windows[DENSE] == windows["784-32-10"] == step.WINDOW
    assert windows["784-8192-8192-10"] == windows["784-4096-4096-10"] == 1
    assert all(short <= long for long, short in pairwise(windows.values()))


def run_as_baseline(monkeypatch, program):
    """Run this source in the place of PyTorch's program."""
    run = nets.subprocess.run

    def instead(command, **how):
        assert command[0] == sys.executable and command[1].endswith("torch_nets.py")
        return run([sys.executable, "-c", program, *command[2:]], **how)

    monkeypatch.setattr(nets.subprocess, "run", instead)


def test_the_baseline_answers_in_lines(monkeypatch):
    run_as_baseline(monkeypatch, f"import sys; print({json.dumps(LINE)!r}); print()")
    assert list(baseline("lenet5")) == [LINE]


def test_a_baseline_that_fails_says_why_in_its_last_line(monkeypatch):
    run_as_baseline(monkeypatch, "import sys; sys.exit('Traceback\\nneeds PyTorch: ' + sys.argv[1])")
    with pytest.raises(UserError, match=r"^PyTorch: needs PyTorch: lenet5$"):
        list(baseline("lenet5"))


def test_a_net_is_timed_in_every_arithmetic_also_without_pytorch(monkeypatch, capsys):
    monkeypatch.setattr(nets, "require_gpu", lambda: 1)
    monkeypatch.setattr(nets, "ours", lambda *case: Mine(Times(float(case[1]), 1.0, 2.0), 0))
    run_as_baseline(monkeypatch, "import sys; sys.exit('no PyTorch')")
    assert nets.main(["lenet5"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "left out: PyTorch: no PyTorch"
    rows = [line.split()[:4] for line in lines if line.startswith("lenet5")]
    assert rows == [["lenet5", str(batch), math, f"{batch}.0"] for batch in NETS["lenet5"] for math in MATHS]


def run_dense_baselines(monkeypatch, lines, failure=""):
    """Let the programs of bench/step.py print these lines."""

    def run_baselines(gpus, batches, failures, hidden, maths):
        assert (gpus, batches, hidden, maths) == (1, (3000,), (512,), MATHS)
        failures += [failure] * bool(failure)
        return [Line(framework, "1", math, 1, "", 3000, "", us, us, us) for framework, math, us in lines]

    monkeypatch.setattr(step, "run_baselines", run_baselines)


def test_the_fastest_way_of_each_framework_counts(monkeypatch):
    modules = [their(DENSE, 3000, "float32", 200.0, 3), their(DENSE, 3000, "bf16", 50.0, 4)]
    run_as_baseline(monkeypatch, f"print({json.dumps(modules[0])!r}); print({json.dumps(modules[1])!r})")
    lines = [("PyTorch", "float32", 190.0), ("PyTorch", "float32", 195.0), ("PyTorch", "bf16", 60.0)]
    run_dense_baselines(monkeypatch, [*lines, ("JAX", "tf32", 90.0), ("JAX", "tf32", 80.0)])
    float32, tf32, bf16 = ((3000, math) for math in MATHS)
    assert theirs(DENSE, []) == Theirs({float32: 190.0, bf16: 50.0}, {float32: 3, bf16: 4}, {tf32: 80.0})


def test_a_wrong_result_of_a_baseline_fails_behind_the_table(monkeypatch, capsys):
    monkeypatch.setattr(nets, "require_gpu", lambda: 1)
    monkeypatch.setattr(nets, "ours", lambda *case: Mine(Times(4.0, 1.0, 2.0), 0))
    run_as_baseline(monkeypatch, "import sys; sys.exit('no PyTorch')")
    run_dense_baselines(monkeypatch, [("JAX", "tf32", 80.0)], failure="JAX: W1 is off")
    assert nets.main([DENSE]) == 1
    out, errors = capsys.readouterr()
    assert errors == "nets.py: error: JAX: W1 is off\n"
    assert [line.split()[-1] for line in out.splitlines() if line.startswith(DENSE)] == ["-", "80.0", "-"]


def test_a_net_that_is_not_there_is_named_before_a_gpu_is_looked_for():
    with pytest.raises(UserError, match=r"no network is called lenet6: there are lenet5, "):
        nets.main(["lenet6"])
