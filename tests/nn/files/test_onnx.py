"""nn/files/onnx.py: networks in ONNX files compute what the reference does, in another program's hands."""

import json
import math
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from nn.files import onnx
from nn.model import reference
from nn.model.dense import Dense
from nn.model.initial import initial_values
from nn.model.net_text import make_network
from nn.model.network import Network
from pyrt.errors import UserError

package = pytest.importorskip("onnx", reason="make test installs it")
onnxruntime = pytest.importorskip("onnxruntime", reason="make test installs it")

NETWORK = Network((12,), [Dense(9, "relu"), Dense(3)])
RUN = {"options": {"hidden": [9], "pixel_scale": 255.0}}

TOLERANCE = 1e-6
"""Of a probability, at most 1: sums of hundreds of products in float32, whose roundings of 6e-8 add up as a
random walk, through slopes of at most 1; onnxruntime's sigmoid and exp are right to 1e-7."""

EQUAL = 1e-12
"""Of float64 against float64."""


@pytest.fixture
def file(tmp_path):
    return tmp_path / "network.onnx"


def session(file):
    """One thread: tests share their cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def computed(file, X):
    """What onnxruntime makes of X."""
    (found,) = session(file).run(None, {onnx.INPUT: X})
    return found


def expected(network, parameters, X):
    """What the reference makes of it, in float64 from the numbers that are in the file."""
    exact = {name: array.astype(np.float32).astype(np.float64) for name, array in parameters.items()}
    _, Z = reference.forward(exact, X.astype(np.float64), network)
    return reference.probabilities(Z, network.loss)


def pixels(network, rows=17):
    rng = np.random.default_rng(1)
    return (rng.integers(0, 256, (rows, math.prod(network.layer_shapes[0]))) / 255).astype(np.float32)


def drawn(network, dtype="float32"):
    """Initial values, but with biases that are not zero."""
    rng = np.random.default_rng(2)
    values = initial_values(network, dtype, 0)
    biases = {name: rng.standard_normal(array.shape).astype(dtype) for name, array in values.items()}
    return {name: biases[name] if name.startswith("b") else array for name, array in values.items()}


NETWORKS = {
    "sigmoid": [Dense(9, "sigmoid"), Dense(3)],
    "tanh": [Dense(9, "tanh"), Dense(3)],
    "relu": [Dense(9, "relu"), Dense(3)],
    "mixed": [Dense(64, "relu"), Dense(33, "tanh"), Dense(17, "sigmoid"), Dense(10)],
    "linear and mixed": [Dense(8), Dense(7, "relu"), Dense(5)],
    "no hidden layer": [Dense(4)],
    "one unit, one class": [Dense(1, "tanh"), Dense(1)],
}


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("layers", NETWORKS.values(), ids=NETWORKS.keys())
def test_onnxruntime_computes_what_the_reference_does(file, layers, loss):
    network = Network((784,), layers, loss)
    parameters, X = drawn(network), pixels(network)
    onnx.export(file, network, parameters, RUN)
    found, right = computed(file, X), expected(network, parameters, X)
    assert found.dtype == np.float32 and found.shape == (17, network.classes)
    np.testing.assert_allclose(found, right, rtol=0, atol=TOLERANCE)
    assert layers == NETWORKS["one unit, one class"] or np.ptp(right) > 0.05  # they say something


IMAGES = {
    "conv": ((7, 9), "conv3x2x5,tanh,dense4"),
    "colours, padding and stride": ((11, 8, 3), "conv5x3x4s2p2,relu,conv1x1x6s3,dense4"),
    "same, odd and even": ((7, 10, 2), "conv4x5x3same,sigmoid,conv2x2x4s2same,relu,dense4"),
    "same, far apart": ((7, 10, 2), "conv3x3x2s5same,dense4"),
    "a kernel larger than the image": ((2, 3, 2), "conv5x7x3p3,relu,dense4"),
    "all windows of padding": ((3, 3), "conv1x1x2s4p3,dense4"),
    "pools": ((13, 11, 3), "conv2x2x4,relu,pool3s2,avgpool2s1,dense6,tanh,dense4"),
    "pools that leave pixels out": ((9, 8), "pool2,conv2x2x3,avgpool2,dense4"),
    "global mean": ((6, 5, 2), "conv3x3x7same,relu,gap,dense4"),
    "pools alone": ((5, 7, 3), "avgpool2s2,pool2s1,gap,dense4"),
    "images to dense": ((4, 3, 2), "dense5,relu,dense4"),
    "dropout, which does nothing": (
        (5, 4),
        "dropout0.5,conv2x2x3,relu,dropout0.2,dense6,relu,dropout0.5,dense4",
    ),
    "lenet5": ((28, 28), "lenet5"),
}


@pytest.mark.parametrize(("image", "net"), IMAGES.values(), ids=IMAGES.keys())
def test_onnxruntime_computes_what_the_reference_does_of_images(file, image, net):
    network = make_network(net, image, 4, "softmax")
    parameters, X = drawn(network), pixels(network)
    onnx.export(file, network, parameters, RUN)
    right = expected(network, parameters, X)
    np.testing.assert_allclose(computed(file, X), right, rtol=0, atol=TOLERANCE)
    assert np.ptp(right) > 0.02  # they say something
    for rows in (0, 1):
        assert computed(file, pixels(network, rows)).shape == (rows, 4)


def test_filters_have_their_channels_first(file):
    network = make_network("conv3x2x5,dense4", (7, 9, 2), 4, "softmax")
    parameters = drawn(network)
    onnx.export(file, network, parameters, RUN)
    found = {
        tensor.name: package.numpy_helper.to_array(tensor) for tensor in package.load(file).graph.initializer
    }
    np.testing.assert_array_equal(found["W1"], parameters["W1"].transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(found["image_shape"], [0, 7, 9, 2])
    assert found.keys() == {*network.shapes, "image_shape"}


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_logits_at_the_ends_of_float32_give_numbers(file, loss):
    network = Network((2,), [Dense(2)], loss)
    parameters = {"W1": np.eye(2, dtype=np.float32), "b1": np.zeros(2, np.float32)}
    X = np.array([[1e30, -1e30], [-1e30, 1e30], [0, 0]], np.float32)
    onnx.export(file, network, parameters, RUN)
    np.testing.assert_allclose(computed(file, X), expected(network, parameters, X), rtol=0, atol=TOLERANCE)


def test_the_equations_of_the_operators_are_those_of_the_reference(file):
    """In float64, by ONNX's own plain evaluator: no rounding that a small mistake could hide behind."""
    network = Network((30,), NETWORKS["mixed"], "softmax")
    parameters, X = drawn(network, "float64"), pixels(network).astype(np.float64)
    onnx.export(file, network, parameters, RUN)
    model = package.load(file)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(package.numpy_helper.from_array(parameters[tensor.name], tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = package.TensorProto.DOUBLE
    from onnx.reference import ReferenceEvaluator

    (found,) = ReferenceEvaluator(model).run(None, {onnx.INPUT: X})
    _, Z = reference.forward(parameters, X, network)
    np.testing.assert_allclose(found, reference.probabilities(Z, "softmax"), rtol=0, atol=EQUAL)


def test_any_number_of_samples_goes_in(file):
    onnx.export(file, NETWORK, drawn(NETWORK), RUN)
    for rows in (0, 1, 1000):
        assert computed(file, pixels(NETWORK, rows)).shape == (rows, 3)


def test_names_shapes_types_and_metadata_are_in_the_file(file):
    onnx.export(file, NETWORK, drawn(NETWORK, "float64"), RUN)
    opened = session(file)
    (inputs,), (outputs,) = opened.get_inputs(), opened.get_outputs()
    assert (inputs.name, inputs.type, inputs.shape) == ("pixels", "tensor(float)", ["N", 12])
    assert (outputs.name, outputs.type, outputs.shape) == ("probabilities", "tensor(float)", ["N", 3])
    metadata = opened.get_modelmeta()
    assert metadata.producer_name == "pyrt"
    assert json.loads(metadata.custom_metadata_map["run"]) == RUN
    model = package.load(file)
    assert (model.opset_import[0].version, model.ir_version) == (13, 7)
    assert {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer} == NETWORK.shapes


def test_the_same_network_makes_the_same_file(file):
    onnx.export(file, NETWORK, drawn(NETWORK), RUN)
    first = file.read_bytes()
    onnx.export(
        file, NETWORK, {name: np.asfortranarray(array) for name, array in drawn(NETWORK).items()}, RUN
    )
    assert file.read_bytes() == first


def test_a_failing_export_leaves_the_old_file(file, monkeypatch):
    onnx.export(file, NETWORK, drawn(NETWORK), RUN)
    old = file.read_bytes()
    monkeypatch.setattr(
        "os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(UserError, match=r"--export .*network\.onnx: .*No space left"):
        onnx.export(file, NETWORK, drawn(NETWORK), RUN)
    assert file.read_bytes() == old
    assert list(file.parent.iterdir()) == [file]


def refused(file, network, parameters, *words):
    with pytest.raises(UserError) as caught:
        onnx.export(file, network, parameters, RUN)
    message = str(caught.value)
    assert message.startswith(f"--export {file}: ") and message.isprintable() and caught.value.code == 2
    assert all(word in message for word in words), message
    assert not file.exists()


def test_numbers_beyond_float32_are_refused(file):
    parameters = drawn(NETWORK, "float64")
    parameters["W2"][1, 1] = 1e300
    refused(file, NETWORK, parameters, "W2", "float32", "--save")


def test_a_network_of_more_than_2_gb_is_refused_before_it_is_there(file):
    network = Network.dense((30_000, 20_000, 3), "relu", "softmax")
    refused(file, network, {}, "600080003 parameters", "2 GB", "--save")


def test_a_layer_that_is_not_known_is_refused(file):
    @dataclass(frozen=True)
    class Other(Dense):
        pass

    refused(file, Network((12,), [Other(9, "relu"), Dense(3)]), {}, "Other", "--save")


def test_without_the_package_one_line_says_what_to_install(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    refused(file, NETWORK, drawn(NETWORK), "needs the Python package onnx", "python -m pip install onnx")
