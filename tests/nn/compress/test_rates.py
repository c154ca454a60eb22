"""nn/compress/rates.py: the paper's accounting against numbers worked out by hand; bytes against files."""

import math

import numpy as np
import pytest

from nn.compress.codebook import cluster
from nn.compress.rates import Stream, rates, table
from nn.files import pyrtz
from nn.files.coding.shared_weights import SharedWeights

pytest.importorskip("bitarray", reason="make test installs it")

RUN = {"options": {"hidden": [5]}}


@pytest.fixture
def small():
    """100 weights: 8 are left, of 3 clusters, at gaps of 1, 2, 9 (a filler), 4, 1, 1, 1, 50 (6 fillers)."""
    dense = np.zeros(100, np.float32)
    dense[[0, 2, 11, 15, 16, 17, 18, 68]] = 1
    array = SharedWeights.of_dense(dense.reshape(10, 10), 3)
    return array.shared(np.array([-1, 1, 2], np.float32), np.array([0, 1, 0, 0, 0, 2, 0, 0], np.uint16))


def test_a_small_layer_by_hand(small):
    rate = rates({"W1": small}, RUN).layers[0]
    assert (rate.name, rate.weights, rate.kept, rate.entries, rate.clusters) == ("W1", 100, 8, 15, 3)
    # Codes: 6 of 0, 1 of 1, 1 of 2, 7 fillers: words of 2, 3, 3, 1 bits; of 2 without Huffman.
    assert rate.weight.plain == 15 * 2
    assert rate.weight.huffman == 6 * 2 + 3 + 3 + 7 * 1
    # Gaps - 1: 0, 1, 7 (filler), 0, 3, 0, 0, 0, 6 x 7 (fillers), 1: five 0, two 1, a 3, seven 7.
    assert rate.index.plain == 15 * 3
    assert rate.index.huffman == 7 * 1 + 5 * 2 + 2 * 3 + 1 * 3
    assert rate.kept_percent == 8
    assert rate.percent == pytest.approx(100 * (30 + 45 + 3 * 32) / 3200)
    assert rate.percent_huffman == pytest.approx(100 * (25 + 26 + 3 * 32) / 3200)
    assert rate.bits(rate.weight.plain) == 2 and rate.bits(rate.index.huffman) == pytest.approx(26 / 15)
    entropy = -sum(n * math.log2(n / 15) for n in (6, 1, 1, 7)) - sum(
        n * math.log2(n / 15) for n in (5, 2, 1, 7)
    )
    assert rate.weight.entropy + rate.index.entropy == pytest.approx(entropy)
    assert rate.percent_entropy == pytest.approx(100 * (entropy + 3 * 32) / 3200)


@pytest.mark.parametrize(
    ("shape", "keep", "bits", "printed"), [((400, 665), 0.082, 6, 3.1), ((500, 2000), 0.04, 5, 1.6)]
)
def test_rates_are_near_those_that_the_paper_prints(shape, keep, bits, printed):
    """LeNet-300-100, as one layer, and fc6 of VGG-16, of fewer weights; with weights at random places."""
    rng = np.random.default_rng(0)
    array = SharedWeights.of_dense((rng.random(shape) < keep).astype(np.float32))
    clusters = 2**bits - 1
    codes = rng.integers(0, clusters, len(array.places)).astype(np.uint16)
    shared = array.shared(np.linspace(-1, 1, clusters, dtype=np.float32), codes)
    rate = rates({"W1": shared}, {}).layers[0]
    assert rate.bits(rate.weight.plain) == bits and rate.bits(rate.index.plain) == 5
    assert rate.percent == pytest.approx(printed, abs=0.15)
    without_fillers = 100 * (bits + 5) * rate.kept / (32 * rate.weights)
    assert without_fillers < printed - 0.25


@pytest.mark.parametrize(
    ("symbols", "bits", "plain", "huffman", "entropy"),
    [
        ([0, 1, 2, 3], 2, 8, 8, 8),
        ([5] * 7, 3, 21, 7, 0),
        ([], 5, 0, 0, 0),
        ([0] * 8 + [1] * 4 + [2] * 2 + [7] * 2, 4, 64, 28, 28),
    ],
)
def test_bits_of_streams(symbols, bits, plain, huffman, entropy):
    found = Stream.of(np.array(symbols, np.uint16), bits)
    assert (found.plain, found.huffman) == (plain, huffman) and found.entropy == pytest.approx(entropy)


