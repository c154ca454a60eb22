"""nn/files/coding/shared_weights.py: one compressed array."""

import numpy as np
import pytest

from nn.files.coding.shared_weights import SharedWeights


def pruned(shape, keep, seed=0):
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < keep, rng.normal(size=shape), 0).astype(np.float32)


@pytest.mark.parametrize("keep", [0, 0.1, 1])
@pytest.mark.parametrize("shape", [(7, 13), (2, 3, 3, 5), (1,), (0, 4), ()])
def test_a_dense_array_comes_back_to_the_bit(shape, keep):
    dense = pruned(shape, keep)
    array = SharedWeights.of_dense(dense)
    assert array.dense().shape == shape and array.dense().tobytes() == dense.tobytes()
    assert array.places.tolist() == np.flatnonzero(dense).tolist()
    assert array.is_full == (np.count_nonzero(dense) == dense.size)


def test_extreme_weights_are_kept_and_minus_zero_is_pruned():
    dense = np.array([[-0.0, 1e-45, np.inf], [np.nan, -3.4e38, 0.0]], np.float32)
    array = SharedWeights.of_dense(dense)
    assert array.places.tolist() == [1, 2, 3, 4]
    back = array.dense()
    assert not np.signbit(back[0, 0])
    assert back.reshape(-1)[1:].tobytes() == dense.reshape(-1)[1:].tobytes()


def test_an_array_of_another_order_in_memory_is_flat_in_c_order():
    dense = np.asfortranarray(pruned((5, 6), 0.5))
    np.testing.assert_array_equal(SharedWeights.of_dense(dense).dense(), dense)


def test_shared_weights_take_the_values_of_the_codebook():
    array = SharedWeights.of_dense(np.array([0, 3, 0, -2, 5], np.float32))
    codebook = np.array([-2.5, 4, 0], np.float32)
    shared = array.shared(codebook, np.array([1, 0, 2], np.uint16))
    assert shared.dense().tolist() == [0, 4, 0, -2.5, 0]
    assert shared.values is None and shared.weights.tolist() == [4, -2.5, 0]


def test_indices_take_8_bits_in_filters_and_5_in_matrices():
    assert SharedWeights.of_dense(pruned((2, 3, 3, 1), 0.5)).index_bits == 8
    assert SharedWeights.of_dense(pruned((2, 3), 0.5)).index_bits == 5
    assert SharedWeights.of_dense(pruned((2, 3), 0.5), 4).index_bits == 4


PLACES, VALUES = np.array([1, 3]), np.ones(2, np.float32)
CODES, CODEBOOK = np.array([0, 1], np.uint16), np.ones(2, np.float32)


@pytest.mark.parametrize(
    "changed",
    [
        {"index_bits": 0},
        {"index_bits": 17},
        {"places": np.array([3, 1])},
        {"places": np.array([1, 1])},
        {"places": np.array([-1, 1])},
        {"places": np.array([1, 4])},
        {"places": np.array([1, 3], np.int32)},
        {"places": np.array([[1, 3]])},
        {"values": np.ones(3, np.float32)},
        {"values": np.ones(2)},
        {"values": np.array([1, -0.0], np.float32)},
        {"values": None},
        {"codes": CODES},
        {"values": None, "codes": CODES},
        {"values": None, "codes": CODES.astype(np.int64), "codebook": CODEBOOK},
        {"values": None, "codes": CODES, "codebook": CODEBOOK.astype(float)},
        {"values": None, "codes": CODES, "codebook": CODEBOOK[:1]},
        {"values": None, "codes": CODES, "codebook": CODEBOOK[:0]},
        {"values": None, "codes": CODES, "codebook": np.ones(65537, np.float32)},
    ],
)
def test_arrays_that_contradict_themselves_are_refused(changed):
    fields = {"shape": (4,), "places": PLACES, "index_bits": 5, "values": VALUES}
    SharedWeights(**fields)
    with pytest.raises(ValueError):
        SharedWeights(**{**fields, **changed})


def test_only_float32_is_compressed():
    with pytest.raises(ValueError, match="float64"):
        SharedWeights.of_dense(np.ones(3))
