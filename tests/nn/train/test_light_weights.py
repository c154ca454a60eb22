"""--weights: inference with sparse weights, bytes and signs gives the logits that their definitions give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nn
from nn.app import pipeline
from nn.app.options import Options
from nn.files import parameters as files
from nn.input import load as load_data
from nn.launch import shapes
from nn.launch.binary import binarise, signs
from nn.launch.conv import convolution
from nn.launch.int8 import quantise
from nn.launch.sparse import FEW
from nn.model import reference
from nn.model.network import Network
from nn.program.light_weights import LightWeights
from nn.train import evaluation, latency
from nn.train.memory_needs import lines_of
from pyrt import clock
from pyrt.driver import Driver
from pyrt.errors import UserError
from pyrt.job import join
from pyrt.runtime import open_runtime
from tests import few, spread
from train import train

DENSE = Network(
    (33,), [nn.Dense(19, "tanh"), nn.Dropout(0.5), nn.Dense(67, "relu"), nn.Dense(21, "sigmoid"), nn.Dense(7)]
)
ONE_LAYER = Network((5,), [nn.Dense(3)])
CONVOLUTIONS = Network(
    (9, 11, 2),
    [
        *(nn.Conv2d(16, 3, padding="same", activation="relu"), nn.MaxPool2d(2)),
        *(nn.Conv2d(24, 2, stride=2, activation="tanh"), nn.Dense(13, "relu"), nn.Dense(4)),
    ],
    loss="sigmoid",
)


def on_both_devices(cases: Sequence[Any]) -> list[Any]:
    """Return each case on the CPU or in kernels, in turn; all on both where `LONG`."""
    kernels = pytest.mark.kernels
    return [
        pytest.param(*one, marks=[kernels] if one[0] == "emulated" else [])
        for one in spread(["cpu", "emulated"], cases, by=2)
    ]


NETWORKS = {"dense": DENSE, "one layer": ONE_LAYER, "convolutions": CONVOLUTIONS}

BATCH = 11
NUMBERS = (1, FEW, FEW + 1, BATCH, 2 * BATCH + 3)
"""Of images: kernels for few and for many, and chunks of which the last is short."""

SPARSE_ERROR = 1e-5
"""Relative max norm of float32 logits: some hundred roundings."""


def light_parameters(network: Network, values: int = 12, kept: float = 0.3) -> dict[str, np.ndarray]:
    """Weights of which few are left, and share values of both signs; biases that are not zero; float32."""
    rng, result = np.random.default_rng(0), {}
    for name, shape in network.shapes.items():
        book = rng.normal(0, 1.5 / np.sqrt(kept * shape[-1]), values)
        shared = rng.choice(book, shape) * (rng.random(shape) < kept)
        result[name] = (shared if name[0] == "W" else rng.normal(0, 0.1, shape)).astype(np.float32)
    return result


def trained_like(network: Network) -> dict[str, np.ndarray]:
    """Weights of which no two are alike."""
    rng = np.random.default_rng(1)
    return {
        name: rng.normal(0, 1 / np.sqrt(shape[-1]), shape).astype(np.float32)
        for name, shape in network.shapes.items()
    }


def images_of(network: Network, count: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, 256, (count, *network.input_shape), np.uint8)


def expected_of(network: Network, parameters: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """The dense reference's logits, in float64."""
    whole = {name: array.astype(np.float64) for name, array in parameters.items()}
    return reference.forward(whole, images.reshape(len(images), -1) / 255.0, network)[1]


