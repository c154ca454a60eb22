"""nn/compress/rans.py: a decoder of the test's own gets all symbols back, and they take what entropy says."""

import numpy as np
import pytest

from nn.compress import rans


def decode(content, count, frequency):
    """One symbol after the other, in Python's integers."""
    states = -(-count // rans.SYMBOLS_OF_A_STATE)
    state = np.frombuffer(content[: 8 * states], np.uint64).tolist()
    words = iter(np.frombuffer(content[8 * states :], np.uint32).tolist())
    total, frequency = np.cumsum(frequency.astype(np.int64)), frequency.astype(np.int64)
    found = []
    for place in range(count):
        number = place % states
        slot = state[number] % (1 << 20)
        symbol = int(np.searchsorted(total, slot, "right"))
        of_it = int(frequency[symbol])
        state[number] = of_it * (state[number] >> 20) + slot - int(total[symbol] - of_it)
        if state[number] < 1 << 31:
            state[number] = state[number] << 32 | next(words)
        found.append(symbol)
    assert list(words) == [] and state == [1 << 31] * states
    return found


def draws():
    rng = np.random.default_rng(0)
    return {
        "geometric": rng.geometric(0.1, 3000) - 1,
        "skewed": (rng.random(20_000) < 0.01).astype(np.uint16),
        "uniform": rng.integers(0, 256, 9001),
        "holes": rng.integers(0, 20, 500) * 37,
        "one symbol": np.full(9000, 6),
        "one entry": np.array([31]),
        "65537 symbols": rng.permutation(65537),
    }


@pytest.mark.parametrize("name", draws())
def test_symbols_come_back_from_as_many_bits_as_their_entropy(name):
    symbols = draws()[name]
    counts = np.bincount(symbols)
    frequency = rans.frequencies(counts)
    assert frequency.sum() == 1 << 20 and ((frequency > 0) == (counts > 0)).all()
    content = rans.encode(symbols)
    assert decode(content, len(symbols), frequency) == symbols.tolist()
    some = counts[counts > 0]
    entropy = some @ np.log2(len(symbols) / some)
    states = -(-len(symbols) // rans.SYMBOLS_OF_A_STATE)
    # Frequencies of 1 / 2**20 are coarse where there are 65537 of them.
    assert entropy - 1 <= 8 * len(content) <= (1.001 if len(some) < 1000 else 1.01) * entropy + 64 * states
