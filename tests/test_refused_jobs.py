"""train.py: how whole jobs refuse what is wrong, all ranks together, and how they end before their time."""

import json
import os
import subprocess
import sys
import time

import pytest

from tests import few
from tests.mpi import ROOT, environment, mpirun
from tests.train_jobs import QUICK, refused, train_telling_exit_codes

MISSING = [
    ("--init", "w.safetensors", "safetensors"),
    ("--save", "w.safetensors", "safetensors"),
    ("--save", "w.pyrtz", "bitarray"),
    ("--export", "w.onnx", "onnx"),
]


@pytest.mark.parametrize(("option", "file", "name"), few(MISSING[3:], of=MISSING))
def test_a_package_that_is_missing_ends_all_ranks_in_one_line_before_anything_is_trained(
    tmp_path, option, file, name
):
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise ImportError('as a test wants')")
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    job = train_telling_exit_codes(2, *QUICK, option, tmp_path / file, env={"PYTHONPATH": path})
    refused(job, f"{option} {tmp_path}/{file}: needs", f"python -m pip install {name}")
    assert "epoch" not in job.stdout


def test_a_failed_check_exits_with_1(tmp_path):
    job = train_telling_exit_codes(2, *QUICK, "--samples", 40, "--check", "--tolerance", 1e-30)
    assert "check FAILED" in job.stdout
    assert job.stdout.count("rank ended with 1") == 2


BAD = [
    (["--lr", "nan"], ["--lr nan"]),
    (["--dtype", "float16"], ["--dtype", "float16", "float32"]),
    (["--nonsense"], ["--nonsense", "--help"]),
    (["--data", "missing"], ["missing", "embedded"]),
    (["--data", "docs/figures"], ["docs/figures", "no data"]),
    (["--init", "missing.npz"], ["--init missing.npz"]),
    (["--init", "data/mnist5k.npz"], ["--init data/mnist5k.npz", "W1"]),
    (["--save", "missing/w.npz"], ["--save missing/w.npz", "missing"]),
    (["--json", "data"], ["--json data", "folder"]),
    (["--save", "/proc/w.npz"], ["--save /proc/w.npz"]),
    (["--save", "two\nlines/w.npz"], ["lines"]),
]
"""What is wrong by itself, before MPI starts, on rank 0 alone, and with a path of two lines."""


@pytest.mark.parametrize(("arguments", "words"), few([BAD[6]], of=BAD))
def test_bad_input_is_refused_in_one_line_by_all_ranks_together(arguments, words):
    refused(train_telling_exit_codes(2, *QUICK, *arguments), *words)


def test_cuda_where_no_gpu_is_visible():
    job = train_telling_exit_codes(2, "--device", "cuda", env={"CUDA_VISIBLE_DEVICES": ""})
    refused(job, "--device cuda", "--device cpu")


def test_a_diverging_run_exits_with_1_and_leaves_the_old_files(tmp_path):
    save, report = tmp_path / "w.npz", tmp_path / "report.json"
    for file in (save, report):
        file.write_bytes(b"old")
    arguments = ["--activation", "relu", "--lr", 1e30, "--save", save, "--json", report]
    job = train_telling_exit_codes(2, *QUICK, *arguments)
    refused(job, "loss", "epoch", "step", code=1, ranks=2)
    assert save.read_bytes() == report.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["report.json", "w.npz"]


@pytest.mark.gpu
def test_more_ranks_than_gpus_are_refused_with_the_number_of_each():
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    arguments = ["--device", "cuda", "--no-share-gpus"]
    job = train_telling_exit_codes(2, *arguments, env={"CUDA_VISIBLE_DEVICES": visible})
    refused(job, "2 ranks", "1 GPU", "--share-gpus")


@pytest.mark.parametrize("ranks", ["0", "-1", "x", "2.5"])
def test_make_run_refuses_what_is_no_number_of_ranks(ranks):
    refused = subprocess.run(
        ["bash", "tools/run.sh"], cwd=ROOT, env=environment({"RANKS": ranks}), capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert f"RANKS={ranks}" in refused.stderr


WITHOUT_MEMORY = """
import itertools, sys
from pyrt.job import run
import train

def main(job):
    from nn.input import upload_queue
    from nn.train import training
    from pyrt.driver import cpu, emulated
    owner, name, count = {where}
    real, calls = getattr(owner, name), itertools.count(1)

    def fails(*arguments, **keywords):
        if next(calls) >= count:
            raise MemoryError("as a test wants")
        return real(*arguments, **keywords)

    if job.rank == 1:
        setattr(owner, name, fails)
    return train.main(job)

sys.argv = ["train.py", *sys.argv[1:]]
run(main)
"""
"""A job in which memory ends on rank 1, at a call of something."""


ENDS = [
    pytest.param("cpu.CpuDriver, 'allocate', 7", ["--device", "cpu"], id="set-up"),
    pytest.param("upload_queue.UploadQueue, '_take', 3", ["--device", "cpu"], id="steps"),
    pytest.param("training.Evaluator, 'scores', 2", ["--device", "cpu", "--plan", "model"], id="evaluation"),
    pytest.param(
        "upload_queue.UploadQueue, '_take', 3",
        ["--device", "emulated", "--exchange", "peer", "--placement", "stream", "--samples", 90],
        id="steps over peer memory",
        marks=pytest.mark.kernels,
    ),
]


@pytest.mark.parametrize(("where", "options"), few(ENDS[1:2], of=ENDS))
def test_memory_that_ends_on_one_rank_ends_all_with_one_line(where, options):
    """In a process whose steps others wait for, too."""
    script, size = WITHOUT_MEMORY.format(where=where), ["--hidden", 9, "--batch", 10, "--epochs", 1000]
    started = time.monotonic()
    job = mpirun(2, sys.executable, "-c", script, *map(str, [*size, *options]))
    assert time.monotonic() - started < 40
    assert job.returncode == 2, job.stderr
    said = [line for line in job.stderr.splitlines() if line.startswith("train.py: error")]
    assert said == [
        "train.py: error: not enough memory on the host: use smaller sizes or more nodes (as a test wants)"
    ]
    assert "Traceback" not in job.stderr


@pytest.mark.parametrize("fits", few([False], of=[True, False]))
def test_memory_is_shown_and_nothing_trained(tmp_path, fits):
    report = tmp_path / "report.json"
    hidden = "9" if fits else ",".join(["40000"] * 19)
    arguments = ["--device", "cpu", "--hidden", hidden, "--exchange", "blocking", "--memory"]
    job = train_telling_exit_codes(2, *arguments, "--json", report)
    assert "memory of rank 0" in job.stdout and "epoch 1" not in job.stdout and "phase" not in job.stdout
    if not fits:
        # Open MPI may put a part of a long standard output in front of it.
        said = job.stderr[job.stderr.index("train.py: error: ") :]
        assert job.stdout.count("rank ended with 2") == 2 and said.count("\n") == 1
        assert all(words in said for words in ("2 ranks need", "GB on the host", "--batch or --hidden"))
        return
    assert (job.returncode, job.stderr) == (0, "")
    lines = json.loads(report.read_text())["memory"]["lines"]
    assert [line["name"] for line in lines][:3] == ["input", "layer 1", "layer 2"]
