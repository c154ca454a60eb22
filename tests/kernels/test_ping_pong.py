"""gemm/wgmma_ping_pong.cu, gemm/layer_ping_pong.cu: warpgroups take tiles of D in turns; against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nn.launch.gemm.wgmma import Tiling
from pyrt.kernels import KERNELS, KernelLibrary
from tests.kernels.test_layer import BAD, TOLERANCE, Case, of_components, value_of
from tests.kernels.test_wgmma import check_twice, components_of, cores, multiply, to_bfloat16, to_float
from tests.pyrt.sources import folder_of

__all__ = ["cores"]

M, N, K = 300, 140, 150
"""Ragged: 3 x 2 tiles of D, 3 along k."""

TURNS = Tiling(128, 128, 1, 2, ping_pong=True)

SOURCE = r"""
// constants: REAL=float NUMBER=bfloat16 TRANSPOSE_A=0 TRANSPOSE_B=1 COMPONENTS=11 ACTIVATION=identity
#include "gemm/wgmma_tiles.cuh"
#include "gemm/matrix_tiles.cuh"
#include "gemm/ping_pong.cuh"

extern "C" __global__ void places(int down, int across, int *out)
{
    const TileOrder order = {down, across};
    for (int tile = 0; tile < order.count(); tile++) {
        const TilePlace at = order.place(tile);
        out[2 * tile] = at.row, out[2 * tile + 1] = at.column;
    }
}
"""


@pytest.mark.parametrize(("down", "across"), [(1, 1), (3, 40), (20, 30), (17, 2)])
def test_tiles_of_blocks_side_by_side_share_rows_and_columns(library, device, cores, down, across):
    mine = KernelLibrary(library.driver, [folder_of("mine", SOURCE), KERNELS])
    constants = {"REAL": "float", "NUMBER": "bfloat16", "TRANSPOSE_A": 0, "TRANSPOSE_B": 1, "COMPONENTS": 11}
    out = device.array(np.full((down * across, 2), -1, np.int32))
    kernel = mine.kernel("mine", "places", ACTIVATION="identity", **constants)
    device.run(kernel.bind((1,), (1,), down, across, out))
    places = list(map(tuple, out.to_host()))
    assert sorted(places) == [(row, column) for row in range(down) for column in range(across)]
    together = set(places[: min(64, 8 * across)])
    rows, columns = (len({place[axis] for place in together}) for axis in (0, 1))
    assert rows == min(down, 8) and columns == min(across, -(-64 // rows))


@pytest.mark.sanitizer
@pytest.mark.parametrize("blocks", [1, 2, 6])
def test_a_product(device, rng, cores, monkeypatch, blocks):
    monkeypatch.setattr(device.driver, "multiprocessors", blocks)
    a, b = (to_float(to_bfloat16(rng.standard_normal(s).astype("f4"))) for s in ((M, K), (N, K)))
    D, bias = device.poisoned((M, N), "f4"), rng.standard_normal(N).astype("f4")
    A, B = components_of(device, a, 1, cores), components_of(device, b, 1, cores)
    launch = multiply(cores, D, A, B, transpose_b=True, alpha=0.5, bias=device.array(bias), tiling=TURNS)
    assert launch.kernels == ("gemm_ping_pong_128x128",)
    expected = 0.5 * a.astype("f8") @ b.T.astype("f8") + bias
    check_twice(device, launch, D, expected, 1e-5)


@pytest.mark.sanitizer
@pytest.mark.parametrize(("way", "blocks"), [("forward", 2), ("back", 1)])
def test_a_layer(device, rng, cores, monkeypatch, way, blocks):
    """Float32, components and sums of columns, twice: where warps and tiles meet all is as it was."""
    monkeypatch.setattr(device.driver, "multiprocessors", blocks)
    case = Case(device, rng, 1, "sigmoid", TURNS, (M, N, K))
    work, expected = getattr(case, way)()
    sums = None if way == "forward" else device.poisoned(N, "f4")
    work = replace(work, left=case.left(), sums=sums)
    launch, results = work.on_device(cores), []
    assert launch.kernels == ("layer_ping_pong_128x128",)
    for _ in range(2):
        device.run(launch)
        D = work.product.D.to_host()
        np.testing.assert_allclose(D, expected, rtol=0, atol=TOLERANCE[1] * np.abs(expected).max())
        np.testing.assert_array_equal(value_of(work.left.components), of_components(D, 1))
        if sums is not None:
            atol = 1e-6 * np.abs(D).sum(axis=0).max()
            np.testing.assert_allclose(sums.to_host(), D.sum(axis=0, dtype="f8"), rtol=0, atol=atol)
        results.append([D.tobytes(), sums.to_host().tobytes() if sums is not None else b""])
        for array in (work.product.D, work.left.components.array, *([sums] if sums is not None else [])):
            array.set(np.full(array.shape, BAD if array.dtype == np.uint16 else np.nan, array.dtype))
    assert results[0] == results[1]
