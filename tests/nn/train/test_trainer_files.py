"""nn/train/trainer.py: the files that a trainer writes, from one rank and from several."""

import time

import numpy as np
import pytest

from nn.app.network_of_file import options_of_file
from nn.files import parameters
from nn.input.dataset import Dataset
from nn.model import reference
from nn.model.dense import Dense
from nn.model.network import Network
from nn.optimisers import Sgd
from nn.problem.settings import Settings
from nn.train.trainer import Trainer, _described
from pyrt.devices import open_device
from pyrt.errors import UserError
from pyrt.job import join
from pyrt.phases import Phases
from pyrt.runtime import Runtime
from tests import few

NETWORK = Network((12,), [Dense(9, "relu"), Dense(7, "tanh"), Dense(3)])


@pytest.fixture
def trainer():
    """A trainer of mixed activations that has made some steps."""
    rng = np.random.default_rng(0)
    data = Dataset(
        "noise",
        rng.integers(0, 256, (50, 12)).astype(np.uint8),
        (np.arange(50) % 3).astype(np.int32),
        None,
        None,
        (3, 4),
    )
    job = join()
    runtime = Runtime(job, open_device("cpu", job, True), Phases(time.perf_counter()))
    with Trainer(NETWORK, Sgd(lr=0.1), data, runtime, batch=20, plan="model") as made:
        for _ in range(3):
            made.step()
        yield made
    runtime.device.driver.close()


@pytest.mark.parallel(few([2], of=[1, 2]))
@pytest.mark.parametrize("end", [".npz", ".safetensors", ".pyrtz"])
def test_what_a_trainer_saves_is_all_of_its_parameters(trainer, shared, end):
    if end != ".npz":
        package = {".safetensors": "safetensors", ".pyrtz": "bitarray"}[end]
        pytest.importorskip(package, reason="make test installs it")
    file, whole = shared / f"w{end}", trainer.parameters()
    trainer.save(str(file))
    if join().rank == 0:
        found = parameters.load(file, NETWORK, "float32")
        assert {name: array.tobytes() for name, array in found.items()} == {
            name: array.tobytes() for name, array in whole.items()
        }
        told = parameters.run_metadata(file)["options"]
        assert (told["hidden"], told["head"], told["pixel_scale"]) == ([9, 7], "softmax", 255.0)


def test_activations_that_differ_are_told_by_layer_and_not_evaluated_as_others(trainer, tmp_path):
    """A command line has one activation for all hidden layers."""
    trainer.save(tmp_path / "w.npz")
    assert parameters.run_metadata(tmp_path / "w.npz")["options"]["activation"] == ["relu", "tanh"]
    with pytest.raises(UserError, match="trained with --activation relu,tanh, which train"):
        options_of_file(tmp_path / "w.npz", {})
    with pytest.raises(UserError, match="--activation relu,tanh, and --activation relu is given"):
        options_of_file(tmp_path / "w.npz", {"activation": "relu"})


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        ([Dense(5, "relu"), Dense(4, "relu"), Dense(3)], "relu"),
        ([Dense(5, "relu"), Dense(4, "tanh"), Dense(3, "relu"), Dense(3)], ["relu", "tanh", "relu"]),
        ([Dense(5), Dense(3)], "identity"),
    ],
)
def test_a_training_is_described_by_the_activation_of_each_layer(layers, told):
    """Two networks of one activation in other layers are two: a checkpoint of one does not fit the other."""
    assert _described(Settings(), Network((12,), layers), Sgd(lr=0.1))["activation"] == told


@pytest.mark.parallel(few([2], of=[1, 2]))
def test_the_network_that_a_trainer_exports_computes_its_probabilities(trainer, shared):
    """Of mixed activations; the tolerance is that of tests/nn/files/test_onnx.py, for the same reasons."""
    pytest.importorskip("onnx", reason="make test installs it")
    onnxruntime = pytest.importorskip("onnxruntime", reason="make test installs it")
    whole = trainer.parameters()
    trainer.export(str(shared / "w.onnx"))
    if join().rank == 0:
        X = np.random.default_rng(1).random((5, 12), np.float32)
        opened = onnxruntime.InferenceSession(shared / "w.onnx", providers=["CPUExecutionProvider"])
        (found,) = opened.run(None, {"pixels": X})
        _, Z = reference.forward({name: array.astype(float) for name, array in whole.items()}, X, NETWORK)
        np.testing.assert_allclose(found, reference.probabilities(Z, "softmax"), rtol=0, atol=1e-6)


@pytest.mark.parallel([2])
def test_a_file_that_cannot_be_written_is_refused_on_all_ranks(trainer, shared):
    for name in ("missing/w.npz", "missing/w.safetensors"):
        with pytest.raises(UserError, match=r"--save |rank 0"):
            trainer.save(shared / name)
    with pytest.raises(UserError, match=r"--export |rank 0"):
        trainer.export(shared / "missing/w.onnx")
