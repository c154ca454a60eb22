"""nn/footprint.py: the lecture's table, products counted one by one, and the memory that a run needs."""

import itertools
import json
import sys

import numpy as np
import pytest

from nn import footprint
from nn.app.options import Options
from nn.footprint import Footprint, size, summary, table
from nn.model.conv2d import Conv2d
from nn.model.dense import Dense
from nn.model.net_text import IMAGES, make_network
from nn.model.network import Network
from pyrt.arrays import ALIGNMENT
from pyrt.errors import UserError
from pyrt.job import join
from tests.mpi import mpirun
from train import train


def known(name):
    return make_network(name, *IMAGES[name], "softmax")


def test_vgg16_is_the_lectures_table():
    """Its totals; and of the first layers the bytes that it should have: see docs/explain/footprint.md."""
    weighed = Footprint.of(known("vgg16"))
    assert weighed.parameters == 138_357_544
    assert weighed.outputs == 15_237_608
    assert weighed.forward == 2 * 15_470_264_320
    conv1_1, conv1_2, pool1, conv2_1 = weighed.layers[:4]
    assert [4 * one.weights / 1024 for one in (conv1_1, conv1_2, conv2_1)] == [6.75, 144, 288]
    assert (conv1_2.output, pool1.output) == ((224, 224, 64), (112, 112, 64))
    assert 4 * conv1_2.outputs / 2**20 == 12.25
    assert 4 * np.prod(weighed.input) / 1024 == 588
    assert weighed.watts(20) == pytest.approx(138_344_128 * 20 * 640e-12)


def test_a_billion_weights_take_the_lectures_watts():
    net = Network((10**5,), [Dense(10**4)])
    assert Footprint.of(net).watts(20) == pytest.approx(12.8)
    assert Footprint.of(net, itemsize=8).watts(20) == pytest.approx(2 * 12.8)


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 1), (3, "same")])
def test_products_are_those_of_the_loops(stride, padding):
    layer, image = Conv2d(5, (3, 2), stride, padding), (7, 8, 3)
    height, width, filters = layer.output_shape(image)
    loops = itertools.product(*map(range, (height, width, filters, 3, 2, 3)))
    assert layer.multiply_adds(image) == sum(1 for _ in loops)
    assert layer.matrix_size(image) == height * width * 3 * 2 * 3


def test_the_way_back_has_twice_the_products_but_in_the_first_layer():
    net = make_network("pool2,conv3x3x4,relu,dense9,dropout0.5,dense5", (10, 10, 2), 5, "softmax")
    pool, conv, dense, last = Footprint.of(net).layers  # dropout has no output of its own
    assert (pool.forward, pool.backward) == (0, 0)
    assert conv.forward == conv.backward == 2 * 3 * 3 * 4 * (3 * 3 * 2)
    assert (dense.forward, dense.backward) == (2 * 36 * 9, 4 * 36 * 9)
    assert (last.forward, last.backward) == (2 * 9 * 5, 4 * 9 * 5)


def test_bytes_by_hand():
    """A 4 x 4 image, two filters of 3 x 3, pooling to 1 x 1, three classes; 10 samples in float64."""
    net = make_network("conv3x3x2,relu,pool2,dense3", (4, 4, 1), 3, "softmax")
    weighed = Footprint.of(net, 8, 10, states=2)
    assert weighed.parameters == 18 + 2 + 6 + 3
    assert weighed.output_bytes == 8 * 10 * (16 + 8 + 2 + 3)
    assert weighed.live_bytes == 8 * 10 * (16 + 8)
    assert weighed.gradient_bytes == 8 * 10 * (8 + 2 + 3)
    assert weighed.place_bytes == 10 * 2
    assert weighed.inference_bytes == 8 * 29 + weighed.live_bytes
    assert weighed.training_bytes == 4 * 8 * 29 + 8 * 10 * (29 + 13) + 20


