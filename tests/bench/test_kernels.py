"""bench/kernels.py: a trace is cut into steps, no time counts twice, floors are of the step's own list."""

import dataclasses
import stat
import sys

import pytest

from bench import kernels, step
from bench.kernels import Part, Peaks, Row, Span
from bench.step import Case
from bench.timing import Times
from nn.launch.gemm.versions import TENSOR_ARCHITECTURES
from pyrt.errors import UserError
from pyrt.job import join

HEAD = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),"
    "Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name"
)


def line(start, duration, name, launch=151):
    blocks = f"{start},{duration},{launch},375,8,1,384,1,1,168,0.001,0.198,"
    return f'{blocks},,,,NVIDIA H100 80GB HBM3 (0),1,,13,"{name}"'


TRACE = "\n".join(
    [
        "Generating SQLite file step.sqlite from step.nsys-rep",
        HEAD,
        line(900, 50, "split_into_components"),
        line(1000, 5000, "gather"),
        line(5500, 9500, "product"),  # began while gather ran
        line(7000, 300, "[CUDA memcpy Device-to-Host]"),
        line(14000, 3000, "add"),
        line(20000, 1500, "next(int, int *)"),
        line(30000, 6000, "gather"),
        line(36000, 8000, "product"),
        line(45000, 3000, "add"),
        line(48000, 1000, "next"),
        line(50000, 4000, "gather"),  # an evaluation's
        line(54000, 4000, "add"),
    ]
)
NAMES = ["gather", "product", "add", "next"]
PARTS = [
    Part("pixels", ("gather",), 67_000_000, 0, 3_350_000),
    Part("GEMM", ("product", "add"), 1, 990_000_000, 6_700_000),
    Part("next batch", ("next",), 0, 0, 0),
]
PEAKS = Peaks(67, 990, 3.35)


def test_a_trace_holds_kernels_without_copies():
    spans = kernels.parse_trace(TRACE)
    assert spans[:3] == [
        Span("split_into_components", 900, 950, 151),
        *(Span("gather", 1000, 6000, 151), Span("product", 5500, 15000, 151)),
    ]
    assert [span.kernel for span in spans[1:9]] == NAMES * 2
    assert kernels.parse_trace("SKIPPED: step.sqlite does not contain CUDA trace data.") == []


def test_what_overlaps_counts_once():
    spans = [Span("a", 0, 5000), Span("b", 2000, 9000), Span("c", 3000, 8000), Span("d", 20000, 21000)]
    assert kernels.own_times(spans) == pytest.approx([5, 4, 0, 1])


def test_steps_are_whole_and_nothing_else_is_one():
    found = kernels.steps(kernels.parse_trace(TRACE), NAMES)
    assert found == [pytest.approx([5, 9, 2, 1.5]), pytest.approx([6, 8, 3, 1])]
    assert kernels.steps(kernels.parse_trace(TRACE), ["product", "gather"]) == []


def test_a_step_is_known_by_its_launches_not_by_their_starts():
    """As where the second runs on a stream of its own, behind the end of the first."""
    spans = [Span("first", 0, 5000, 7), Span("third", 4000, 9000, 9), Span("second", 5000, 6000, 8)]
    assert kernels.steps(spans, ["first", "second", "third"]) == [pytest.approx([5, 0, 4])]


def test_rows_are_medians_with_an_operations_floors_beside_its_first_kernel():
    rows = kernels.rows(PARTS, [[5, 9, 2, 1.5], [6, 8, 3, 1], [7, 8, 9, 1]], PEAKS)
    assert rows == [
        Row("pixels", "gather", 1, 6, pytest.approx(1), pytest.approx(1)),
        Row("GEMM", "product", 1, 8, pytest.approx(1), pytest.approx(2)),
        Row("", "add", 1, 3, None, None),
        Row("next batch", "next", 1, 1, 0, 0),
    ]


def test_a_kernel_that_an_operation_launches_twice_is_one_row():
    twice = [Part("sums", ("sum", "sum", "add"), 0, 0, 0), Part("again", ("sum",), 0, 0, 0)]
    rows = kernels.rows(twice, [[1, 2, 4, 8]], None)
    assert rows == [
        Row("sums", "sum", 2, 3, None, None),
        *(Row("", "add", 1, 4, None, None), Row("again", "sum", 1, 8, None, None)),
    ]


