"""gemm/batch.cu: many products of one shape at once, in every cut; neighbours do not run into one another."""

import itertools

import numpy as np
import pytest

from nn.launch.gemm.batch import Batch, bind_batch, choose_batch_tiling
from nn.launch.gemm.components import Components, Split
from nn.launch.gemm.versions import TENSOR_ARCHITECTURES
from nn.launch.gemm.wgmma import candidates, common_tiles
from nn.launch.kernels import Kernels
from tests import few

TILES = [(64, 64), (128, 64), (192, 64), (64, 128), (128, 128), (128, 256)]
ROUNDINGS = {"float32": 2**-23, "tf32": 2**-15, "bf16": 2**-7}
"""What is left of an operand's number behind its components, at most."""


@pytest.fixture
def kernels_of(library):
    """Makes kernels of an accuracy."""
    if library.driver.architecture not in TENSOR_ARCHITECTURES:
        pytest.skip("needs the tensor cores of sm_90")
    return lambda math: Kernels(library, np.float32, "wgmma", math)


def batch_of(device, kernels, host):
    """Matrices (count, rows, columns) as components."""
    flat = host.reshape(-1, host.shape[2])
    matrix = Components.empty(device.driver, kernels.components, *flat.shape)
    device.run(Split(((device.array(flat), matrix),)).on_device(kernels))
    return Batch(len(host), matrix)


CUTS = few(
    [(TILES[0], "float32"), (TILES[5], "bf16")],
    of=[(tile, math) for tile in TILES for math in ROUNDINGS if math == "bf16" or tile != (128, 256)],
)


CASES = list(itertools.product([False, True], [1, 3], CUTS))


@pytest.mark.parametrize(
    ("transposed", "parts", "cut"), few([(False, 3, CUTS[-1]), (True, 1, CUTS[0])], of=CASES), ids=str
)
def test_every_cut_same_bits_twice(kernels_of, device, rng, cut, parts, transposed):
    """Of ragged matrices: a tile sees the next one, or what is behind the last."""
    tile, math = cut
    kernels = kernels_of(math)
    count, M, N, K = 3, 70, 67, 203
    a = rng.uniform(-1, 1, (count, *((K, M) if transposed else (M, K)))).astype("f4")
    b = rng.uniform(-1, 1, (count, *((K, N) if transposed else (N, K)))).astype("f4")
    A, B = (batch_of(device, kernels, host) for host in (a, b))
    limits = kernels.components, kernels.components, device.driver.shared_memory
    tiling = next(
        cut
        for cut in candidates(K, *limits, tiles=common_tiles(*limits[:2]))
        if (cut.rows, cut.columns, cut.parts) == (*tile, parts)
    )
    before = rng.uniform(-1, 1, (count * M, N)).astype("f4")
    results = [device.array(before) for _ in range(2)]
    for D in results:
        device.run(bind_batch(kernels, D, A, B, transposed=transposed, beta=0.5, tiling=tiling))
    a, b = (x.astype("f8") if transposed else x.astype("f8").transpose(0, 2, 1) for x in (a, b))
    expected = np.einsum("ikm,ikn->imn", a, b).reshape(count * M, N) + 0.5 * before
    found, again = (D.to_host() for D in results)
    assert found.tobytes() == again.tobytes()
    bound = 2 * ROUNDINGS[math] * (4 + np.sqrt(K))
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound)


@pytest.mark.sanitizer
def test_fewer_rows_in_the_same_memory(kernels_of, device, rng):
    """What is left there of more rows is not added up."""
    kernels = kernels_of("float32")
    A = batch_of(device, kernels, rng.uniform(-1, 1, (2, 90, 40)).astype("f4")).of_rows(50)
    x = rng.uniform(-1, 1, (100, 40)).astype("f4")
    device.run(Split(((device.array(x), A.matrix),)).on_device(kernels))
    D = device.poisoned((80, 40), "f4")
    device.run(bind_batch(kernels, D, A, A, transposed=True))
    x = x.astype("f8").reshape(2, 50, 40)
    expected = np.einsum("ikm,ikn->imn", x, x).reshape(80, 40)
    np.testing.assert_allclose(D.to_host(), expected, rtol=0, atol=2 * ROUNDINGS["float32"] * (4 + 50))


def test_operands_that_do_not_fit_are_an_error(kernels_of, device, rng):
    kernels = kernels_of("float32")
    A, B = (batch_of(device, kernels, np.ones((2, rows, 40), "f4")) for rows in (33, 34))
    D = device.poisoned((2 * 40, 40), "f4")
    with pytest.raises(ValueError, match=r"2 products of 40 x 40 x 33 and operands of \(40, 40, 34\)"):
        bind_batch(kernels, D, A, B, transposed=True)


def test_many_small_products_are_cut_into_larger_tiles_than_one():
    """36 of 2509 x 256 x 256 fill the device by themselves; one of 256 x 256 x 2509 takes parts."""
    limits = 3, 132, 232448
    assert choose_batch_tiling(36, 2509, 256, 256, *limits).parts == 1
    assert choose_batch_tiling(1, 256, 256, 2509, *limits).parts > 1
