"""train.py: what goes to standard output, and what to standard error."""

import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest

import train
from nn.train.diverged import Diverged
from pyrt.job import join
from tests.mpi import ROOT, mpirun

QUICK = ["--device", "cpu", "--hidden", "9", "--epochs", "2", "--batch", "1500"]

PRECISION = re.compile(r"test precision 0\.\d{4}\n")


@pytest.fixture
def trained(monkeypatch, capfdbinary):
    """Run train.py in this process: exit code, standard output in bytes, standard error."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["train.py", *QUICK, *map(str, words)])
        code = train.main(join())
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return run


def test_a_file_on_standard_output_is_there_alone(trained, tmp_path):
    """What is printed else goes to standard error, the last line last."""
    weights, plan = tmp_path / "w.npz", {"grid": [1, 1], "layers": ["samples", "samples"]}
    code, out, err = trained("--json", "-", "--save", weights, "--check")
    report = json.loads(out)
    assert (code, report["options"]["json"]) == (0, "/dev/stdout")
    assert err.startswith("ranks") and err.endswith(f"test precision {report['test']['precision']:.4f}\n")

    _, out, err = trained("--save", "-")
    with np.load(io.BytesIO(out)) as found, np.load(weights) as saved:
        assert all(np.array_equal(found[name], saved[name]) for name in ("W1", "b1", "W2", "b2"))
    assert PRECISION.fullmatch(err.splitlines(True)[-1])

    _, out, err = trained("--predictions", "-", "--evaluate", "--init", weights)
    with np.load(ROOT / "data" / "mnist5k.npz") as digits:
        assert np.mean(np.fromstring(out, int, sep="\n") == digits["y_test"]) == report["test"]["precision"]
    assert "top-5 precision" in err

    _, out, err = trained("--save-plan", "-", "--epochs", 0)
    assert json.loads(out) == plan


def test_warnings_of_the_data_are_printed_though_it_is_quiet(trained, tmp_path):
    with np.load(ROOT / "data" / "mnist5k.npz") as digits:
        images, labels = digits["x_train"][:200] / np.float32(255), digits["y_train"][:200]
    np.savez(tmp_path / "f.npz", x_train=images, y_train=labels)
    _, out, _ = trained("--quiet", "--data", tmp_path / "f.npz", "--epochs", 0)
    assert out.decode().startswith("warning: training pixels are from 0 to 1, ")


def test_under_mpirun_too():
    job = mpirun(2, sys.executable, "train.py", *QUICK, "--json", "-")
    assert job.returncode == 0, job.stderr
    assert json.loads(job.stdout)["environment"]["ranks"] == 2
    assert job.stderr.count("ranks") == 1


def test_a_run_that_fails_leaves_standard_output_empty(trained, capfdbinary):
    """A program that reads it is given no half of a report."""
    with pytest.raises(Diverged):
        trained("--json", "-", "--activation", "relu", "--lr", "1e30")
    assert capfdbinary.readouterr().out == b""


def test_a_quiet_run_prints_the_last_line_alone(trained):
    _, out, err = trained("--quiet")
    assert PRECISION.fullmatch(out.decode()) and err == ""
    code, out, err = trained("--quiet", "--check", "--tolerance", "1e-30")
    assert (code, err) == (1, "")
    assert "check FAILED" in out.decode() and "phase" not in out.decode()
    _, out, err = trained("--quiet", "--memory")
    assert out.startswith(b"\nmemory of rank 0") and b"free" in out


def test_no_epochs_are_said_to_train_nothing(trained):
    _, out, _ = trained("--epochs", 0)
    assert "training  none: --epochs 0 leaves the initial parameters as they are\n" in out.decode()


def test_what_the_readme_leaves_in_the_checkout_is_ignored_by_git():
    """Folders of runs, reports and jobs; not the sources, and not what only looks like them."""
    made = [
        "run1/state.json",
        "report/index.html",
        "checkpoints-17/state.json",
        "slurm-17.out",
        "w.npz",
        "r.json",
    ]
    sources = [
        "tools/run.sh",
        "nn/app/start.py",
        "data/mnist5k.npz",
        "nn/autotune/machines/h200.json",
        "docs/slurm.sh",
    ]
    command = ["git", "check-ignore", "--no-index", *made, *sources]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 128:
        pytest.skip("not a git checkout")
    assert done.stdout.split() == made
