"""train.py: whole jobs under mpirun, what they print, write and answer."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from pyrt.cache import make_folder
from tests import few
from tests.mpi import ROOT, environment
from tests.train_jobs import QUICK, refused, train, train_telling_exit_codes


def arrays(path):
    """The parameters in a file, bit by bit."""
    with np.load(path) as file:
        return {name: (file[name].dtype.str, file[name].tobytes()) for name in file.files if name != "run"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One run on 4 ranks that prints and writes everything; one for all processes that share the tests."""

    def run(scratch):
        files = "--save", scratch / "w.npz", "--json", scratch / "report.json"
        job = train(4, *QUICK, "--print-every", 2, *files, "--check")
        assert job.returncode == 0, job.stderr
        (scratch / "printed.json").write_text(json.dumps([job.stdout, job.stderr]))

    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "trained"
    make_folder(folder, run)
    out, err = json.loads((folder / "printed.json").read_text())
    report = json.loads((folder / "report.json").read_text())
    return SimpleNamespace(job=SimpleNamespace(stdout=out, stderr=err), save=folder / "w.npz", report=report)


def test_only_rank_0_prints_and_nothing_but_what_belongs_to_the_run(trained):
    words = [line.split()[0] for line in trained.job.stdout.splitlines() if line]
    for word in ("ranks", "device", "exchange", "data", "network", "training", "phase", "total"):
        assert words.count(word) == 1, word
    assert trained.job.stderr == ""


def test_the_header_says_what_the_run_stands_on(trained):
    out = trained.job.stdout
    assert "4 on 1 node(s)" in out and "cpu: 1 x " in out and "host: " in out
    assert (
        "embedded digits (mnist5k): 3600 training, 400 validation, 1000 test samples of 28 x 28 pixels" in out
    )
    assert "784-9-10, sigmoid, softmax cross-entropy: 7165 parameters, float32" in out
    assert "3 epochs of 3 batches of 1500" in out


def test_epochs_and_steps_are_printed_as_they_pass(trained):
    lines = trained.job.stdout.splitlines()
    passed = [line.split()[:2] for line in lines if line.startswith(("epoch", "step ")) and "loss" in line]
    steps = [["step", str(step)] for step in (2, 4, 6, 8)]
    epochs = [["epoch", f"{epoch}/3"] for epoch in (1, 2, 3)]
    assert passed == [steps[0], epochs[0], *steps[1:3], epochs[1], steps[3], epochs[2]]
    assert all("validation precision 0." in line for line in lines if line.startswith("epoch"))


def test_the_test_precision_is_the_last_line(trained):
    last = trained.job.stdout.splitlines()[-1]
    assert last == f"test precision {trained.report['test']['precision']:.4f}"


def test_the_check_is_printed_and_passed(trained):
    assert "check passed" in trained.job.stdout
    assert trained.report["passed"]


def test_the_saved_file_knows_the_run(trained):
    with np.load(trained.save, allow_pickle=False) as file:
        run = json.loads(str(file["run"]))
    assert run["options"] == trained.report["options"]
    assert run["environment"] == trained.report["environment"]
    assert run["test_precision"] == trained.report["test"]["precision"]


@pytest.mark.long
def test_the_same_command_gives_the_same_bits(trained, tmp_path):
    again = train(4, *QUICK, "--save", tmp_path / "w.npz", "--json", tmp_path / "report.json")
    assert again.returncode == 0, again.stderr
    assert arrays(tmp_path / "w.npz") == arrays(trained.save)
    report = json.loads((tmp_path / "report.json").read_text())
    assert [epoch["loss"] for epoch in report["epochs"]] == [
        epoch["loss"] for epoch in trained.report["epochs"]
    ]
    assert report["test"] == trained.report["test"]


