"""nn/model/dense.py, and networks of such layers with activations of their own, whole runs among them."""

from dataclasses import replace

import numpy as np
import pytest

from nn.app import load as load_module
from nn.app.load import problem_of
from nn.launch.gemm.versions import GEMM_VERSIONS, runs_gemm
from nn.model.dense import Dense
from nn.model.initial import initial_values
from nn.model.network import Network
from pyrt.errors import UserError
from tests import few, spread, standing_still
from tests.nn.small_runs import using
from train import train

ACTIVATIONS = [None, "sigmoid", "tanh", "relu"]


class TestDense:
    def test_shapes(self):
        """Of images in any number of dimensions: they are taken flat."""
        for inputs in ((12,), (3, 4), (2, 2, 3)):
            assert Dense(5).parameter_shapes(inputs) == {"W": (5, 12), "b": (5,)}
            assert Dense(5, "relu").output_shape(inputs) == (5,)

    @pytest.mark.parametrize("units", [0, -3, 2.0, True, "5", None])
    def test_units_that_are_none(self, units):
        with pytest.raises(UserError, match=r"Dense\(.*\): must have a unit or more"):
            Dense(units)

    @pytest.mark.parametrize("activation", ["swish", "", "Relu"])
    def test_an_activation_that_there_is_not(self, activation):
        with pytest.raises(UserError, match=r"activation '.*' is none of .*sigmoid, tanh, relu"):
            Dense(5, activation)

    @pytest.mark.parametrize(
        ("activation", "variance"),
        [(None, 2 / 900), ("tanh", 2 / 900), ("sigmoid", 32 / 900), ("relu", 2 / 600)],
    )
    def test_initial_weights_have_the_variance_of_their_activation(self, activation, variance):
        values = Dense(300, activation).initial(np.random.default_rng(0), (20, 30))
        assert values["W"].shape == (300, 600) and values["W"].dtype == np.float64
        # Of 180,000 normal numbers the variance is within 3 sqrt(2 / n), 1 percent.
        assert values["W"].var() == pytest.approx(variance, rel=0.01)
        assert abs(values["W"].mean()) < 0.01 * np.sqrt(variance)
        assert not values["b"].any() and values["b"].shape == (300,)

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_forward_and_backward_are_a_function_and_its_gradient(self, activation):
        """By central differences of a weighted sum of the outputs."""
        rng, layer = np.random.default_rng(3), Dense(4, activation)
        A, weight = rng.normal(0, 1, (6, 5)), rng.normal(0, 1, (6, 4))
        parameters = {"W": rng.normal(0, 1, (4, 5)), "b": rng.normal(0, 1, 4)}
        output = layer.forward(parameters, A)
        Z = A @ parameters["W"].T + parameters["b"]
        f = {None: lambda z: z, "sigmoid": lambda z: 1 / (1 + np.exp(-z)), "tanh": np.tanh}
        np.testing.assert_allclose(output, f.get(activation, lambda z: z * (z > 0))(Z), rtol=1e-12)
        assert np.abs(Z).min() > 1e-3  # no difference reaches over the kink of relu
        below, gradients = layer.backward(parameters, A, output, weight)
        for array, gradient in ((A, below), *((parameters[name], gradients[name]) for name in "Wb")):
            for index, value in np.ndenumerate(array):
                sums = []
                for step in (1e-5, -1e-5):
                    array[index] = value + step
                    sums.append((layer.forward(parameters, A) * weight).sum())
                array[index] = value
                assert (sums[0] - sums[1]) / 2e-5 == pytest.approx(gradient[index], rel=1e-7, abs=1e-8)


