"""nn/train/inference.py, host_to_host.py: logits from host to host are the reference's, for any number."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import nn
from nn.launch.gemm.few_rows import MOST_ROWS
from nn.model import reference
from nn.model.initial import initial_values
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.job import join
from pyrt.runtime import open_runtime
from tests import few

NETS = {
    "dense": nn.Network((33,), [nn.Dense(19, "sigmoid"), nn.Dense(7)]),
    "one layer": nn.Network((5,), [nn.Dense(3)]),
    "convolutions": nn.Network(
        (9, 11, 2),
        [
            *(nn.Conv2d(16, 3, padding="same", activation="relu"), nn.MaxPool2d(2)),
            *(nn.Conv2d(24, 2, activation="tanh"), nn.Dropout(0.5), nn.Dense(13, "relu"), nn.Dense(4)),
        ],
        loss="sigmoid",
    ),
}

BATCH = MOST_ROWS + 2
NUMBERS = (1, 2, MOST_ROWS, BATCH, BATCH + 1, 2 * BATCH + 5)
"""Of images that are asked for; the last ones in parts, the very last of them short."""

WAYS: dict[str, dict[str, Any]] = {
    "auto": {},
    "float64": {"dtype": "float64"},
    "mma": {"gemm": "mma", "conv": "implicit"},
    "wgmma": {"gemm": "wgmma", "conv": "implicit"},
    "tf32": {"gemm": "wgmma", "conv": "implicit", "math": "tf32"},
    "bf16": {"gemm": "wgmma", "conv": "implicit", "math": "bf16"},
}

TOLERANCES = {"float64": 1e-13, "tf32": 5e-3, "bf16": 3e-2}
"""Relative max norm of the logits: some hundred roundings of float64, operands of 11 and of 8 bits in up to
four layers; of all other ways some hundred roundings of float32."""
ELSE = 2e-6


def parameters_of(network: nn.Network, seed: int = 0) -> dict[str, np.ndarray]:
    """Initial weights, and biases that are not zero."""
    rng, values = np.random.default_rng(seed), initial_values(network, "float64", seed)
    return {name: values[name] + rng.normal(0, 0.1, shape) for name, shape in network.shapes.items()}


def images_of(network: nn.Network, count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *network.input_shape), np.uint8)


def expected_of(network: nn.Network, parameters: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """The reference's logits, in float64."""
    return reference.forward(parameters, images.reshape(len(images), -1) / 255.0, network)[1]


