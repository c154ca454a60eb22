"""nn/train/trainer.py: the checkpoints of a program that trains by the API, and how it goes on from them."""

import json
import time

import numpy as np
import pytest

from nn.checkpoints import stopping
from nn.input.dataset import Dataset
from nn.model.dense import Dense
from nn.model.network import Network
from nn.optimisers import Adam, Sgd
from nn.train.trainer import Trainer
from pyrt.devices import open_device
from pyrt.job import AgreedError, join
from pyrt.phases import Phases
from pyrt.runtime import Runtime
from tests import few

NETWORK = Network((12,), [Dense(9, "relu"), Dense(3)])
STEPS = 3
"""In an epoch of 50 samples, the last one short."""


@pytest.fixture
def train():
    """Make a trainer on the CPU; the checkpoint of the last one is written before the next is made."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (50, 12)).astype(np.uint8), (np.arange(50) % 3).astype(np.int32)
    data, job = Dataset("noise", images, labels, None, None, (3, 4)), join()
    runtime = Runtime(job, open_device("cpu", job, True), Phases(time.perf_counter()))

    def make(optimiser, **settings):
        return Trainer(NETWORK, optimiser, data, runtime, batch=20, val_fraction=0, **settings)

    yield make
    runtime.device.driver.close()


def bits(trainer):
    return {name: array.tobytes() for name, array in trainer.parameters().items()}


@pytest.mark.parallel(few([2], of=[1, 2]))
@pytest.mark.parametrize("optimiser", few([Adam(lr=0.01)], of=[Sgd(lr=0.1), Adam(lr=0.01)]), ids=str)
def test_a_training_that_goes_on_ends_as_a_whole_one(train, shared, optimiser):
    """Broken off behind an epoch and a step: the newest checkpoint is of both, for the block ended well."""
    with train(optimiser) as whole:
        list(whole.epochs(3))
        expected = bits(whole)
    with train(optimiser, checkpoint=shared / "run") as first:
        list(first.epochs(1))
        first.step()
    with train(optimiser, checkpoint=shared / "run", resume=True) as second:
        assert second.progress.step == STEPS + 1
        assert [epoch.epoch for epoch in second.epochs(2)] == [2, 3]
        assert bits(second) == expected


def test_checkpoints_are_made_as_epochs_go_on(train, tmp_path):
    with train(Sgd(), checkpoint=tmp_path / "run", checkpoint_every="2", keep=9) as trainer:
        list(trainer.epochs(2))
        assert state(tmp_path)["state"] == "running"
    made = sorted(path.name for path in (tmp_path / "run").glob("step-*"))
    assert [int("".join(filter(str.isdigit, name))) for name in made] == [2, 4, 6]
    assert state(tmp_path)["state"] == "finished"


@pytest.mark.parallel(few([2], of=[1, 2]))
def test_a_training_that_is_asked_to_stop_ends_sooner_and_is_kept(train, shared, monkeypatch):
    monkeypatch.setattr(stopping, "stop_was_asked", lambda: join().rank == 0)
    with train(Sgd(), checkpoint=shared / "run") as trainer:
        assert len(list(trainer.epochs(50))) < 50
        step = trainer.progress.step
    assert state(shared) == {**state(shared), "state": "preempted", "step": step}


def test_an_exception_leaves_the_state_as_it_is(train, tmp_path):
    with pytest.raises(ZeroDivisionError), train(Sgd(), checkpoint=tmp_path / "run") as trainer:
        trainer.step()
        raise ZeroDivisionError
    assert state(tmp_path)["state"] == "running" and not list((tmp_path / "run").glob("step-*"))


def test_a_folder_is_one_trainings_until_it_is_closed(train, tmp_path):
    """It is named by a path or by its words."""
    with train(Sgd(), checkpoint=str(tmp_path / "run")) as trainer:
        trainer.step()
        with pytest.raises(AgreedError, match="another run"):
            train(Sgd(), checkpoint=tmp_path / "run")
    with pytest.raises(AgreedError, match="--resume"):
        train(Sgd(), checkpoint=tmp_path / "run")
    train(Sgd(), checkpoint=tmp_path / "run", resume=True).close()


def state(folder):
    return json.loads((folder / "run" / "state.json").read_text())
