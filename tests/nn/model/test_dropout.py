"""nn/model/dropout.py, philox.py: what is dropped, how evenly, and that parts of a batch drop the same."""

import numpy as np
import pytest

from nn.model import reference
from nn.model.conv2d import Conv2d
from nn.model.dense import Dense
from nn.model.dropout import Dropout, Part, halves, kept
from nn.model.initial import initial_values
from nn.model.net_text import layers_of_json, layers_of_text
from nn.model.network import Network, text_of
from nn.model.philox import philox
from pyrt.errors import UserError
from tests.nn.model.net_json import as_json

ALL = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ALL,) * 4, (ALL,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
"""The known answers of philox4x32 10 in Random123's tests (kat_vectors)."""


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_known_answers(counter, key, words):
    assert [int(word) for word in philox(counter, key)] == list(words)
    several = philox([np.full((2, 3), word) for word in counter], key)
    assert all((found == word).all() for found, word in zip(several, words, strict=True))


def one_by_one(rate, seed, step, place, part):
    """By the equations of the module's docstring, an element at a time."""
    result = np.empty((part.rows, part.columns), bool)
    for row, column in np.ndindex(result.shape):
        e = part.first + row * part.units + column
        word = philox(((e // 4) & ALL, e // 4 >> 32, step, place), (seed & ALL, seed >> 32))[e % 4]
        result[row, column] = word >= int(rate * 2**32)
    return result


@pytest.mark.parametrize(
    "part",
    [
        Part.whole(1, 1),
        Part.whole(7, 13),
        Part(5, 13, 13, 26),
        Part(3, 5, 17, 2 * 17 + 6),
        Part(4, 1, 9, 3),
        Part(2, 3, 3, 2**34 - 5),
        Part(0, 5, 5),
    ],
)
@pytest.mark.parametrize("seed", [0, 12345, 2**40 + 7])
def test_a_part_is_what_the_equations_say(part, seed):
    found = kept(Dropout(0.4), seed, 3, 2, part)
    np.testing.assert_array_equal(found, one_by_one(0.4, seed, 3, 2, part))


def test_parts_of_a_batch_make_the_whole_however_it_is_split():
    rows, units, layer = 11, 23, Dropout(0.5)
    whole = kept(layer, 1, 9, 4, Part.whole(rows, units))
    rng = np.random.default_rng(0)
    for _ in range(50):
        top, left = rng.integers(rows), rng.integers(units)
        height, width = rng.integers(rows - top) + 1, rng.integers(units - left) + 1
        part = Part(int(height), int(width), units, int(top * units + left))
        found = kept(layer, 1, 9, 4, part)
        np.testing.assert_array_equal(found, whole[top : top + height, left : left + width])


N = 1 << 18


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_as_many_are_dropped_as_the_rate_says(rate):
    """Within five standard deviations, in all, in each column, and in each of the four words."""
    found = kept(Dropout(rate), 7, 1, 0, Part.whole(N // 64, 64))
    for share, count in ((found.mean(), N), *((column.mean(), N // 64) for column in found.T)):
        assert abs(share - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / count)


@pytest.mark.parametrize(
    "other",
    [
        kept(Dropout(0.5), 7, 2, 0, Part.whole(N, 1)),
        kept(Dropout(0.5), 7, 1, 1, Part.whole(N, 1)),
        kept(Dropout(0.5), 8, 1, 0, Part.whole(N, 1)),
        kept(Dropout(0.5), 7 + 2**32, 1, 0, Part.whole(N, 1)),
        *(kept(Dropout(0.5), 7, 1, 0, Part(N, 1, 1, lag)) for lag in (1, 2, 3, 4, 5, 128)),
    ],
    ids=["step", "place", "seed", "upper half of the seed", *(f"lag {lag}" for lag in (1, 2, 3, 4, 5, 128))],
)
def test_steps_layers_seeds_and_neighbours_are_independent(other):
    """Half of the elements agree, within five standard deviations."""
    mine = kept(Dropout(0.5), 7, 1, 0, Part.whole(N, 1))
    assert abs((mine == other).mean() - 0.5) < 5 * 0.5 / np.sqrt(N)


def test_units_are_kept_in_sum_and_nothing_happens_in_evaluation():
    layer, A = Dropout(0.25), np.random.default_rng(0).standard_normal((4000, 8))
    assert layer.forward({}, A) is A and layer.backward({}, A, A, A)[0] is A
    output = layer.in_step(0, 1, 0).forward({}, A)
    is_kept = kept(layer, 0, 1, 0, Part.whole(*A.shape))
    np.testing.assert_allclose(output, np.where(is_kept, A / 0.75, 0), rtol=1e-15)
    assert abs((output**2).mean() / (A**2).mean() - 1 / 0.75) < 0.05


def test_what_is_dropped_is_zero_whatever_it_was():
    A = np.array([[np.inf, np.nan, -np.inf, 1e300]] * 50)
    output = Dropout(0.5).in_step(0, 1, 0).forward({}, A)
    is_kept = kept(Dropout(0.5), 0, 1, 0, Part.whole(*A.shape))
    assert (output[~is_kept] == 0).all() and not (output[is_kept] == 0).any()


def test_gradients_of_a_network_with_dropout_are_its_finite_differences():
    layers = [
        Dropout(0.2),
        Conv2d(2, 2, activation="tanh"),
        Dropout(0.4),
        Dense(5, "sigmoid"),
        Dropout(0.5),
        Dense(3),
    ]
    network = Network((4, 3), layers).in_step(5, 2)
    parameters = initial_values(network, "float64", 0)
    rng = np.random.default_rng(1)
    X, labels = rng.random((6, 12)), rng.integers(0, 3, 6)
    cost, gradients = reference.cost_and_gradients(parameters, X, labels, network, 0.01)
    other, _ = reference.cost_and_gradients(parameters, X, labels, Network((4, 3), layers), 0.01)
    assert abs(cost - other) > 1e-3
    for name, array in parameters.items():
        for index in list(np.ndindex(array.shape))[::5]:
            costs = []
            for change in (1e-6, -1e-6):
                moved = {key: value.copy() for key, value in parameters.items()}
                moved[name][index] += change
                costs.append(reference.cost_and_gradients(moved, X, labels, network, 0.01)[0])
            assert gradients[name][index] == pytest.approx((costs[0] - costs[1]) / 2e-6, abs=1e-8)


def test_a_network_without_dropout_is_the_same_in_every_step():
    network = Network((4,), [Dense(3)])
    assert not network.draws and network.in_step(0, 1) is network


@pytest.mark.parametrize("rate", [0, 0.5, 0.1, 1e-6, 1 / 3, 0.999999, 1 - 2**-53])
def test_its_text_and_json_are_read_again(rate):
    layers = [Dense(4, "relu"), Dropout(rate), Dense(3)]
    assert layers_of_text(text_of(layers)) == layers
    assert layers_of_json(as_json(layers)) == layers
    assert 0 <= Dropout(rate).threshold < 2**32


@pytest.mark.parametrize("rate", [1, 1.0, -0.1, 1e-7, 2, np.nan, np.inf, "0.5", True, None])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(UserError, match=r"^Dropout: rate .* to below 1"):
        Dropout(rate)


@pytest.mark.parametrize(
    "word", ["dropout", "dropout1", "dropout1.0", "dropout-0.5", "dropout0.5e-1", "dropout."]
)
def test_a_word_that_is_no_dropout_is_refused(word):
    with pytest.raises(UserError, match="--net: "):
        layers_of_text(f"dense4,{word},dense3")


def test_it_belongs_neither_at_the_end_nor_before_an_activation():
    with pytest.raises(UserError, match="makes no logits"):
        Network((4,), [Dense(3), Dropout(0.5)])
    with pytest.raises(UserError, match="relu, word 3, belongs right behind"):
        layers_of_text("dense4,dropout0.5,relu,dense3")


def test_a_seed_has_two_halves():
    assert halves(2**70 + 5 * 2**32 + 7) == (7, 5)
