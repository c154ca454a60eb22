"""bench/baselines: the work, its check, the lines; the steps where a framework is installed."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import timing
from bench.baselines import jax_step, torch_step, work
from bench.baselines.work import CHECKED, Line, Task
from bench.program import WrongResult
from nn.model import reference
from nn.model.network import Network
from nn.optimisers import Sgd
from pyrt.errors import UserError

ROOT = Path(work.__file__).parents[2]

LINE = Line("JAX", "0.11", "tf32", 4, "a GPU", 3000, "epoch scan", 151.2, 150.0, 160.5)


@pytest.fixture(scope="module")
def task():
    return work.make_task(40, samples=40 * (CHECKED + 1))


@pytest.fixture(scope="module")
def deep_task():
    return work.make_task(40, (48, 64, 32), samples=40 * (CHECKED + 1))


class Numpy:
    """A mode that trains with the reference, its gradients times ``factor``."""

    name = "numpy"

    def __init__(self, task, factor=1.0):
        self._task, self._factor = task, factor
        self._parameters = task.parameters

    def queue(self, steps):
        batches = zip(self._task.X[:steps], self._task.labels[:steps], strict=True)
        network = Network.dense(self._task.sizes, "sigmoid", "softmax")
        sgd = Sgd(work.RATE * self._factor, 0.0, work.REG)
        self._parameters = reference.train(self._parameters, batches, network, sgd)

    def wait(self):
        pass

    def parameters(self):
        return self._parameters


def test_lines_survive_other_output():
    text = f'a warning\n{LINE}\n{{"mode": "of something else"}}\n[1]\n{dataclasses.replace(LINE, gpus=1)}\n'
    assert work.parse_lines(text) == [LINE, dataclasses.replace(LINE, gpus=1)]


def test_the_task_is_random_and_splits_evenly(task):
    assert task.X.shape == (CHECKED + 1, 40, 784)
    assert 0.4 < task.X.mean() < 0.6
    assert set(task.labels.ravel()) == set(range(10))
    assert all(np.abs(array).min() > 0 for array in task.parameters.values())
    parts = [task.part(rank, 4) for rank in range(4)]
    np.testing.assert_array_equal(np.concatenate([part.X for part in parts], axis=1), task.X)
    np.testing.assert_array_equal(np.concatenate([part.labels for part in parts], axis=1), task.labels)


def test_check_finds_a_wrong_gradient(task):
    work.check(Numpy(task), task, "float32")
    with pytest.raises(WrongResult, match="numpy, float32: W1 is off by"):
        work.check(Numpy(task, factor=1.01), task, "float32")
    with pytest.raises(WrongResult):
        work.check(Numpy(Task(task.X[::-1], task.labels, task.parameters)), task, "tf32")


def test_check_finds_a_wrong_gradient_of_the_first_of_many_layers(deep_task):
    """It is more than the L2 term and than what parameters are rounded by."""
    assert deep_task.sizes == (784, 48, 64, 32, 10)
    work.check(Numpy(deep_task), deep_task, "float32")
    mode = Numpy(deep_task)
    exact = mode.parameters()["W1"]
    mode.queue(CHECKED)
    change = mode.parameters()["W1"] - exact * (1 - work.RATE * work.REG) ** CHECKED
    assert np.abs(change).max() > 20 * CHECKED * work.RATE * work.REG * np.abs(exact).max()
    mode.queue = lambda steps: None
    mode.parameters()["W1"] -= change * np.float32(0.2)
    with pytest.raises(WrongResult, match="numpy, bf16: W1 is off by"):
        work.check(mode, deep_task, "bf16")


def test_a_round_of_slow_steps_is_an_epoch(task, monkeypatch):
    monkeypatch.setattr(timing, "WARM_UP", 0)
    monkeypatch.setattr(work, "ROUNDS", 2)
    monkeypatch.setattr(work, "ROUND_STEPS", 12)
    queued = []
    mode = Numpy(task)
    mode.queue = queued.append
    work.time(mode, 4)
    assert len(queued) == 1 + 2 * 3
    queued.clear()
    monkeypatch.setattr(work, "ROUND_SECONDS", 0.0)
    work.time(mode, 4)
    assert len(queued) == 1 + 2 * 1


def test_run_prints_a_line_on_one_rank(task, monkeypatch, capsys):
    monkeypatch.setattr(timing, "WARM_UP", 0)
    monkeypatch.setattr(work, "ROUND_STEPS", 1)
    monkeypatch.setattr(work, "ROUNDS", 1)
    setting = work.Setting("NumPy", "2", "float32", 1, "a CPU")
    work.run(Numpy(task), task, setting, printing=False)
    assert capsys.readouterr().out == ""
    work.run(Numpy(task), task, setting)
    (line,) = work.parse_lines(capsys.readouterr().out)
    assert (line.framework, line.mode, line.batch) == ("NumPy", "numpy", 40)
    assert 0 < line.min_us <= line.median_us <= line.max_us


def test_arguments():
    given = work.parse("x.py", None, ["--gpus", "4", "--batch", "3000", "400", "--math", "tf32"])
    assert given == work.Arguments(4, [3000, 400], ["tf32"])
    assert work.parse("x.py", None, []) == work.Arguments(1, [3000], ["float32"], (512,))
    given = work.parse("x.py", None, ["--hidden", "64", "32", "--math", "float32", "bf16"])
    assert given == work.Arguments(1, [3000], ["float32", "bf16"], (64, 32))


@pytest.mark.parametrize(
    "arguments",
    [
        *("--gpus 0", "--batch 0", "--batch 30000", "--gpus 4 --batch 3001", "--batch x"),
        *("--math int8", "--hidden", "--hidden 64 0", "what"),
    ],
)
def test_arguments_that_make_no_sense(arguments):
    with pytest.raises(UserError):
        work.parse("x.py", None, arguments.split())


@pytest.mark.parametrize(
    ("module", "missing", "name"), [(torch_step, "torch", "PyTorch"), (jax_step, "jax", "JAX")]
)
def test_a_missing_framework_is_one_line(module, missing, name, monkeypatch):
    monkeypatch.setattr(module, missing, None)
    with pytest.raises(UserError, match=f"^{name} is not installed$"):
        module.main([])


@pytest.mark.parametrize("math", ["float32", "bf16"])
@pytest.mark.parametrize("which", ["task", "deep_task"])
def test_torch_steps_on_the_cpu(which, math, request):
    torch = pytest.importorskip("torch")
    task = request.getfixturevalue(which)
    place = torch_step.Place(0, 1, torch.device("cpu"))
    work.check(torch_step.Eager(task, place, math), task, math)
    step = torch_step.Step(task, place, math)
    for batch in range(CHECKED):
        step.run(batch)
    mode = Numpy(task)
    mode.queue, mode.parameters = lambda steps: None, step.parameters
    work.check(mode, task, math)


JAX_ON_THE_CPU = """
import jax
from bench.baselines import jax_step, work

for hidden in (512,), (48, 64, 32):
    task = work.make_task(40, hidden, samples=40 * (work.CHECKED + 1))
    for math in "float32", "bf16":
        for mode in jax_step.modes(task, jax.devices()[:1], math):
            work.check(mode, task, math)
            mode.queue(task.batches)
            mode.wait()
"""


def test_jax_steps_on_the_cpu():
    """In a process of their own: whatever it is asked for, JAX starts on each platform that it may use, and
    on a GPU that this process uses already that is a crash."""
    pytest.importorskip("jax")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", JAX_ON_THE_CPU]
    done = subprocess.run(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stderr
