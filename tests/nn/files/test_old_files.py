r"""Files that were written before networks had layers, by revision 909b205: they are read as they were then.

old/ has them: parameters, a plan, the checkpoint of step 6 of 12, and random images, from

    mpirun -n 2 python train.py --device cpu --data data.npz --hidden 5,4 --activation tanh --head sigmoid \
        --pixel-scale 200 --batch 10 --epochs 4 --lr 0.1 --seed 3 --plan model --save-plan plan.json \
        --save w.npz --checkpoint run1
"""

import shutil
from pathlib import Path

import numpy as np

from nn.app.options import Options
from nn.checkpoints import files as checkpoints
from nn.files import parameters
from nn.model.network import Network
from nn.parallel import plan_files
from train import train

OLD = Path(__file__).parent / "old"
NETWORK = Network.dense((12, 5, 4, 3), "tanh", "sigmoid")
CHECKPOINT = OLD / "step-000000000006.npz"
TRAINING = {
    "device": "cpu",
    "data": str(OLD / "data.npz"),
    "hidden": (5, 4),
    "activation": "tanh",
    "head": "sigmoid",
    "pixel_scale": 200.0,
    "batch": 10,
    "epochs": 4,
    "lr": 0.1,
    "seed": 3,
}


def test_old_parameters_are_read_and_tell_their_network():
    found = parameters.load(OLD / "w.npz", NETWORK, "float32")
    with np.load(OLD / "w.npz") as file:
        for name, array in found.items():
            np.testing.assert_array_equal(array, file[name])
    precision = parameters.run_metadata(OLD / "w.npz")["test_precision"]
    scored = train(Options(device="cpu", data=TRAINING["data"], evaluate=True, init=OLD / "w.npz"))
    assert scored.environment["network"] == str(NETWORK)
    assert scored.test.precision == precision
    for name in ("hidden", "activation", "head", "pixel_scale"):
        value = scored.options[name]
        assert (tuple(value) if isinstance(value, list) else value) == TRAINING[name]


def test_an_old_checkpoint_is_read_and_scored():
    checkpoint = checkpoints.load(CHECKPOINT)
    assert checkpoint.metadata.progress.step == 6 and len(checkpoint.metadata.progress.epochs) == 2
    assert {name: array.shape for name, array in checkpoint.states["v"].items()} == NETWORK.shapes
    scored = train(Options(device="cpu", data=TRAINING["data"], evaluate=True, init=CHECKPOINT))
    assert scored.environment["network"] == str(NETWORK)


def test_a_run_goes_on_from_an_old_checkpoint_as_it_did_then(tmp_path):
    """To float32's rounding, for another BLAS sums in another order: six steps at a rate of 0.1."""
    shutil.copy(CHECKPOINT, tmp_path)
    save = tmp_path / "w.npz"
    report = train(Options(**TRAINING, checkpoint=tmp_path, resume=True, save=save))
    assert len(report.epochs) == 4
    found, then = (parameters.load(file, NETWORK, "float32") for file in (save, OLD / "w.npz"))
    for name, array in found.items():
        np.testing.assert_allclose(array, then[name], rtol=1e-5, atol=1e-6)
    start = checkpoints.load(CHECKPOINT).parameters
    assert all(np.abs(found[name] - start[name]).max() > 1e-4 for name in found)


def test_an_old_plan_is_read():
    plan = plan_files.load(OLD / "plan.json")
    assert (plan.groups, plan.shards, plan.splits) == (1, 2, ("rows", "columns", "columns"))
    plan.require_fits(NETWORK, 2)