def error(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def quantised(way: str, rows: np.ndarray) -> np.ndarray:
    """What rows become, float64: the definition."""
    shape, rows = rows.shape, rows.reshape(-1, rows.shape[-1])
    if way == "int8":
        numbers, scales = quantise(rows)
        return (numbers[:, : rows.shape[1]] * scales[:, None].astype(np.float64)).reshape(shape)
    bits, scales = binarise(rows)
    return (signs(bits, rows.shape[1]) * scales[:, None].astype(np.float64)).reshape(shape)


def defined(way: str, network: Network, parameters: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """Logits of a network of few bits, layer by layer in float64 by the definition."""
    A, number = images.reshape(len(images), *network.layer_shapes[0]) / 255.0, 0
    for layer in network.layers:
        if not isinstance(layer, nn.Dense | nn.Conv2d):
            A = layer.forward({}, A)
            continue
        number += 1
        A = rows_of(layer, A)
        W = parameters[f"W{number}"].reshape(-1, A.shape[-1])
        if way == "int8" or number not in (1, network.depth):
            A, W = quantised(way, A.astype(np.float32)), quantised(way, W)
        f, _ = reference.ACTIVATIONS[layer.function]
        A = f(A @ W.astype(np.float64).T + parameters[f"b{number}"])
    return A


def rows_of(layer: nn.Dense | nn.Conv2d, A: np.ndarray) -> np.ndarray:
    """What a layer multiplies with its weights: samples, or windows (samples, height, width, pixels)."""
    if isinstance(layer, nn.Dense):
        return A.reshape(len(A), -1)
    window = layer.window(A.shape[1:])
    size = window.rows + window.columns
    padded = np.pad(A, ((0, 0), (window.top, size), (window.left, size), (0, 0)))
    rows = np.empty((len(A), window.out_height, window.out_width, window.pixels))
    for y, x in np.ndindex(rows.shape[1:3]):
        top, left = y * window.stride, x * window.stride
        seen = padded[:, top : top + window.rows, left : left + window.columns]
        rows[:, y, x] = seen.reshape(len(A), -1)
    return rows


def require_logits(
    device: str,
    name: str,
    way: str,
    tolerance: float,
    numbers: Sequence[int] = few((*NUMBERS, 1), of=2 * NUMBERS),
    **changes: Any,
) -> None:
    """Compare the logits of so many random images with what they should be, each number of images in turn."""
    network, images = NETWORKS[name], images_of(NETWORKS[name], max(numbers))
    parameters = light_parameters(network) if way == "sparse" else trained_like(network)
    if way == "sparse":
        expected = expected_of(network, parameters, images)
    else:
        expected = defined(way, network, parameters, images)
    with open_runtime(join(), device) as runtime:
        inference = nn.Inference(network, parameters, runtime, BATCH, weights=way, **changes)
        for count in numbers:
            inference.outputs[:] = np.nan
            assert error(inference.logits(images[-count:]), expected[-count:]) < tolerance, count


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_of_sparse_weights_are_the_dense_references_on_the_cpu(name: str) -> None:
    require_logits("cpu", name, "sparse", SPARSE_ERROR)


FEW_BITS = [*(("int8", name) for name in NETWORKS), ("binary", "dense"), ("binary", "convolutions")]

BITS_ERROR = {"int8": 2e-3, "binary": 1e-5}
"""Relative max norm of the logits. Roundings of float32 may move an input to the next byte, by 1/127 of the
largest of some tens, in each of four layers; no sum is so near zero that they change a sign."""

WAYS: list[dict[str, Any]] = [
    {},
    {"gemm": "naive", "conv": "direct"},
    {"gemm": "mma", "conv": "implicit"},
    {"gemm": "wgmma", "conv": "implicit", "graph": False},
]


@pytest.mark.parametrize(("name", "changes"), spread(list(NETWORKS), WAYS, by=3), ids=str)
def test_logits_of_sparse_weights_are_the_dense_references_in_kernels(
    driver: Driver, name: str, changes: dict[str, Any]
) -> None:
    """Beside layers that stay dense, whatever makes their products."""
    require_logits(driver.name, name, "sparse", SPARSE_ERROR, **changes)


@pytest.mark.parametrize(("way", "name"), FEW_BITS)
def test_logits_of_few_bits_are_those_of_the_definition_on_the_cpu(way: str, name: str) -> None:
    require_logits("cpu", name, way, BITS_ERROR[way])


@pytest.mark.parametrize(("way", "name"), few([FEW_BITS[2], FEW_BITS[3]], of=FEW_BITS))
def test_logits_of_few_bits_are_those_of_the_definition_in_kernels(
    driver: Driver, way: str, name: str
) -> None:
    require_logits(driver.name, name, way, BITS_ERROR[way])


@pytest.mark.parametrize(("device", "kind"), on_both_devices([*FEW_BITS, ("sparse", "dense")]), ids=str)
def test_samples_and_windows_that_do_not_fit_a_launch_are_cut(
    monkeypatch: pytest.MonkeyPatch, device: str, kind: tuple[str, str]
) -> None:
    """Windows of one or two images at a time, whose rows take several launches of which the last is short."""
    way, name = kind
    window = CONVOLUTIONS.layer(1).window(CONVOLUTIONS.input_shape)
    monkeypatch.setattr(convolution, "WORKSPACE_BYTES", 2 * 4 * window.places * window.pixels)
    monkeypatch.setattr(shapes, "MAX_GRID_Y", 7)
    tolerance = SPARSE_ERROR if way == "sparse" else BITS_ERROR[way]
    require_logits(device, name, way, tolerance, few([FEW, BATCH + 3], of=(*NUMBERS, BATCH + 3)))


def test_bytes_are_near_the_dense_reference() -> None:
    """Each number is off by half of 1/127 of its row's largest at most; the sums of those by far less."""
    images, parameters = images_of(DENSE, 200), trained_like(DENSE)
    with open_runtime(join(), "cpu") as runtime:
        found = nn.Inference(DENSE, parameters, runtime, 200, weights="int8").logits(images)
    assert 1e-4 < error(found, expected_of(DENSE, parameters, images)) < 2e-2


def weights_on(driver: Driver, weights: str) -> dict[int | None, int]:
    """Bytes of weights on a device, by layer; None: of parameters that are not light."""
    with open_runtime(join(), driver.name) as runtime:
        parameters = light_parameters(DENSE, kept=0.05)
        nn.Inference(DENSE, parameters, runtime, BATCH, weights=weights).bind(BATCH)
        counts = runtime.driver.ledger.device
        return {row.layer: nbytes for row, nbytes in counts.items() if row.what == "weights"}


def test_a_device_has_no_dense_weights_beside_light_ones(driver: Driver) -> None:
    dense, sparse, binary = (weights_on(driver, weights) for weights in ("dense", "sparse", "binary"))
    biases = 256 * 3 + 512  # of 19, 67, 21 and 7 units, each from a multiple of 256 bytes on
    assert dense[None] > 4 * sum(np.prod(DENSE.matrix(layer)) for layer in DENSE.numbers)
    assert sparse.keys() == {None, *DENSE.numbers} and sparse[None] == biases
    ends = 4 * 19 * 33 + 4 * 7 * 21
    assert binary.keys() == {None, 2, 3} and biases + ends <= binary[None] < biases + ends + 2 * 256
    units, length = 67, 16  # bytes of 19 signs, filled up
    assert binary[2] == units * (length + 4)


def test_no_floats_or_components_of_light_weights_lie_anywhere(driver: Driver) -> None:
    network = Network((300,), [nn.Dense(310, "relu"), nn.Dense(320, "relu"), nn.Dense(10)])
    parameters, images = light_parameters(network, kept=0.02), images_of(network, 4)
    with open_runtime(join(), driver.name) as runtime:
        inference = nn.Inference(network, parameters, runtime, 4, weights="sparse", gemm="wgmma")
        found = inference.logits(images)
        assert runtime.driver.ledger.device.total() < 0.25 * sum(
            array.nbytes for array in parameters.values()
        )
    assert error(found, expected_of(network, parameters, images)) < SPARSE_ERROR


@pytest.mark.parametrize("values", [256, 257])
def test_weights_of_too_many_values_stay_dense(values: int) -> None:
    parameters = light_parameters(DENSE)
    W = parameters["W2"] = np.zeros_like(parameters["W2"])
    W.flat[3 : 3 + 4 * values : 4] = np.linspace(-1, 2, values)
    W[-1, -1] = -0.0  # zero too
    light, images = LightWeights.of("sparse", DENSE, parameters), images_of(DENSE, 5)
    assert light is not None
    assert set(light.layers) == ({1, 2, 3, 4} if values == 256 else {1, 3, 4})
    line = "layer 2 stays dense: 257 different values, at most 256 are shared"
    assert (line in light.text) == (values == 257)
    with open_runtime(join(), "cpu") as runtime:
        found = nn.Inference(DENSE, parameters, runtime, 5, weights="sparse").logits(images)
    assert error(found, expected_of(DENSE, parameters, images)) < SPARSE_ERROR


@pytest.mark.parametrize("inputs", [133144, 133145])
def test_sums_of_bytes_that_may_be_too_large_leave_a_layer_dense(inputs: int) -> None:
    light = LightWeights.of("int8", network := Network((inputs,), [nn.Dense(2)]), trained_like(network))
    assert light is not None and (1 in light.layers) == (inputs == 133144)
    assert ("too large for int32" in light.text) == (inputs == 133145)


@pytest.mark.parametrize("way", ["sparse", "int8", "binary"])
def test_units_without_weights_and_layers_without_any(way: str) -> None:
    """What a layer of zeros makes is its bias: nothing divides by a scale of zero."""
    parameters, images = light_parameters(DENSE), images_of(DENSE, 7)
    parameters["W1"][3] = 0
    parameters["W2"][:] = 0
    with open_runtime(join(), "cpu") as runtime:
        found = nn.Inference(DENSE, parameters, runtime, 7, weights=way).logits(images)
    alike = expected_of(DENSE, parameters, images)
    for logits in (alike, found):  # but for roundings: BLAS adds up the last rows in another order
        assert np.ptp(logits, axis=0).max() <= 4 * np.finfo(logits.dtype).eps * np.abs(logits).max()
    assert error(found, alike) < {"sparse": SPARSE_ERROR, "int8": 2e-2, "binary": 1}[way]


def save_parameters(network: Network, parameters: dict[str, np.ndarray], path: Path) -> None:
    """Write parameters as a run of train.py does."""
    options = Options(net=network.text, head=network.loss)
    files.save(path, parameters, {"options": options.as_json()})


def evaluated(path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """Evaluate a file by train.py; return the report and what was seen: logits and lines of memory."""
    seen: dict[str, Any] = {}

    def score(logits: np.ndarray, *rest: Any) -> Any:
        seen["logits"] = logits
        return evaluation.score(logits, *rest)

    def measured(inference: Any, *rest: Any) -> Any:
        found = latency.measure(inference, *rest)
        model = inference._model
        seen["lines"] = lines_of(model.driver.ledger, model.shard, model.parameters.layout)
        return found

    monkeypatch.setattr(pipeline, "score", score)
    monkeypatch.setattr(pipeline, "measure", measured)
    options = Options(evaluate=True, init=path, batch=20, **{"device": "cpu", **changes})
    return train(options, join()), seen


OF_RUNS = Network((12, 9, 1), [nn.Dense(17, "tanh"), nn.Dense(23, "tanh"), nn.Dense(10)])
DATA = "synthetic:12x9x1:10:330"


@pytest.mark.parallel(few([2], of=[1, 2]))
@pytest.mark.parametrize(("device", "suffix"), on_both_devices(["npz", "pyrtz"]))
def test_a_run_scores_sparse_weights_of_a_file(
    shared: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, device: str
) -> None:
    path, parameters = shared / f"run.{suffix}", light_parameters(OF_RUNS)
    if join().rank == 0:
        save_parameters(OF_RUNS, parameters, path)
    report, seen = evaluated(path, monkeypatch, data=DATA, device=device, weights="sparse")
    data = load_data(DATA)
    expected = expected_of(OF_RUNS, parameters, data.test_images)
    truth = evaluation.score(expected, data.test_labels, "softmax")
    assert (report.test.precision, report.test.top5) == (truth.precision, truth.top5)
    assert report.test.loss == pytest.approx(truth.loss, rel=1e-5)
    if join().rank == 0:
        assert error(seen["logits"], expected) < SPARSE_ERROR
        header = report.environment["header"]
        assert any(line.startswith("weights   sparse in layers 1, 2, 3: ") for line in header)


OF_IMAGES = Network(
    (12, 9, 1), [nn.Conv2d(4, 3, activation="tanh"), nn.MaxPool2d(2), nn.Conv2d(5, 2, stride=2), nn.Dense(10)]
)


SCORED: list[dict[str, Any]] = [{}, {"profile": True}, {"check_each": 1}, {"graph": False}]


@pytest.mark.parallel(few([2], of=[1, 2]))
@pytest.mark.parametrize(
    ("device", "changes"), on_both_devices(few([{"graph": False}, {"check_each": 1}], of=SCORED)), ids=str
)
def test_a_run_scores_convolutions_of_bytes(
    shared: Path, monkeypatch: pytest.MonkeyPatch, device: str, changes: dict[str, Any]
) -> None:
    parameters = trained_like(OF_IMAGES)
    if join().rank == 0:
        save_parameters(OF_IMAGES, parameters, shared / "run.npz")
    report, seen = evaluated(
        shared / "run.npz", monkeypatch, data=DATA, device=device, weights="int8", **changes
    )
    data = load_data(DATA)
    expected = defined("int8", OF_IMAGES, parameters, data.test_images)
    truth = evaluation.score(expected, data.test_labels, "softmax")
    assert (report.test.precision, report.test.top5) == (truth.precision, truth.top5)
    if join().rank == 0:
        assert error(seen["logits"], expected) < BITS_ERROR["int8"]


@pytest.mark.parametrize(("device", "weights"), on_both_devices(["sparse", "int8", "binary"]))
def test_latency_is_that_of_light_weights_in_memory_that_was_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, device: str
) -> None:
    monkeypatch.setattr(clock, "WARM_UP", 0.0)
    monkeypatch.setattr(clock, "SPAN", 0.05)
    save_parameters(OF_RUNS, light_parameters(OF_RUNS), tmp_path / "run.npz")
    given = {"data": DATA, "device": device, "weights": weights, "latency": 50}
    report, seen = evaluated(tmp_path / "run.npz", monkeypatch, **given)
    assert [one.images for one in report.latency] == [1, 32, 50]
    assert seen["lines"] == report.memory.lines
    assert all(line.device >= 0 for line in seen["lines"])


def test_light_weights_alone_are_told_to_the_memory_table(tmp_path: Path) -> None:
    save_parameters(OF_RUNS, light_parameters(OF_RUNS, kept=0.02), tmp_path / "run.npz")
    needs = {}
    for weights in ("dense", "sparse"):
        given = {"init": tmp_path / "run.npz", "data": DATA, "device": "cpu", "weights": weights}
        needs[weights] = train(Options(evaluate=True, memory=True, **given), join()).memory
    assert needs["sparse"].column("weights") < needs["dense"].column("weights")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"evaluate": False, "init": None}, "--weights int8: goes with --evaluate and --init FILE"),
        ({"plan": "model"}, "--weights int8: each rank has all of the weights: leave out --plan model"),
        ({"plan": "auto"}, "--weights int8: each rank has all of the weights: leave out --plan auto"),
        ({"export": "a.onnx"}, "--weights int8: --export writes dense weights: leave one of them out"),
        ({"dtype": "float64"}, "--weights int8: computes in float32: leave out --dtype float64"),
        ({"weights": "int4"}, "--weights int4: must be one of dense, sparse, int8, binary"),
    ],
    ids=str,
)
def test_mistakes_are_told_in_a_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as raised:
        Options(**{"evaluate": True, "init": Path("a.npz"), "weights": "int8", **given})
    assert str(raised.value) == line


def test_mistakes_in_programs_are_told_too() -> None:
    with open_runtime(join(), "cpu") as runtime:
        for given, line in (
            ({"weights": "int4"}, "--weights int4: must be one of dense, sparse, int8, binary"),
            ({"weights": "sparse", "dtype": "float64"}, "--weights sparse: computes in float32: leave out"),
        ):
            with pytest.raises(UserError, match=f"^{line}"):
                nn.Inference(ONE_LAYER, trained_like(ONE_LAYER), runtime, **given)
