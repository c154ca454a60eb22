"""The network and its arrays on this rank."""

from __future__ import annotations

import numpy as np

from nn import parameters
from nn.data import Dataset
from nn.machine import Machine
from nn.network import Network
from nn.options import Options
from nn.step import Activations
from pyrt.job import Job
from pyrt.memory import Arena, Layout


class Model:
    """Parameters on the device, with the values they start from, and room for the activations of ``rows``
    samples. Collective; to be made within ``job.together()``."""

    def __init__(self, options: Options, dataset: Dataset, machine: Machine, rows: int) -> None:
        inputs, classes = dataset.images.shape[1], dataset.classes
        self.network = Network((inputs, *options.hidden, classes), options.activation, options.head)
        self.initial = self._start(options, machine.job)
        self.parameters = Arena(machine.driver, Layout(self.network.shapes, options.dtype))
        self.parameters.set(self.initial)
        self.activations = Activations(self.parameters, self.network, rows)

    def _start(self, options: Options, job: Job) -> dict[str, np.ndarray]:
        if options.init is None:
            return parameters.initial(self.network, options.dtype, options.seed)
        values: dict[str, np.ndarray] = {}
        with job.together():
            if job.rank == 0:  # the file may be on this rank's node alone
                values = parameters.load(options.init, self.network, options.dtype)
                if options.evaluate:
                    parameters.require_same_model(options.init, options.as_json())
        return job.comm.bcast(values)
