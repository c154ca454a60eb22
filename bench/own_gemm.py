"""A matrix product of one's own, for `bench/gemm.py --file`: how its kernel is found and launched.

The kernel computes D = A B, row-major float32 matrices without gaps, A (M, K), B (K, N)::

    extern "C" __global__ void name(int M, int N, int K, const float *A, const float *B, float *D)

Each block makes a tile of D: blockIdx.x counts tiles along a row of D, blockIdx.y down its rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyrt.arguments import Parser
from pyrt.clock import StreamClock
from pyrt.errors import UserError
from pyrt.kernels import KERNELS, KernelLibrary, Launch, blocks

if TYPE_CHECKING:
    from bench.gemm import Operands

TAKES = "(int M, int N, int K, const float *A, const float *B, float *D)"


@dataclass(frozen=True)
class OwnKernel:
    """A kernel in a file, and how it is launched."""

    file: Path
    name: str
    tile: tuple[int, ...]
    """Rows and columns of D that a block makes."""
    block: tuple[int, ...]
    shared: int
    """Bytes of dynamic shared memory."""

    def bind(self, operands: Operands, clock: StreamClock) -> Launch:
        """Bind it to a product, and launch it once. Raises UserError where that cannot be."""
        if self.file.suffix != ".cu" or not self.file.is_file():
            raise UserError(f"{self.file}: give a file of CUDA that is there, NAME.cu")
        library = KernelLibrary(clock.driver, [self.file.parent, KERNELS])
        product, (rows, columns) = operands.product, self.tile
        try:
            launch = library.kernel(self.file.stem, self.name).bind(
                (blocks(product.N, columns), blocks(product.M, rows)),
                self.block,
                *(product.M, product.N, product.K, operands.A, operands.B, operands.D),
                shared=self.shared,
            )
        except ValueError:
            raise UserError(f"{self.file}: it declares constants: give them values by #define") from None
        except TypeError as error:
            raise UserError(f"{self.file}: {error}: a product takes {TAKES}") from None
        try:
            clock.seconds(launch)
        except RuntimeError as error:
            raise UserError(f"{self.file}: {error}") from None
        return launch


def add_options(parser: Parser) -> None:
    """Add what says which kernel, and how it is launched."""
    parser.add_argument("--file", type=Path, help="a kernel of your own: NAME.cu (see bench/own_gemm.py)")
    parser.add_argument("--kernel", help="its name (default: that of the file)")
    parser.add_argument("--shape", type=_Numbers(3), metavar="M,N,K", help="the product's sizes")
    parser.add_argument(
        "--tile", type=_Numbers(2), metavar="ROWS,COLUMNS", default=(16, 16), help="what a block makes of D"
    )
    parser.add_argument("--block", type=_Numbers(1, 2, 3), metavar="X,Y,Z", default=(16, 16), help="threads")
    parser.add_argument("--shared", type=int, metavar="BYTES", default=0, help="dynamic shared memory")


def read_options(parser: Parser, options: argparse.Namespace) -> OwnKernel | None:
    """Return the kernel that the options name; None where they name none."""
    if options.file is None:
        if options.kernel or options.shape:
            parser.error("--kernel and --shape are of a kernel of your own: give its --file, too")
        return None
    if options.shape is None:
        parser.error("give --shape M,N,K")
    return OwnKernel(
        options.file, options.kernel or options.file.stem, options.tile, options.block, options.shared
    )


class _Numbers:
    """Reads whole numbers with commas between them, as many as one of these counts."""

    def __init__(self, *counts: int) -> None:
        self._counts = counts

    def __call__(self, text: str) -> Sequence[int]:
        words = text.split(",")
        if len(words) in self._counts and all(word.isdecimal() and int(word) > 0 for word in words):
            return tuple(map(int, words))
        wanted = " or ".join(map(str, self._counts))
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted} whole numbers, 1 or more, and commas")