@pytest.mark.long
def test_a_run_goes_on_from_either_format_of_parameters(trained, tmp_path):
    pytest.importorskip("safetensors", reason="make test installs it")
    other, again = tmp_path / "w.safetensors", tmp_path / "again.npz"
    for source, target in ((trained.save, other), (other, again)):
        arguments = ["--device", "cpu", "--hidden", 9, "--epochs", 0, "--init", source, "--save", target]
        job = train(2, *arguments)
        assert (job.returncode, job.stderr) == (0, "")
    assert arrays(again) == arrays(trained.save)


@pytest.mark.long
@pytest.mark.parametrize("head", few(["sigmoid"], of=["softmax", "sigmoid"]))
def test_an_exported_network_finds_the_digits_that_the_run_did(tmp_path, head):
    """In a program that knows nothing of this project: pixels divided by 255, ONNX, the largest probability.

    Of 1000 test images none is as near to two digits as float32's rounding: the counts are the same.
    """
    pytest.importorskip("onnx", reason="make test installs it")
    onnxruntime = pytest.importorskip("onnxruntime", reason="make test installs it")
    files = ["--export", tmp_path / "w.onnx", "--save", tmp_path / "w.npz", "--json", tmp_path / "r.json"]
    job = train(2, *QUICK, "--epochs", 20, "--head", head, "--activation", "tanh", *files)
    assert (job.returncode, job.stderr) == (0, "")
    with np.load(ROOT / "data" / "mnist5k.npz") as digits:
        X, labels = digits["x_test"].reshape(1000, -1), digits["y_test"]
    opened = onnxruntime.InferenceSession(tmp_path / "w.onnx", providers=["CPUExecutionProvider"])
    (found,) = opened.run(None, {"pixels": (X / 255).astype(np.float32)})
    report = json.loads((tmp_path / "r.json").read_text())
    assert (found.argmax(axis=1) == labels).mean() == report["test"]["precision"]
    assert report["test"]["precision"] > 0.5
    again = ["--evaluate", "--init", tmp_path / "w.npz", "--export", tmp_path / "again.onnx"]
    job = train(1, "--device", "cpu", *again)
    assert (job.returncode, job.stderr) == (0, "")
    opened = onnxruntime.InferenceSession(tmp_path / "again.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(opened.run(None, {"pixels": (X / 255).astype(np.float32)})[0], found)


def test_evaluate_prints_the_scores_and_writes_the_labels(trained, tmp_path):
    labels = tmp_path / "labels"
    job = train(2, "--device", "cpu", "--evaluate", "--init", trained.save, "--predictions", labels)
    assert job.returncode == 0, job.stderr
    lines = job.stdout.splitlines()
    assert lines[-1] == trained.job.stdout.splitlines()[-1]
    assert any(line.startswith("1000 test samples: loss ") and "top-5 precision" in line for line in lines)
    table = [words for words in map(str.split, lines) if len(words) == 2 and words[0].isdigit()]
    assert [label for label, _ in table] == [str(label) for label in range(10)]
    assert not any(line.startswith(("epoch", "training")) for line in lines)
    with np.load(ROOT / "data" / "mnist5k.npz") as digits:
        right = np.loadtxt(labels, int) == digits["y_test"]
    assert f"test precision {right.mean():.4f}" == lines[-1]


@pytest.mark.long
def test_latency_is_a_table_of_one_rank(trained, tmp_path):
    evaluation = ["--device", "cpu", "--evaluate", "--init", trained.save, "--latency", 40]
    job = train(1, *evaluation)
    assert (job.returncode, job.stderr) == (0, "")
    lines = list(map(str.split, job.stdout.splitlines()))
    place = next(place for place, words in enumerate(lines) if words[:3] == ["images", "at", "a"])
    rows = lines[place + 2 : place + 5]
    assert [words[0] for words in rows] == ["1", "32", "40"] and all(len(words) == 5 for words in rows)
    assert all(float(median) <= float(p99) for _, median, p99, *_ in rows)
    job = train_telling_exit_codes(2, *evaluation)
    assert job.stdout.count("rank ended with 2") == 2
    assert "train.py: error: --latency: times a network on one rank, and there are 2: start one" in job.stderr


@pytest.mark.long
def test_without_validation_and_test_sets_no_precision_is_printed(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x_train=rng.integers(0, 256, (9, 2, 2), np.uint8), y_train=np.arange(9) % 3)
    job = train(2, *QUICK, "--data", tmp_path / "d.npz", "--val-fraction", 0)
    assert (job.returncode, job.stderr) == (0, "")
    assert "precision" not in job.stdout
    assert "--batch 1500 is more than the training set: one batch an epoch" in job.stdout


def test_the_rows_of_the_table_add_up_to_the_job_s_wall_time(tmp_path):
    """Timed from outside, from the start of the process to its report: ending MPI may take a second more.

    A busy machine may take longer between the two: one quiet run of four is enough. No machine starts Python
    and MPI in less than 20 ms: a shorter row began too late.
    """
    report = tmp_path / "report.json"
    command = [sys.executable, "train.py", *QUICK, "--json", str(report)]
    missing = []
    for _ in range(4):
        started = time.time()
        subprocess.run(
            command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, check=True, timeout=60
        )
        wall = report.stat().st_mtime - started
        rows = json.loads(report.read_text())["phases"]
        missing.append(wall - sum(row["host"] for row in rows))
        assert missing[-1] > -0.03  # the start of a process is known to 10 ms, and so is a file's time
        assert next(row["host"] for row in rows if row["name"] == "start Python and MPI") > 0.02
        if missing[-1] < 0.05 * wall + 0.05:
            return
    pytest.fail(f"the rows lack {missing} seconds of the wall time")


def test_help_is_printed_once():
    job = train(2, "--help")
    assert (job.returncode, job.stderr) == (0, "")
    assert job.stdout.count("usage: train.py") == 1
    assert job.stdout.count("--print-every N") == 1


@pytest.mark.kernels
def test_the_emulated_device_trains_what_the_reference_does():
    small = ["--hidden", 9, "--batch", 64, "--epochs", 1, "--data", "synthetic:8x8x1:10:200"]
    job = train(3, "--device", "emulated", *small, "--check", "--sanitize")
    assert (job.returncode, job.stderr) == (0, "")
    assert "the same kernels on the CPU" in job.stdout and "check passed" in job.stdout


@pytest.mark.gpu
def test_a_gpu_run_prints_device_times(tmp_path):
    report = tmp_path / "report.json"
    arguments = ["--device", "cuda", "--share-gpus", "--hidden", 64, "--epochs", 3, "--exchange", "host"]
    job = train(2, *arguments, "--json", report, "--check")
    assert (job.returncode, job.stderr) == (0, "")
    phases = {row["name"]: row for row in json.loads(report.read_text())["phases"]}
    for name in ("batch iteration", "forward GEMM 1", "backward GEMM 3", "step", "gradients device -> host"):
        assert phases[name]["device"] > 0, name


@pytest.mark.gpu
def test_more_ranks_than_gpus_train_on_them_with_a_warning():
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    job = train(4, "--hidden", 64, "--epochs", 3, "--check", env={"CUDA_VISIBLE_DEVICES": visible})
    assert (job.returncode, job.stderr) == (0, "")
    (warning,) = (line for line in job.stdout.splitlines() if line.startswith("warning: "))
    assert warning.startswith("warning: ranks 0 to 3 share one GPU (")
    assert "cuda: 1 x " in job.stdout and "ranks share a GPU" in job.stdout


def test_numpy_loads_only_after_mpi_has_set_its_threads():
    """OpenBLAS reads the number of its threads once, when NumPy loads it."""
    script = "import sys, train; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0


@pytest.mark.long
def test_another_kind_of_network_is_not_evaluated_with_saved_parameters(tmp_path):
    saved = str(tmp_path / "relu.npz")
    trained = train(1, "--hidden", "8", "--epochs", "1", "--activation", "relu", "--save", saved)
    assert trained.returncode == 0, trained.stderr
    scored = train(1, "--hidden", "8", "--activation", "sigmoid", "--evaluate", "--init", saved)
    assert scored.returncode == 2
    assert "--activation relu" in scored.stderr and "--activation sigmoid" in scored.stderr


PACKAGES = {"safetensors": "safetensors", "pyrtz": "bitarray"}
"""What formats of parameter files need."""


@pytest.mark.long
@pytest.mark.parametrize("end", few(["npz"], of=["npz", "safetensors", "pyrtz"]))
def test_the_network_and_the_scale_of_pixels_are_those_of_the_file(tmp_path, end):
    """On two ranks, whose rank 0 alone reads the file; options that are given must agree with it."""
    if end in PACKAGES:
        pytest.importorskip(PACKAGES[end], reason="make test installs it")
    file, report = tmp_path / f"w.{end}", tmp_path / "report.json"
    network = ["--hidden", "7,6", "--activation", "tanh", "--head", "sigmoid", "--pixel-scale", 100]
    cpu = ["--device", "cpu", "--json", report]
    job = train(2, *cpu, *network, "--classes", 12, "--epochs", 3, "--lr", 0.5, "--save", file)
    assert job.returncode == 0, job.stderr
    trained = json.loads(report.read_text())
    ways = [[], [*network, "--classes", 12]]  # tests/nn/app/test_network_of_file.py has the second
    for given in few(ways[:1], of=ways):
        job = train(2, *cpu, *given, "--evaluate", "--init", file)
        assert (job.returncode, job.stderr) == (0, "")
        assert "784-7-6-12, tanh, sigmoid cross-entropy per class" in job.stdout
        scored = json.loads(report.read_text())
        assert scored["test"] == trained["test"]
        for name in ("hidden", "activation", "head", "classes", "pixel_scale"):
            assert scored["options"][name] == trained["options"][name]
    job = train_telling_exit_codes(2, *cpu, "--evaluate", "--init", file, "--hidden", 512)
    refused(job, f"--init {file}: was trained with --hidden 7,6, and --hidden 512 is given: leave it out")


@pytest.mark.long
def test_a_file_without_metadata_is_evaluated_by_the_options(trained, tmp_path):
    with np.load(trained.save) as file:
        np.savez(tmp_path / "w.npz", **{name: file[name] for name in file.files if name != "run"})
    arguments = ["--device", "cpu", "--evaluate", "--init", tmp_path / "w.npz"]
    job = train(1, *arguments, "--hidden", 9)
    assert job.stdout.splitlines()[-1] == trained.job.stdout.splitlines()[-1]
    refused(train_telling_exit_codes(1, *arguments), "has W1 of shape (9, 784)", "--hidden", ranks=1)


@pytest.mark.long
def test_an_unlabelled_class_of_the_data_does_not_make_the_network_smaller(tmp_path):
    """Trained on three classes, scored on data of two: the file says that there are three."""
    rng = np.random.default_rng(0)
    for name, classes in (("three", 3), ("two", 2)):
        images = rng.integers(0, 256, (30, 2, 2), np.uint8)
        labels = np.arange(30) % classes
        np.savez(tmp_path / f"{name}.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    save = tmp_path / "w.npz"
    job = train(1, *QUICK, "--data", tmp_path / "three.npz", "--save", save)
    assert job.returncode == 0, job.stderr
    job = train(1, "--device", "cpu", "--data", tmp_path / "two.npz", "--evaluate", "--init", save)
    assert (job.returncode, job.stderr) == (0, "")
    assert "4-9-3, sigmoid" in job.stdout


def test_a_reader_that_leaves_ends_the_run_without_a_traceback():
    """As ``| head`` does. Python alone: under mpirun it is mpirun that writes to the pipe."""
    command = f"{sys.executable} train.py --hidden 8 --batch 16 --epochs 30 | head -1"
    ended = subprocess.run(
        ["sh", "-c", command], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.startswith("ranks")
    assert ended.stderr == ""


def test_printed_losses_and_the_header_are_in_the_json(trained):
    assert trained.report["version"] == 1
    assert [step for step, _ in trained.report["losses"]] == [2, 4, 6, 8]
    assert trained.report["environment"]["header"][0] in trained.job.stdout
