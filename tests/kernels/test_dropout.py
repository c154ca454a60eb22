"""nn/dropout.cu against NumPy: the same elements are dropped, for any part of a batch; the same bits."""

import numpy as np
import pytest

from nn.launch.dropout import CountStep, Draw, Drop, DropGradient
from nn.launch.shapes import line_shape
from nn.model.dropout import Dropout, Part, halves, kept

PARTS = {
    "one": Part.whole(1, 1),
    "no multiple of four": Part.whole(7, 13),
    "rows": Part(5, 6, 6, 6 * 3),
    "columns": Part(9, 5, 17, 2 * 17 + 7),
    "a column": Part(33, 1, 3, 2),
    "many": Part.whole(75, 512),
    "beyond 32 bits of blocks": Part(3, 5, 9, 2**34 - 7),
}


def drawn(device, part, step=3, seed=11, place=2):
    return Draw(seed, device.array(np.array([step], np.int32)), place, part)


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
@pytest.mark.parametrize("rate", [0, 0.3, 0.999])
def test_what_numpy_drops_is_dropped_and_the_rest_scaled(kernels, device, rng, dtype, part, rate):
    layer, shape, draw = Dropout(rate), (part.rows, part.columns), drawn(device, part, seed=2**40 + 5)
    A = rng.normal(0, 3, shape).astype(dtype)
    B, where = device.poisoned(shape, dtype), device.array(np.full(shape, 77, np.uint8))
    work = Drop(device.array(A), B, where, layer, draw)
    device.run(work.on_device(kernels))
    expected = kept(layer, draw.seed, 3, draw.place, part)
    np.testing.assert_array_equal(where.to_host(), expected)
    np.testing.assert_array_equal(B.to_host(), np.where(expected, A * dtype.type(layer.scale), dtype.type(0)))
    assert B.to_host().dtype == dtype


@pytest.mark.sanitizer
def test_small_grids(library, device, rng, real, dtype):
    part, layer = PARTS["columns"], Dropout(0.5)
    A, shape = rng.normal(0, 1, (part.rows, part.columns)).astype(dtype), (part.rows, part.columns)
    lines, length = part.lines
    draw, B, where = (
        drawn(device, part),
        device.poisoned(shape, dtype),
        device.array(np.zeros(shape, np.uint8)),
    )
    forward = library.kernel("nn/dropout", "dropout", REAL=real)
    backward = library.kernel("nn/dropout", "dropout_backward", REAL=real)
    dA = device.poisoned(shape, dtype)
    device.run(
        library.kernel("nn/dropout", "count_step", REAL=real).bind((1,), (1,), draw.step),
        forward.bind(
            *((2,), (32,), lines, length, part.blocks, part.first, part.units, *halves(draw.seed)),
            *(draw.place, draw.step, layer.threshold, layer.scale, device.array(A), B, where),
        ),
        backward.bind((2,), (32,), A.size, layer.scale, where, B, dA),
    )
    expected = np.where(kept(layer, draw.seed, 4, draw.place, part), A * dtype.type(2), 0)
    np.testing.assert_array_equal(B.to_host(), expected)
    np.testing.assert_array_equal(dA.to_host(), 2 * expected)


def test_what_is_dropped_is_zero_whatever_it_was(kernels, device, dtype):
    part, layer = Part.whole(40, 5), Dropout(0.5)
    A = np.tile(np.array([np.nan, np.inf, -np.inf, 1, -0.0], dtype), (40, 1))
    B, where = device.poisoned(A.shape, dtype), device.array(np.zeros(A.shape, np.uint8))
    draw, dA = drawn(device, part), device.poisoned(A.shape, dtype)
    device.run(Drop(device.array(A), B, where, layer, draw).on_device(kernels))
    device.run(DropGradient(dA, device.array(A), where, layer).on_device(kernels))
    is_kept = where.to_host().astype(bool)
    for found in (B.to_host(), dA.to_host()):
        assert (found[~is_kept] == 0).all()
        np.testing.assert_array_equal(found[is_kept], (2 * A)[is_kept])


@pytest.mark.parametrize("shape", [(1, 1), (7, 13), (133, 70)])
def test_the_gradient_of_what_is_kept(kernels, device, rng, dtype, shape):
    dB, where = rng.normal(0, 3, shape).astype(dtype), rng.integers(0, 2, shape).astype(np.uint8)
    dA, layer = device.poisoned(shape, dtype), Dropout(0.3)
    device.run(DropGradient(dA, device.array(dB), device.array(where), layer).on_device(kernels))
    expected = np.where(where, dB * dtype.type(layer.scale), dtype.type(0))
    np.testing.assert_array_equal(dA.to_host(), expected)


def test_a_step_counts(kernels, device):
    step = device.array(np.array([41], np.int32))
    launch = CountStep(step).on_device(kernels)
    device.run(launch, launch)
    assert step.to_host()[0] == 43


def test_wrong_shapes_are_refused(kernels, device, dtype):
    part, layer = Part.whole(4, 5), Dropout(0.5)
    A, other = device.poisoned((4, 5), dtype), device.poisoned((4, 6), dtype)
    where = device.array(np.zeros((4, 5), np.uint8))
    with pytest.raises(ValueError, match="dropout: B of shape"):
        Drop(A, other, where, layer, drawn(device, part)).on_device(kernels)
    with pytest.raises(ValueError, match="dropout: A of shape"):
        Drop(A, A, where, layer, drawn(device, Part.whole(5, 4))).on_device(kernels)
    with pytest.raises(ValueError, match="dropout_backward: dB of shape"):
        DropGradient(A, other, where, layer).on_device(kernels)


def test_a_grid_is_as_large_as_its_blocks():
    """A thread each, for lines that begin anywhere in their first block."""
    assert line_shape(Part(3, 5, 9).lines[0] * Part(3, 5, 9).blocks)[0] == (1,)
    assert [Part(1, n, n + 1).blocks for n in (1, 2, 3, 5, 6)] == [1, 2, 2, 2, 3]
