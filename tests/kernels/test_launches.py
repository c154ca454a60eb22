"""Launch shapes and the checks of shapes; needs no GPU."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from nn.gemm_versions import PLAIN_GEMM_VERSIONS
from nn.launches import (
    Descent,
    Kernels,
    LossRing,
    Place,
    Stretch,
    column_sums_shape,
    gemm_shape,
    head_shape,
)
from nn.narrow_head import narrow_head_fits, narrow_head_partials, narrow_head_shape
from nn.required import required
from nn.shapes import line_shape, plane_shape
from pyrt.kernels import KERNELS, all_constants
from pyrt.memory import DeviceArray

NO_KERNELS = SimpleNamespace(driver=SimpleNamespace(architecture="sm_80"))
"""In the place of a library from which nothing is loaded."""

SIZES = [0, 1, 2, 7, 8, 9, 31, 32, 33, 64, 65, 1000, 60000]


def array(*shape, ld=None, dtype=np.float32):
    """An array that is never read."""
    return DeviceArray(None, 0, shape, np.dtype(dtype), ld or shape[-1])


def set_of(images, columns):
    """Images and labels."""
    return array(images, columns), array(images)


def place(size):
    """Of a batch."""
    return Place(array(size, dtype=np.int32), 1, 9)


@pytest.mark.parametrize("version", PLAIN_GEMM_VERSIONS)
def test_gemm_shape_covers_the_result(version):
    tile = {"naive": (8, 32), "shared": (32, 32), "register": (16, 64), "tiled": (64, 64)}[version]
    threads = {"naive": 256, "shared": 1024, "register": 64, "tiled": 128}[version]
    for M, N in itertools.product(SIZES, SIZES):
        grid, block = gemm_shape(version, M, N)
        for blocks, size, side in zip(grid, (M, N), tile, strict=True):
            assert blocks >= 1 and (blocks - 1) * side < max(size, 1) and blocks * side >= size
        assert np.prod(block) == threads


def test_other_shapes_are_valid_launches():
    for rows, columns in itertools.product([*SIZES, 2**31 - 1], repeat=2):
        for grid, block in (plane_shape(rows, columns), line_shape(rows), head_shape(rows)):
            assert all(blocks >= 1 for blocks in grid) and np.prod(block) <= 1024
            assert grid[0] < 2**31 and (len(grid) == 1 or grid[1] < 2**16)


@pytest.mark.parametrize(
    "columns, width, blocks", [(0, 1, 1), (1, 1, 1), (2, 2, 1), (3, 4, 1), (8, 8, 1), (9, 8, 2), (512, 8, 64)]
)
def test_column_sums_shape(columns, width, blocks):
    assert column_sums_shape(columns) == ((blocks,), (width, 512 // width))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_narrow_head_shapes(dtype):
    """All rows are taken, in chunks as equal as they can be; what fits for one batch fits for all."""
    for rows, hidden, classes, most in itertools.product(
        [1, 2, 7, 131, 3000, 60000], [1, 5, 130, 512, 1000], [1, 2, 10, 11, 32], [1, 2, 132]
    ):
        blocks, width = narrow_head_partials(rows, hidden, classes, dtype, most)
        assert 1 <= blocks <= min(rows, most) and width >= (classes + 1) * (hidden + 1) and width % 32 == 0
        shape = narrow_head_shape(rows, hidden, classes, dtype, blocks)
        share = -(-rows // blocks)
        assert 1 <= shape.rows <= min(share, shape.threads) and shape.threads % 32 == 0
        assert share % shape.rows == 0 or shape.rows - share % shape.rows <= share // shape.rows
        assert classes <= shape.classes and 0 <= shape.halvings <= 2
        if narrow_head_fits(hidden, classes, dtype, 48 << 10):
            assert shape.shared <= 48 << 10


def test_narrow_head_at_the_reference_work():
    """784-512-10 on 132 multiprocessors: 23 rows or 6 in a block, two or four warps a group of 3 rows."""
    for rows, chunk, halvings in ((3000, 23, 1), (750, 6, 2)):
        assert narrow_head_partials(rows, 512, 10, np.float32, 132) == (132, 5664)
        shape = narrow_head_shape(rows, 512, 10, np.float32, 132)
        assert (shape.classes, shape.threads, shape.rows, shape.halvings) == (10, 512, chunk, halvings)


def test_narrow_head_refuses():
    small, large = 48 << 10, 227 << 10
    assert narrow_head_fits(512, 10, np.float32, small) and narrow_head_fits(1000, 10, np.float32, small)
    assert not narrow_head_fits(4000, 10, np.float32, small) and narrow_head_fits(4000, 10, np.float32, large)
    assert not narrow_head_fits(8, 33, np.float32, large)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "relu"])
@pytest.mark.parametrize("pixel", [np.uint8, np.float32])
@pytest.mark.parametrize(
    "gemm, dtype",
    [("tiled", np.float32), ("tiled", np.float64), ("mma", np.float32), ("wgmma", np.float32)],
)
def test_required_are_declared(dtype, activation, pixel, gemm):
    kernels = Kernels(NO_KERNELS, dtype, gemm)
    for file, constants in required(kernels, activation, "sigmoid", 12, pixel, exchange="device"):
        assert_declared(file, constants)


@pytest.mark.parametrize("group", [2, 3, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kernels_that_move_matrices_are_declared(dtype, group):
    kernels = Kernels(NO_KERNELS, dtype, "tiled")
    arguments = kernels, "tanh", "softmax", 12, np.uint8
    plain = required(*arguments)
    for way, own in (("host", ["packing"]), ("device", ["packing", "exchange"]), ("peer", ["moves"])):
        more = [each for each in required(*arguments, moves=way, group=group) if each not in plain]
        assert [file for file, _ in more] == own
        for each in more:
            assert_declared(*each)


def assert_declared(file, constants):
    declared = all_constants((KERNELS / f"{file}.cu").read_text())
    assert {name: str(value) for name, value in constants.items()} in declared


def test_unknown_gemm():
    with pytest.raises(ValueError, match="wgmma, not 'fast'"):
        Kernels(NO_KERNELS, np.float32, "fast")


def narrow_head(kernels, classes=3, **changed):
    """A launch for 2 x 5 activations, but for what is changed."""
    arrays = {
        "A": array(2, 5),
        "W": array(classes, 5),
        "b": array(classes),
        "labels": array(2),
        "partials": array(1, 64 if classes == 3 else 320),
        "dW": array(classes, 5),
        "db": array(classes),
        "db_hidden": array(5),
        "loss": array(1),
        "dZ": array(2, 5),
    }
    return kernels.narrow_head.bind("softmax", "tanh", **{**arrays, **changed}, scale=1.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda k: k.gemm(array(2, 3), array(2, 4), array(5, 3)),
        lambda k: k.gemm(array(2, 3), array(2, 4), array(4, 3), transpose_a=True),
        lambda k: k.gemm(array(3, 2), array(2, 4), array(4, 3)),
        lambda k: k.gemm(array(2, 3), array(2, 4), array(4, 3), C=array(3, 2)),
        lambda k: k.bias_activation(array(2, 3), array(2), array(2, 3), "tanh"),
        lambda k: k.bias_activation(array(2, 3), array(3), array(3, 2), "tanh"),
        lambda k: k.bias_activation(array(2, 3, ld=4), array(3), array(2, 3), "tanh"),
        lambda k: k.activation_backward(array(2, 3), array(2, 3), array(2, 4), "tanh"),
        lambda k: k.head("softmax", array(2, 3), array(2), array(2), array(2, 3), array(2), 1.0),
        lambda k: k.head("softmax", array(2, 3), array(3), array(3), array(2, 3), array(2), 1.0),
        lambda k: narrow_head(k, W=array(3, 4)),
        lambda k: narrow_head(k, A=array(2, 5, ld=8)),
        lambda k: narrow_head(k, labels=array(3)),
        lambda k: narrow_head(k, dW=array(5, 3)),
        lambda k: narrow_head(k, db_hidden=array(3)),
        lambda k: narrow_head(k, partials=array(1, 32)),
        lambda k: narrow_head(k, dZ=None),
        lambda k: narrow_head(k, dZ=array(2, 6)),
        lambda k: narrow_head(k, dZ=None, terms=array(2, 8)),
        lambda k: narrow_head(k, dZ=None, terms=array(3, 64)),
        lambda k: narrow_head(k, dZ=None, terms=array(8, 64)),
        lambda k: narrow_head(k, terms=array(6, 64)),
        lambda k: narrow_head(k, classes=33),
        lambda k: k.column_sums(array(2, 3), array(2)),
        lambda k: k.column_sums(array(6), array(6)),
        lambda k: k.sgd(Descent(array(6), array(5), None, [Stretch(0, 5, 0)], 1.0, 0.0, 0.0)),
        lambda k: k.sgd(Descent(array(6), array(6), array(5), [Stretch(0, 6, 0)], 1.0, 0.0, 0.0)),
        lambda k: k.sgd(
            Descent(array(6), array(6), None, [Stretch(0, 3, 0), Stretch(4, 3, 0)], 1.0, 0.0, 0.0)
        ),
        lambda k: k.scale_pixels(array(2, 3), array(3, 3), 255.0),
        lambda k: k.scale_pixels(array(4, 4), array(3, 3), 255.0),
        lambda k: k.gather_batch(*set_of(4, 2), array(9), place(2), array(3, 3), array(3), 255.0),
        lambda k: k.gather_batch(*set_of(4, 3), array(9), place(2), array(3, 3), array(4), 255.0),
        lambda k: k.gather_batch(*set_of(4, 3), array(9), place(1), array(3, 3), array(3), 255.0),
        lambda k: k.gather_batch(array(4, 3), array(5), array(9), place(2), array(3, 3), array(3), 255.0),
        lambda k: k.keep_loss(LossRing(array(2), array(9), array(1))),
        lambda k: k.keep_loss(LossRing(array(1), array(9), array(2))),
    ],
)
def test_shapes_that_do_not_fit(call):
    with pytest.raises(ValueError, match=r"\(\d+,"):
        call(Kernels(NO_KERNELS, np.float32))
