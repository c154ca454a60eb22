"""nn/input/schedule.py: which rows make which batch."""

import pytest

from nn.input.schedule import Schedule


def schedule(rows=20, samples=20, batch=6, epochs=3, shuffle=True, seed=7):
    return Schedule(rows, samples, batch, epochs, shuffle, seed)


def epochs(schedule):
    """All rows of each epoch, in order."""
    rows = [[] for _ in range(schedule.epochs)]
    for step in range(schedule.steps):
        rows[schedule.epoch(step)] += schedule.rows(step).tolist()
    return rows


def test_batches_are_consecutive_slices_and_the_last_is_short():
    plain = schedule(shuffle=False)
    assert [plain.rows(step).tolist() for step in range(4)] == [
        [0, 1, 2, 3, 4, 5],
        [6, 7, 8, 9, 10, 11],
        [12, 13, 14, 15, 16, 17],
        [18, 19],
    ]
    assert [plain.size(step) for step in range(plain.steps)] == [6, 6, 6, 2] * 3
    assert [plain.epoch(step) for step in range(plain.steps)] == [0] * 4 + [1] * 4 + [2] * 4
    assert (plain.batches, plain.steps, plain.sizes) == (4, 12, {6, 2})
    assert epochs(plain) == [list(range(20))] * 3


def test_batches_that_come_out_even_have_one_size():
    assert schedule(batch=5).sizes == {5}


def test_a_batch_larger_than_the_set_is_one_batch():
    large = schedule(batch=21)
    assert (large.batch, large.batches, large.sizes) == (20, 1, {20})


@pytest.mark.parametrize("samples", [5, 20, 33, 60])
def test_samples_are_the_first_rows_repeated_where_there_are_fewer(samples):
    plain = schedule(samples=samples, shuffle=False, epochs=1)
    assert epochs(plain) == [[row % 20 for row in range(samples)]]


@pytest.mark.parametrize("samples", [5, 20, 33])
def test_shuffling_permutes_the_repeated_rows_differently_every_epoch(samples):
    shuffled = epochs(schedule(samples=samples))
    for rows in shuffled:
        assert sorted(rows) == sorted(row % 20 for row in range(samples))
    assert len({tuple(rows) for rows in shuffled}) == 3


def test_the_same_seed_shuffles_the_same_way_and_another_does_not():
    assert epochs(schedule()) == epochs(schedule())
    assert epochs(schedule(seed=8)) != epochs(schedule())


def test_batches_may_be_asked_for_in_any_order():
    shuffled = schedule()
    forward = [shuffled.rows(step).tolist() for step in range(12)]
    backward = [shuffled.rows(step).tolist() for step in reversed(range(12))]
    assert forward == backward[::-1]


def test_no_epochs_have_no_steps():
    assert schedule(epochs=0).steps == 0
