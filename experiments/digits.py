"""Networks from a single neuron to hidden layers: what their weights and activations look like."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import figures, jobs
from experiments.study import Figure, Point, Row, Section, Setup, Table, Taken

if TYPE_CHECKING:
    import pandas as pd

    from pyrt.job import Job

TITLE = "Digits and activations"
QUESTION = (
    "What does a network see in a digit? A single neuron tells two digits apart; a linear classifier "
    "(--hidden none) has a neuron for each of the ten; hidden layers come between pixels and these. Each "
    "trains on the embedded digits (4,000, a tenth of them held out), float32, seed 0."
)
COLUMNS = (
    *("network", "classes", "hidden", "device", "threads"),
    *("epochs", "loss", "test_precision", "parameters"),
)

NEURON, LINEAR, HIDDEN = "single neuron", "linear classifier", "hidden layer"

PAIR = (3, 8)
"""The digits of the single neuron."""

UNITS = 32
"""Hidden units: few enough to look at."""

EPOCHS, BATCH, RATE = 20, 200, 0.5


def points(setup: Setup) -> list[Point]:
    return [
        {"network": network, "classes": classes, "hidden": hidden, "device": setup.device, "threads": 1}
        for network, classes, hidden in ((NEURON, 2, 0), (LINEAR, 10, 0), (HIDDEN, 10, UNITS))
    ]


def take(points: Sequence[Point], setup: Setup) -> Iterator[Taken]:
    return jobs.measured(__name__, points, setup)


def measure(point: Point, job: Job, folder: Path) -> list[Row]:
    """Train the network; leave its parameters, and what it makes of some test digits, in the folder."""
    from nn.app.options import Options
    from train import train

    data, name = "embedded", point["network"].replace(" ", "-")
    if point["classes"] == 2:
        data = str(_pair_of_digits(folder))
    weights = folder / f"{name}.npz"
    options = Options(
        hidden=(point["hidden"],) if point["hidden"] else (),
        data=data,
        device=point["device"],
        epochs=EPOCHS,
        batch=BATCH,
        lr=RATE,
        momentum=0.0,
        save=weights,
    )
    report = train(options, job)
    assert report.test is not None
    return [
        {
            "epochs": EPOCHS,
            "loss": report.epochs[-1].loss,
            "test_precision": report.test.precision,
            "parameters": report.environment["parameters"],
        }
    ]


def _pair_of_digits(folder: Path) -> Path:
    """Write the embedded digits of `PAIR` alone, as classes 0 and 1."""
    from nn.input import load

    data, path = load("embedded"), folder / "pair.npz"
    assert data.test_images is not None and data.test_labels is not None
    arrays: dict[str, Any] = {}
    for half, images, labels in (
        ("train", data.images, data.labels),
        ("test", data.test_images, data.test_labels),
    ):
        chosen = np.isin(labels, PAIR)
        arrays[f"x_{half}"] = images[chosen].reshape(-1, 28, 28)
        arrays[f"y_{half}"] = (labels[chosen] == PAIR[1]).astype(np.uint8)
    np.savez(path, **arrays)
    return path


def missing(setup: Setup) -> list[str]:
    return []


def section(rows: pd.DataFrame, setup: Setup) -> Section:
    result = Section()
    if not len(rows):
        return result
    images = _one_of_each()
    _draw_digits(images, setup, result)
    by_network = {row.network: row for row in rows.itertuples()}
    for network, draw in ((NEURON, _draw_neuron), (LINEAR, _draw_templates), (HIDDEN, _draw_hidden)):
        if network in by_network:
            draw(by_network[network], _weights(setup, network), images, setup, result)
    result.tables.append(_table(rows))
    return result


def _one_of_each() -> np.ndarray:
    """Return the first test image of each digit, (10, 784) in 0..1."""
    from nn.input import load

    data = load("embedded")
    assert data.test_images is not None and data.test_labels is not None
    firsts = [int(np.argmax(data.test_labels == digit)) for digit in range(10)]
    return data.test_images[firsts] / 255.0


def _weights(setup: Setup, network: str) -> dict[str, np.ndarray]:
    with np.load(setup.folder / f"{network.replace(' ', '-')}.npz") as file:
        return {name: file[name] for name in file.files if name != "run"}


def _draw_digits(images: np.ndarray, setup: Setup, result: Section) -> None:
    _grid(images, [str(digit) for digit in range(10)], 5, setup, "digits", colours="Greys")
    caption = (
        "One test image of each digit: 28 x 28 pixels, from 0 (white) to 1. A network takes them as 784 "
        "numbers."
    )
    result.figures.append(Figure("digits.png", caption))


def _draw_neuron(
    row: Any, weights: dict[str, np.ndarray], images: np.ndarray, setup: Setup, result: Section
) -> None:
    """Draw the weights of the neuron that two softmax units are: their difference."""
    w, b = weights["W1"][1] - weights["W1"][0], weights["b1"][1] - weights["b1"][0]
    _grid(w[None], [f"weights: {PAIR[1]} against {PAIR[0]}"], 1, setup, "neuron")
    chances = 1 / (1 + np.exp(-(images[list(PAIR)] @ w + b)))
    result.find(
        "neuron",
        f"A single neuron tells {PAIR[0]} from {PAIR[1]} in {row.test_precision:.1%} of the test images. "
        f"It gives the {PAIR[0]} and the {PAIR[1]} of figure digits a probability of being {PAIR[1]} of "
        f"{chances[0]:.3f} and {chances[1]:.3f}.",
    )
    caption = (
        f"The {len(w)} weights of a single neuron that tells {PAIR[1]} from {PAIR[0]}: pixels in red speak "
        f"for {PAIR[1]}, in blue for {PAIR[0]}. Its output is the sigmoid of their sum; it is the difference "
        "of the two units of a softmax without hidden layer."
    )
    result.figures.append(Figure("neuron.png", caption))


def _draw_templates(
    row: Any, weights: dict[str, np.ndarray], images: np.ndarray, setup: Setup, result: Section
) -> None:
    _grid(weights["W1"], [str(digit) for digit in range(10)], 5, setup, "templates")
    result.find(
        "templates",
        f"A linear classifier, one neuron for each digit, reaches a test precision of "
        f"{row.test_precision:.3f} with {row.parameters:,} parameters; its weights are templates of digits.",
    )
    caption = "Weights of a linear classifier, a template for each digit: red speaks for it, blue against."
    result.figures.append(Figure("templates.png", caption))


def _draw_hidden(
    row: Any, weights: dict[str, np.ndarray], images: np.ndarray, setup: Setup, result: Section
) -> None:
    """Draw the weights of the hidden units, and what they make of each digit."""
    from nn.model.reference import sigmoid

    W1 = weights["W1"]
    _grid(W1, [""] * len(W1), 8, setup, "hidden")
    caption = (
        f"Weights of the {len(W1)} hidden units after training. Pixels that are always white keep nearly the "
        "random weights that they began with."
    )
    result.figures.append(Figure("hidden.png", caption))
    A1 = sigmoid(images @ W1.T + weights["b1"])
    figure, axes = figures.canvas()
    shown = axes.imshow(A1, aspect="auto", cmap="cividis", vmin=0, vmax=1)
    axes.grid(False)
    axes.set_yticks(range(10))
    axes.set(xlabel="hidden unit", ylabel="digit")
    figure.colorbar(shown, ax=axes).set_label("activation")
    file = figures.save(figure, setup.folder, "activations")
    caption = (
        "Activations of the hidden units for one test image of each digit: a row is all that the output "
        "layer knows of it."
    )
    result.figures.append(Figure(file, caption))
    apart = np.linalg.norm(A1[:, None] - A1[None], axis=2) + 99 * np.eye(10)
    first, second = sorted(np.unravel_index(apart.argmin(), apart.shape))
    result.find(
        "activations",
        f"{len(W1)} hidden units reach a test precision of {row.test_precision:.3f}; of the ten images "
        f"those of {first} and {second} have the most similar activations.",
    )


def _grid(
    images: np.ndarray, titles: Sequence[str], columns: int, setup: Setup, name: str, colours: str = "RdBu_r"
) -> None:
    """Draw rows of 784 numbers as pictures; signed ones around a white zero, each by its own scale."""
    rows = -(-len(images) // columns)
    figure, all_axes = figures.canvas(rows, columns, squeeze=False)
    figure.set_size_inches(min(9.0, 2.2 * columns), min(9.0, 2.2 * columns) * rows / columns)
    for axes in all_axes.flat:
        axes.axis("off")
    for axes, image, title in zip(all_axes.flat, images, titles, strict=False):
        most = float(np.abs(image).max())
        axes.imshow(image.reshape(28, 28), cmap=colours, vmin=0 if colours == "Greys" else -most, vmax=most)
        axes.set_title(title, size=12)
    figures.save(figure, setup.folder, name)


def _table(rows: pd.DataFrame) -> Table:
    names = {
        "network": "network",
        "parameters": "parameters",
        "loss": "training loss",
        "test_precision": "test precision",
    }
    caption = (
        f"{EPOCHS} epochs, batch {BATCH}, learning rate {RATE:g}. The single neuron has two classes, "
        f"{PAIR[0]} and {PAIR[1]}; its two softmax units are one neuron, by their difference."
    )
    return Table(caption, rows[list(names)].rename(columns=names))
