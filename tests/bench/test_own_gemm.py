"""bench/gemm.py --file: a product of the user's own is checked, and mistakes are one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import gemm
from pyrt.errors import UserError

RIGHT = """
extern "C" __global__ void mine(int M, int N, int K, const float *A, const float *B, float *D)
{
    const int row = blockIdx.y * 4 + threadIdx.y, column = blockIdx.x * 8 + threadIdx.x;
    if (row >= M || column >= N)
        return;
    float sum = 0;
    for (int k = 0; k < K; k++)
        sum += A[row * K + k] * B[k * N + column];
    D[row * N + column] = sum;
}
"""
LAUNCH = ("--tile", "4,8", "--block", "8,4")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.cu"
    path.write_text(RIGHT)
    return path


def compare(file: Path, *words: str) -> int:
    return gemm.main(["--file", str(file), "--shape", "37,19,11", *LAUNCH, *words])


@pytest.mark.kernels
def test_a_right_one_is_timed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(file) == 0
    printed = capsys.readouterr().out
    assert "mine, 37 x 19 x 11" in printed and "WRONG" not in printed
    assert "times mean nothing" in printed or "on cuda" in printed


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("k < K", "k < K - 1"), ("row >= M ||", "row >= M - 1 ||"), ("row * N + column]", "0]")],
)
def test_a_wrong_one_is_not(file: Path, capsys: pytest.CaptureFixture[str], right: str, wrong: str) -> None:
    file.write_text(RIGHT.replace(right, wrong))
    assert compare(file) == 1
    printed = capsys.readouterr()
    assert printed.err == "gemm.py: error: wrong result: mine of mine, 37 x 19 x 11\n"
    assert printed.out.count("WRONG") == 1


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("source", "words", "why"),
    [
        (RIGHT, ("--kernel", "yours"), "has no kernel yours; it has mine"),
        (
            RIGHT.replace("int M,", "int M, int,"),
            (),
            r"mine takes 7 arguments, not 6: a product takes \(int M",
        ),
        (RIGHT.replace("float *D", "double *D"), (), "array of float64, not float32: a product takes"),
        (f"// constants: TILE=8|16\n{RIGHT}", (), "it declares constants: give them values by #define"),
        (RIGHT, ("--block", "64,64"), "mine.cu: "),
        (RIGHT.replace("sum;", "total;"), (), "(?s)mine.cu: .*total"),
    ],
)
def test_mistakes_are_one_line(file: Path, source: str, words: tuple[str, ...], why: str) -> None:
    file.write_text(source)
    with pytest.raises(UserError, match=why):
        compare(file, *words)


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["none.cu", "mine.c", "."])
def test_a_file_that_is_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.c").write_text(RIGHT)
    with pytest.raises(UserError, match=r"give a file of CUDA that is there, NAME\.cu"):
        compare(tmp_path / name)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--file", "mine.cu"], "give --shape M,N,K"),
        (["--shape", "1,2,3"], "give its --file, too"),
        (["--kernel", "mine"], "give its --file, too"),
        (["--file", "mine.cu", "--shape", "1,2"], "'1,2' is not 3 whole numbers, 1 or more, and commas"),
        (["--file", "mine.cu", "--shape", "1,2,0"], "'1,2,0' is not 3 whole numbers"),
        (["--file", "mine.cu", "--shape", "1,2,3", "--block", "1,2,3,4"], "is not 1 or 2 or 3 whole numbers"),
    ],
)
def test_options_that_do_not_go_together(words: list[str], why: str) -> None:
    with pytest.raises(UserError, match=why):
        gemm.main(words)