def error(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def require_logits(device: str, name: str, way: str, **changes: Any) -> None:
    """Compare the logits of random images with the reference's, each number twice, in turns."""
    network = NETS[name]
    parameters, images = parameters_of(network), images_of(network, max(NUMBERS))
    expected = expected_of(network, parameters, images)
    with open_runtime(join(), device) as runtime:
        inference = nn.Inference(network, parameters, runtime, BATCH, **WAYS[way], **changes)
        for count in (*NUMBERS, *NUMBERS):
            inference.outputs[:] = np.nan
            found = inference.logits(images[-count:])
            assert found.dtype == WAYS[way].get("dtype", "float32")
            assert error(found, expected[-count:]) < TOLERANCES.get(way, ELSE), count


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("way", ["auto", "float64"])
def test_logits_are_the_references_on_the_cpu(name: str, way: str) -> None:
    require_logits("cpu", name, way)


SOME = [
    *itertools.product(["dense"], ["auto", "wgmma", "tf32"]),
    *itertools.product(["one layer"], ["mma", "bf16"]),
    ("convolutions", "float64"),
]


@pytest.mark.parametrize(("name", "way"), few(SOME, of=list(itertools.product(NETS, WAYS))))
def test_logits_are_the_references_in_kernels(driver: Driver, name: str, way: str) -> None:
    require_logits(driver.name, name, way)


@pytest.mark.long
@pytest.mark.parametrize("name", few(["convolutions"], of=list(NETS)))
def test_logits_without_graphs_are_the_references_too(driver: Driver, name: str) -> None:
    require_logits(driver.name, name, "wgmma", graph=False)


@pytest.mark.parametrize("device", ["cpu", pytest.param("emulated", marks=pytest.mark.kernels)])
def test_a_call_reads_what_lies_there_and_allocates_nothing(device: str) -> None:
    network = NETS["convolutions"]
    parameters, images = parameters_of(network), images_of(network, 3 * BATCH)
    expected = expected_of(network, parameters, images)
    with open_runtime(join(), device) as runtime:
        inference = nn.Inference(network, parameters, runtime, BATCH)
        calls = {count: inference.bind(count) for count in (BATCH, 1)}
        ledger = runtime.driver.ledger
        before = ledger.device.total(), ledger.pinned.total()
        for start, count in ((0, BATCH), (BATCH, 1), (BATCH + 1, BATCH), (5, 1)):
            inference.pixels[:count] = images[start : start + count].reshape(count, -1)
            inference.outputs[:] = np.nan
            assert inference.bind(count) is calls[count]
            calls[count]()
            assert error(inference.outputs[:count], expected[start : start + count]) < ELSE
            assert np.isnan(inference.outputs[count:]).all()
        assert (ledger.device.total(), ledger.pinned.total()) == before


def test_an_emulated_call_is_one_graph(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is queued is the launch of a graph alone: copies and kernels are in it."""
    if driver.name != "emulated":
        pytest.skip("looks into the emulated device")
    network = NETS["dense"]
    with open_runtime(join(), "emulated") as runtime:
        inference = nn.Inference(network, parameters_of(network), runtime, BATCH)
        call = inference.bind(2)
        for name in ("copy_to_device", "copy_to_host", "launcher"):
            monkeypatch.setattr(type(runtime.driver), name, None)
        inference.pixels[:2] = images_of(network, 2)
        call()
        assert np.isfinite(inference.outputs[:2]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pixels_may_be_floats_and_of_any_scale(dtype: str) -> None:
    network = NETS["dense"]
    parameters, images = parameters_of(network), np.random.default_rng(2).normal(0, 1, (9, 33))
    images = images.astype(dtype)
    _, expected = reference.forward(parameters, images.astype(np.float64) / 0.5, network)
    with open_runtime(join(), "cpu") as runtime:
        made = nn.Inference(network, parameters, runtime, 4, pixels=dtype, dtype="float64", pixel_scale=0.5)
        assert error(made.logits(images), expected) < TOLERANCES["float64"]


def test_no_images_have_no_logits() -> None:
    network = NETS["dense"]
    with open_runtime(join(), "cpu") as runtime:
        made = nn.Inference(network, parameters_of(network), runtime)
        assert made.logits(np.zeros((0, 33), np.uint8)).shape == (0, 7)


def test_what_does_not_fit_is_refused() -> None:
    network = NETS["dense"]
    parameters = parameters_of(network)
    with open_runtime(join(), "cpu") as runtime:
        made = nn.Inference(network, parameters, runtime, BATCH)
        for count in (0, -1, BATCH + 1):
            with pytest.raises(
                ValueError, match=f"^{count} images at a time: there is room for 1 to {BATCH}$"
            ):
                made.bind(count)
        with pytest.raises(ValueError, match=r"^images of shape \(32,\): the network takes 33 pixels$"):
            made.logits(np.zeros((1, 32), np.uint8))
        with pytest.raises(TypeError, match="float32"):
            made.logits(np.zeros((1, 33), np.float32))
        others = {**parameters, "W2": np.zeros((7, 18))}
        with pytest.raises(
            UserError, match=r"^Inference: W2 has shape \(7, 18\), and 33-19-7.* needs \(7, 19"
        ):
            nn.Inference(network, others, runtime)
        del others["W2"]
        with pytest.raises(UserError, match=r"^Inference: there is no W2 among the parameters$"):
            nn.Inference(network, others, runtime)
        with pytest.raises(UserError, match="--batch 0"):
            nn.Inference(network, parameters, runtime, 0)
        with pytest.raises(UserError, match="--math bf16: goes with tensor cores, and cpu"):
            nn.Inference(network, parameters, runtime, math="bf16")


@pytest.mark.parallel([2])
def test_each_rank_works_for_itself() -> None:
    network = NETS["dense"]
    parameters = parameters_of(network)
    with open_runtime(join(), "cpu") as runtime:
        made = nn.Inference(network, parameters, runtime, 4)
        for _ in range(1 + runtime.job.rank):  # the ranks need not make the same calls
            images = images_of(network, 3 + runtime.job.rank, seed=runtime.job.rank)
            assert error(made.logits(images), expected_of(network, parameters, images)) < ELSE
