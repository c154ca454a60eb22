"""Layers of one's own, without a change in nn/: mpirun -n 2 python examples/own_layer.py [DEVICE]

Shows a layer with initial values of its own, a subclass of nn.Dense; and one that is made of two: W = U V of
low rank, a linear layer below one with an activation. Both train on every device and with every plan, for
they compute what nn.Dense computes. A layer that computes something else is not taken from outside: its
equations are a class like nn.Dense, its operations one like DenseOperations (nn/program/dense.py).
DEVICE is auto (the default), cuda, emulated or cpu.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nn
import pyrt

EPOCHS, RANK = 5, 24

with pyrt.start(*sys.argv[1:2]) as runtime:
    import numpy as np

    class Orthogonal(nn.Dense):
        """Begins with orthogonal weights (Saxe et al. 2014): they keep the lengths of what passes."""

        def initial(self, generator: np.random.Generator, inputs: tuple[int, ...]) -> dict[str, np.ndarray]:
            rows, columns = self.parameter_shapes(inputs)["W"]
            Q, _ = np.linalg.qr(generator.standard_normal((max(rows, columns), min(rows, columns))))
            return {"W": Q if rows >= columns else Q.T, "b": np.zeros(rows)}

    def low_rank(units: int, rank: int, activation: str) -> list[nn.Dense]:
        """A layer whose weights (units, inputs) are of this rank, in two factors."""
        return [Orthogonal(rank), Orthogonal(units, activation)]

    layers = [*low_rank(128, RANK, "relu"), Orthogonal(64, "tanh"), nn.Dense(10)]
    network = nn.Network((784,), layers, loss="softmax")
    with nn.Trainer(network, nn.Adam(lr=0.002), nn.load("embedded"), runtime, batch=400) as trainer:
        for epoch in trainer.epochs(EPOCHS):
            if runtime.job.rank == 0:
                print(f"epoch {epoch.epoch}: loss {epoch.loss:.4f}", flush=True)
        scores = trainer.evaluate()
        if runtime.job.rank == 0:
            whole = nn.Network.dense((784, 128, 64, 10), "relu", "softmax")
            counts = f"{network.parameter_count} parameters, not {whole.parameter_count}"
            print(f"{network}, {counts}: test accuracy {scores.precision:.4f}")