def test_table_adds_up():
    rows = kernels.rows(PARTS, [[5, 9, 2, 1.5]], PEAKS)
    lines = [" ".join(line.split()) for line in kernels.table(rows).splitlines()[2:]]
    assert lines == [
        "pixels gather 1 5.0 1.0 1.0",
        *("GEMM product 1 9.0 1.0 2.0", "add 1 2.0 - -", "next batch next 1 1.5 0.0 0.0"),
        "sum 4 17.5 2.0 3.0",
    ]
    assert kernels.gaps(rows, Times(20.0, 19.0, 25.0)) == (
        "a step in graphs takes 20.0 us (19.0 to 25.0); launch gaps: 1 - sum / step = 12.5%, to be below 10%"
    )


def test_an_unknown_device_has_no_floors():
    rows = kernels.rows(PARTS, [[5, 9, 2, 1.5]], kernels.PEAKS.get("NVIDIA GeForce RTX 9090"))
    assert kernels.table(rows).splitlines()[-1].split() == ["sum", "4", "17.5", "-", "-"]


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    """Puts a script in the place of nsys; its words come back as the lines of a file."""

    def place(body):
        program = tmp_path / "nsys"
        program.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/said\n{body}\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        return tmp_path / "said"

    return place


def test_train_is_traced_launch_by_launch(nsys, tmp_path):
    (tmp_path / "trace.csv").write_text(TRACE)
    said = nsys(f'test "$1" = profile || cat {tmp_path}/trace.csv')
    text = kernels.breakdown(750, "NVIDIA H100 80GB HBM3", PARTS, Times(20.0, 19.0, 25.0))
    assert (
        "batch 750" in text and "median of 2 steps" in text and "launch gaps: 1 - sum / step = 11.3%" in text
    )
    profile, stats = said.read_text().splitlines()
    assert " --trace=cuda " in profile and f"{sys.executable} {kernels.TRAIN} --batch 750 " in profile
    assert profile.endswith("--no-graph")
    assert stats.endswith("/step.nsys-rep") and " -r cuda_gpu_trace --format csv " in stats


def test_what_nsys_cannot_do_is_one_line(nsys, monkeypatch):
    nsys("echo train.py: error: no such GPU >&2; exit 2")
    with pytest.raises(UserError, match=r"^nsys: no such GPU$"):
        kernels.trace(3000)
    nsys("exit 0")
    with pytest.raises(UserError, match=r"^nsys: recorded no step of gather, product, add, next$"):
        kernels.breakdown(3000, "a GPU", PARTS, Times(20.0, 19.0, 25.0))
    nsys("exec sleep 60")
    monkeypatch.setattr(kernels, "TIMEOUT", 0.1)
    with pytest.raises(UserError, match=r"^nsys: not done after 0.1 s$"):
        kernels.trace(3000)


def test_where_nsys_is_missing_all_is_left_out(monkeypatch, capsys):
    monkeypatch.setattr(kernels, "require_gpu", lambda: None)
    monkeypatch.setattr(sys, "argv", ["kernels.py"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert kernels.main(join()) == 0
    assert capsys.readouterr().out == "kernels: left out: nsys is not installed\n"


@pytest.fixture
def parts(driver, monkeypatch):
    """The parts of a step by a version, on the emulated device in the place of the H100."""
    monkeypatch.setattr(step, "DEVICE", driver.name)
    options = dataclasses.replace(step.our_options(Case(40), 1, 1), placement="resident")
    return lambda gemm: kernels.parts_of(dataclasses.replace(options, gemm=gemm), join())[1]


@pytest.mark.kernels
def test_parts_are_those_of_a_training_step(parts):
    """The plain step has an operation for each kernel."""
    names = [name for part in parts("tiled") for name in part.kernels]
    assert names == [
        *("gather_batch", "gemm_tiled", "bias_activation", "gemm_tiled", "softmax_head", "column_sums"),
        *("column_sums", "gemm_tiled", "gemm_tiled", "activation_backward", "column_sums", "gemm_tiled"),
        "update",
    ]


@pytest.mark.long
@pytest.mark.kernels
def test_a_fused_step_has_the_same_operations_in_fewer_parts(driver, parts):
    if driver.architecture not in TENSOR_ARCHITECTURES:
        pytest.skip("needs the tensor cores of sm_90")
    fused = parts("wgmma")
    assert len(fused) == 6
    assert sum(part.flops for part in fused[:-1]) == sum(part.flops for part in parts("tiled")[:-1])
    assert [part.tensor_flops // (2 * 40 * 784 * 512) for part in fused] == [0, 3, 0, 0, 3, 0]