def compressed():
    """A network: pruned and shared, pruned, shared, plain; with biases."""
    rng = np.random.default_rng(2)

    def pruned(shape, keep):
        return np.where(rng.random(shape) < keep, rng.normal(size=shape), 0).astype(np.float32)

    first, filters = SharedWeights.of_dense(pruned((60, 100), 0.1)), pruned((8, 3, 3, 4), 0.3)
    full = SharedWeights.of_dense(pruned((20, 30), 2))
    return {
        "W1": first.shared(*cluster(first.values, 32)),
        "b1": rng.normal(size=60).astype(np.float32),
        "W2": SharedWeights.of_dense(filters),
        "b2": np.zeros(8, np.float32),
        "W3": full.shared(*cluster(full.values, 16)),
        "b3": np.ones(20, np.float32),
        "W4": np.ones((3, 20), np.float32),
        "b4": np.ones(3, np.float32),
    }


def test_bytes_are_those_of_the_file(tmp_path):
    arrays, file = compressed(), tmp_path / "w.pyrtz"
    pyrtz.save_compressed("--save", file, arrays, RUN)
    found = rates(arrays, RUN)
    assert found.total.file_bytes_huffman == file.stat().st_size
    assert found.total.file_bytes == sum(map(len, pyrtz.pack(arrays, RUN, with_huffman=False)))
    start = len(pyrtz.pack({}, RUN)[0])
    for total, layers in (
        (found.total.file_bytes, [layer.file_bytes for layer in found.layers]),
        (found.total.file_bytes_huffman, [layer.file_bytes_huffman for layer in found.layers]),
    ):
        assert total == start + sum(layers)
    for layer in found.layers:
        without = {name: array for name, array in arrays.items() if name[1:] != layer.name[1:]}
        pyrtz.save_compressed("--save", file, without, RUN)
        assert layer.file_bytes_huffman == found.total.file_bytes_huffman - file.stat().st_size
    assert found.total.dense_bytes == 4 * sum(array.size for array in arrays.values())
    assert found.total.file_percent == 100 * found.total.file_bytes / found.total.dense_bytes


def test_every_way_to_keep_an_array_is_weighed():
    shared, pruned, full, plain = rates(compressed(), RUN).layers
    # 32 clusters and fillers are 33 codes.
    assert shared.bits(shared.weight.plain) == 6 and shared.bits(shared.index.plain) == 5
    assert pruned.weight == Stream(*[32 * pruned.entries] * 4) and pruned.clusters == 0
    assert pruned.bits(pruned.index.plain) == 8
    assert full.bits(full.weight.plain) == 4 and full.index == Stream() and full.kept_percent == 100
    assert (plain.percent, plain.percent_huffman, plain.kept) == (100, 100, 60)
    for layer in (shared, full):
        assert layer.weight.entropy <= layer.weight.huffman <= layer.weight.plain
        assert layer.weight.entropy <= layer.weight.ans <= layer.weight.entropy * 1.01 + 64
        assert layer.percent_entropy <= layer.percent_huffman < layer.percent
        assert layer.percent_entropy <= layer.percent_ans < layer.percent
        assert layer.weight.huffman < layer.weight.entropy + layer.entries


def test_the_total_is_that_of_the_layers():
    found = rates(compressed(), RUN)
    for name in ("weights", "kept", "entries", "clusters", "dense_bytes"):
        assert getattr(found.total, name) == sum(getattr(layer, name) for layer in found.layers), name
    plain = sum(layer.weight.plain + layer.index.plain + 32 * layer.clusters for layer in found.layers)
    assert found.total.percent == pytest.approx(100 * plain / (32 * found.total.weights))


def test_a_network_without_weights_has_no_rates():
    dense = np.zeros((3, 4), np.float32)
    found = rates({"W1": SharedWeights.of_dense(dense), "b1": np.ones(3, np.float32)}, RUN)
    assert (found.total.percent, found.total.kept_percent) == (0, 0)
    assert found.total.bits(0) == 0 and rates({}, RUN).total.percent == 0


def test_the_table():
    found = rates(compressed(), RUN)
    lines = table(found).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["W1", "W2", "W3", "W4", "total"]
    cells = lines[2].split()
    layer = found.layers[0]
    assert cells[1:4] == ["6,000", f"{layer.kept_percent:.3g}", "6.00"]
    assert cells[9:11] == [f"{layer.percent:.2f}", f"{layer.percent_huffman:.2f}"]
    assert cells[11:] == [f"{layer.file_percent:.2f}", f"{layer.file_percent_huffman:.2f}"]
    narrow = table(found, 110)
    assert "no room for entropy" in narrow and max(map(len, narrow.splitlines())) <= 110
