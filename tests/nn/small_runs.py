"""Small runs in process: quick, and long enough to tell a wrong gradient, decay or batch from rounding."""

import dataclasses

import numpy as np

from nn.app.options import Options
from train import train

SMALL = Options(
    data="synthetic:28x28x1:10:330",
    hidden=(9,),
    epochs=2,
    batch=20,
    lr=0.5,
    momentum=0.0,
    reg=0.01,
    val_fraction=0.0,
    device="cpu",
)
"""Too short for chaos; of test images, which the emulated device takes long for, there are 33."""


def using(options=SMALL, **changes):
    return dataclasses.replace(options, **changes)


def saved(path):
    """The parameters in a file, bit by bit."""
    with np.load(path) as file:
        return {name: (file[name].dtype.str, file[name].tobytes()) for name in file.files if name != "run"}


def write_images(path, shape):
    """Write a data set of random images of this shape in five classes: 50 to train on, 11 test images."""
    rng = np.random.default_rng(0)
    arrays = {}
    for name, count in (("train", 50), ("test", 11)):
        arrays[f"x_{name}"] = rng.integers(0, 256, (count, *shape), np.uint8)
        arrays[f"y_{name}"] = np.arange(count) % 5
    np.savez(path, **arrays)


def outcome(options, job, **changes):
    """All that a run can be told by, bit by bit: its weights, scores, test and report. Collective."""
    options = using(options, **changes)
    report = train(options, job)
    job.comm.barrier()
    weights = saved(options.save)
    job.comm.barrier()
    scores = [(epoch.loss, epoch.validation_precision) for epoch in report.epochs]
    return weights, scores, report.test, report


def require_passed(report):
    assert report.check is not None and report.check.passed, str(report.check)