class TestNetwork:
    def test_layers_have_shapes_and_activations_of_their_own(self):
        network = Network((4, 7), [Dense(9, "relu"), Dense(6), Dense(8, "tanh"), Dense(3)], "sigmoid")
        assert network.sizes == (28, 9, 6, 8, 3) and network.classes == 3
        assert [network.activation(number) for number in network.numbers] == [
            "relu",
            "identity",
            "tanh",
            "identity",
        ]
        assert network.shapes["W1"] == (9, 28) and network.shapes["b4"] == (3,)
        assert list(network.shapes) == ["W1", "b1", "W2", "b2", "W3", "b3", "W4", "b4"]
        assert network.parameter_count == 9 * 29 + 6 * 10 + 8 * 7 + 3 * 9
        assert str(network) == "28-9 relu-6 linear-8 tanh-3, sigmoid cross-entropy per class"

    def test_one_activation_is_said_once(self):
        layers = [Dense(9, "tanh"), Dense(6, "tanh"), Dense(3)]
        assert Network((28,), layers) == Network.dense((28, 9, 6, 3), "tanh", "softmax")
        assert str(Network([28], tuple(layers))) == "28-9-6-3, tanh, softmax cross-entropy"
        assert str(Network((28,), [Dense(3)])) == "28-3, softmax cross-entropy"

    def test_it_can_be_a_key(self):
        assert len({Network.dense((7, 5, 3), name, "softmax") for name in ("tanh", "relu", "tanh")}) == 2

    @pytest.mark.parametrize(
        ("layers", "loss", "words"),
        [
            ([Dense(5, "tanh"), Dense(3)], "hinge", "loss 'hinge' is none of softmax, sigmoid"),
            ([], "softmax", "the last layer makes the logits"),
            ([Dense(5, "tanh")], "softmax", "the last layer makes the logits: give it no activation"),
            ([Dense(1 << 16, "relu"), Dense(1 << 15), Dense(2)], "softmax", "layer 2 .*--hidden"),
        ],
    )
    def test_a_network_that_cannot_be(self, layers, loss, words):
        with pytest.raises(UserError, match=words):
            Network((4,), layers, loss)

    def test_initial_values_are_those_of_its_layers_in_turn(self):
        layers = [Dense(9, "relu"), Dense(6, "sigmoid"), Dense(3)]
        values = initial_values(Network((4, 7), layers), "float32", 5)
        generator = np.random.default_rng((5, 0))
        for number, (layer, inputs) in enumerate(zip(layers, (28, 9, 6), strict=True), 1):
            for name, array in layer.initial(generator, (inputs,)).items():
                assert values[f"{name}{number}"].dtype == np.float32
                np.testing.assert_array_equal(values[f"{name}{number}"], array.astype(np.float32))


MIXED = [
    [Dense(41, "relu"), Dense(38, "sigmoid"), Dense(35, "tanh"), Dense(10)],
    [Dense(37, "tanh"), Dense(36), Dense(10)],
    [Dense(36), Dense(40, "relu"), Dense(10)],
    [Dense(10)],
]


@pytest.fixture
def of_layers(monkeypatch):
    """Runs have a network of these layers, whatever their options say."""

    def use(layers, loss="softmax"):
        def with_layers(options, dataset):
            problem = problem_of(options, dataset)
            return replace(problem, network=Network((problem.network.sizes[0],), layers, loss))

        monkeypatch.setattr(load_module, "problem_of", with_layers)

    return use


def failures(of_layers, networks, loss="softmax", **options):
    """The networks that such a run trains to other parameters than the reference."""
    failed = []
    for layers in networks:
        of_layers(layers, loss)
        standing_still.allow()
        report = train(using(samples=55, batch=45, lr=0.1, momentum=0.9, check=True, **options))
        shapes = {difference.name for difference in report.check.differences}
        assert shapes == {f"{name}{number}" for name in "Wb" for number in range(1, len(layers) + 1)}
        if not report.passed:
            failed.append(f"{report.environment['network']}\n{report.check}")
    return failed


@pytest.mark.parametrize(("loss", "dtype"), spread(["softmax", "sigmoid"], ["float32", "float64"], by=2))
def test_activations_of_all_kinds_in_one_network(of_layers, loss, dtype):
    assert not failures(of_layers, MIXED, loss, dtype=dtype)


@pytest.mark.parametrize("gemm", few(["warp"], of=GEMM_VERSIONS))
def test_activations_of_all_kinds_in_kernels(driver, of_layers, gemm):
    if not runs_gemm(gemm, driver.architecture):
        pytest.skip("needs other tensor cores")
    assert not failures(of_layers, few(MIXED[:1], of=MIXED), device=driver.name, gemm=gemm)


@pytest.mark.long
@pytest.mark.parallel(few([3], of=[2, 3]))
@pytest.mark.parametrize("plan", few(["model"], of=["data", "model"]))
def test_activations_of_all_kinds_on_several_ranks(driver, of_layers, plan):
    assert not failures(of_layers, few(MIXED[1:], of=MIXED), plan=plan)
    where = {"device": driver.name, "share_gpus": True}
    assert not failures(of_layers, few(MIXED[:1], of=MIXED), plan=plan, **where)
