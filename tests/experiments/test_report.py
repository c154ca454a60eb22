"""The small report on the CPU, as `make report` makes it without a GPU; `make test-long` runs all of it."""

import csv
import re
import subprocess
import sys

import pytest

pytest.importorskip("pandas", reason="make test installs what the report needs")
pytest.importorskip("matplotlib")

from experiments import STUDIES
from experiments.__main__ import study_of
from experiments.study import FAILED
from tests import LONG, standing_still
from tests.mpi import ROOT, environment

SLOW = (
    *("correctness", "convergence", "exchange", "compression", "profile", "timeline", "roofline"),
    *("course_roofline", "plans", "scaling", "mpi4py", "gemm", "asynchronous"),
)
"""Most of the time; tests/experiments has a file for what each of them works out."""

RUN = [name for name in STUDIES if name != "images" and (LONG or name not in SLOW)]
"""The study `images` needs data that are downloaded: test_images.py runs it on others."""

FIGURES = {
    "correctness": {"growth", "ends", "graded", "precision", "precision-over-rates"},
    "convergence": {"rates", "curves", "batches", "overfitting", "length", "converged"},
    "digits": {"digits", "neuron", "templates", "hidden", "activations"},
    "compression": {"rates-lenet-300-100-embedded", "sensitivity-lenet-300-100-embedded"},
    "profile": {"step", "start"},
    "timeline": {"step-blocking", "step-host"},
    "course_roofline": {"roofline-2"},
    "roofline": {"products", "transfers", "roofline", "hierarchy", "models"},
    "scaling": {"speed-up-cpu", "efficiency-cpu"},
    "mpi4py": {"strong", "weak", "iterations"},
    "plans": {"map_h200", "map_h100-cluster", "map_here", "crossover", "times", "bytes"},
    "gemm": {"speed", "products", "errors"},
    "exchange": {"times", "rates"},
    "asynchronous": {
        *("curves-784-128-10", "curves-lenet5", "throughput", "slow", "arrival", "staleness", "bounds"),
        *("price", "rates-plain"),
    },
}
"""Those that each study draws without a GPU, at least."""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    standing_still.allow(600)
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "--size", "small", "--out", str(folder), *RUN],
        cwd=ROOT,
        env=environment({"CUDA_VISIBLE_DEVICES": ""}),
        capture_output=True,
        text=True,
        timeout=600,
    )
    standing_still.allow()
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long
@pytest.mark.parametrize("name", RUN)
def test_the_numbers_of_a_study_are_there(report, name):
    with (report / name / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [*study_of(name).COLUMNS, FAILED]
    assert [row[FAILED] for row in rows if row[FAILED]] == []


@pytest.mark.parametrize("name", RUN)
def test_the_page_has_every_figure_of_a_study(report, name):
    text = (report / "index.html").read_text()
    start = text.index(f'<section id="{name}">')
    section = text[start : text.index("</section>", start)]
    drawn = {path.stem for path in (report / name).glob("*.png")}
    assert drawn >= FIGURES[name]
    assert section.count("data:image/png;base64,") == len(drawn)
    assert len(re.findall("<figcaption><b>Figure [^<]+</b> .{40,}", section)) == len(drawn)
    assert "<li>" in section
    for finding in re.findall("<li>(.*)</li>", section):
        assert finding.startswith("Missing: ") or re.search(r"[Ff]igure |\(table\)", finding)
    for named in re.findall(f'href="#{name}-([^"]+)"', section):
        assert named in drawn
    assert (report / name / "section.md").read_text().count("![") == len(drawn)


@pytest.mark.long
@pytest.mark.parametrize("word", ["NCCL", "cuBLAS"])
def test_what_needs_a_gpu_is_named(report, word):
    assert re.search(f"Missing: [^<]*{word}", (report / "index.html").read_text())
