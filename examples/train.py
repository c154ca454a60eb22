"""A training loop of one's own: mpirun -n 4 python examples/train.py [DEVICE]

The network, the optimiser and the data are objects; the trainer puts them on the devices of this job, and
yields a record for each epoch. Every rank runs the same program: each line with the trainer is collective.
DEVICE is auto (the default), cuda, emulated or cpu; without mpirun there is one rank.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import nn
import pyrt

EPOCHS = 5

network = nn.Network((784,), [nn.Dense(128, "relu"), nn.Dense(64, "tanh"), nn.Dense(10)], loss="softmax")

with pyrt.start(*sys.argv[1:2]) as runtime:
    data = nn.load("embedded")
    with nn.Trainer(network, nn.Adam(lr=0.002), data, runtime, batch=500) as trainer:
        first = trainer.step()
        if runtime.job.rank == 0:
            print(f"{network} on {runtime.job.size} rank(s): loss of the first step {first:.4f}")
        for epoch in trainer.epochs(EPOCHS):
            if runtime.job.rank == 0:
                print(f"epoch {epoch.epoch}: loss {epoch.loss:.4f}, accuracy {epoch.accuracy:.4f}")
        scores = trainer.evaluate()
        if runtime.job.rank == 0:
            print(f"test accuracy {scores.precision:.4f}")