@pytest.mark.parametrize(
    ("changes", "states"),
    [({"momentum": 0.0}, 0), ({}, 1), ({"optimiser": "adam"}, 2), ({"dtype": "float64"}, 1)],
)
@pytest.mark.parametrize("net", [{"hidden": (9, 7)}, {"net": "lenet5"}])
def test_a_run_says_that_it_needs_as_much(net, changes, states):
    """Layer by layer: weights, gradients and what the optimiser keeps; a run pads each array to 256 bytes."""
    data = "synthetic:28x28x1:10:40"
    options = Options(data=data, batch=20, val_fraction=0.0, device="cpu", memory=True, **net, **changes)
    lines = {line.name: line for line in train(options).memory.lines}
    network = options.make_network((28, 28, 1), 10)
    itemsize = np.dtype(options.dtype).itemsize
    weighed = Footprint.of(network, itemsize, 20, states)
    layers = [layer for layer in weighed.layers if layer.weights]
    assert len(layers) == network.depth and len(options.make_optimiser().states) == states
    for number, layer in enumerate(layers, 1):
        line = lines[f"layer {number}"]
        exact = (layer.weights + layer.biases) * itemsize
        for counted, times in ((line.weights, 1), (line.gradients, 1), (line.momentum, states)):
            assert times * exact <= counted <= times * (exact + 2 * ALIGNMENT)
    assert weighed.live_bytes <= lines["all layers"].activations


def test_sizes_are_for_people():
    assert [size(n) for n in (0, 999, 6912, 1023 * 1024, 1 << 20, 3 << 31)] == [
        *("0 B", "999 B", "6.75 KiB", "1023 KiB", "1 MiB", "6 GiB"),
    ]


def test_a_batch_multiplies_outputs_and_operations_alone():
    one, eight = (table(Footprint.of(known("lenet5"), batch=n), None).splitlines() for n in (1, 8))
    total, totals = one[-1].split(), eight[-1].split()
    assert total[:2] == totals[:2] == ["total", "61,470"]
    assert (total[4], totals[4]) == ("8,878", f"{8 * 8878:,}")
    lines = summary(Footprint.of(known("lenet5"), batch=8, states=1), True, 0)
    assert [line.split()[0] for line in lines] == ["parameters", "inference", "training", "energy"]
    assert "training" not in "".join(summary(Footprint.of(known("lenet5")), False, 20))


def run(*words, ranks=1):
    return mpirun(ranks, sys.executable, "-m", "nn.footprint", *map(str, words))


def test_the_program_prints_a_table_and_writes_json(tmp_path):
    """On two ranks: one of them prints."""
    file = tmp_path / "footprint.json"
    words = "--batch", 4, "--training", "--momentum", "--rate", 5, "--json", file
    done = run("lenet5", *words, ranks=2)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("conv5x5x6p2 relu") == 1 and "61,706" in done.stdout
    told = json.loads(file.read_text())
    weighed = Footprint.of(known("lenet5"), batch=4, states=1)
    assert told["totals"]["training_bytes"] == weighed.training_bytes
    assert (told["version"], told["batch"], told["watts"]) == (1, 4, weighed.watts(5))
    assert [layer["weights"] for layer in told["layers"]] == [one.weights for one in weighed.layers]


@pytest.mark.long
def test_json_alone_goes_to_standard_output():
    done = run("--hidden", "20", "--json", "-")
    assert json.loads(done.stdout)["totals"]["parameters"] == 784 * 20 + 20 + 20 * 10 + 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["conv3x3x8,dense10"], "--net: nothing says what images it takes"),
        (["conv3x3"], "--net: 'conv3x3', word 1, is no layer"),
        (["lenet5", "--hidden", "20"], "--net says all layers: leave out --hidden"),
        (["lenet5", "--batch", "0"], "--batch"),
        (["lenet5", "--rate", "-1"], "--rate"),
        (["lenet5", "--json", "/none/f.json"], "--json"),
        (["missing.json"], "missing.json"),
    ],
)
def test_mistakes_are_one_line(monkeypatch, capsys, words, message):
    monkeypatch.setattr(sys, "argv", ["footprint.py", *words])
    with pytest.raises(UserError) as caught:
        footprint.main(join())
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.long
def test_a_mistake_ends_the_program_with_its_line():
    done = run("conv3x3")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
