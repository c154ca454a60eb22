"""Finds how sensitive each layer is to pruning: accuracy over the share kept, it alone pruned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nn.compress.prune import prune_share
from nn.compress.retraining import Parameters, Retraining
from nn.files.packages import need
from nn.files.write import write_whole
from nn.model.network import Network
from pyrt.tables import table

KEPT = (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02)
"""The shares of all weights of a layer that stay."""


@dataclass(frozen=True)
class Sensitivity:
    """Accuracy on the test set by layer, for each of the shares `KEPT`."""

    accuracy: dict[str, list[float]]

    def table(self, width: int | None) -> str:
        """Make a table: a row a share, a column a layer."""
        rows = [
            [f"{100 * kept:g}", *(found[i] for found in self.accuracy.values())]
            for i, kept in enumerate(KEPT)
        ]
        formats = ("", *[".4f"] * len(self.accuracy))
        return table(["kept %", *self.accuracy], rows, formats, (), width)


def scan(network: Network, parameters: Parameters, retraining: Retraining) -> Sensitivity:
    """Prune each layer alone, by magnitude, and score the network each time. Collective."""
    found: dict[str, list[float]] = {}
    with retraining.scoring() as score:
        for name in (f"W{layer}" for layer in network.numbers):
            pruned = ({**parameters, name: prune_share(parameters[name], 1 - kept)} for kept in KEPT)
            found[name] = [score(values).precision for values in pruned]
    return Sensitivity(found)


def draw(found: Sensitivity, path: Path) -> None:
    """Write the figure: a line a layer. Raises UserError where matplotlib is missing."""
    need("matplotlib", "--sensitivity")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, accuracy in found.accuracy.items():
        axes.plot([100 * kept for kept in KEPT], accuracy, marker="o", label=name)
    axes.set(xlabel="weights kept, %", ylabel="accuracy on the test set")
    axes.invert_xaxis()
    axes.legend()
    write_whole("--sensitivity", path, lambda file: figure.savefig(file, format="png", dpi=150))
