"""The network and its arrays on this rank."""

from __future__ import annotations

import numpy as np

from nn import parameters
from nn.data import Dataset
from nn.machine import Machine
from nn.network import Network
from nn.options import Options
from nn.step import Activations
from nn.tensor_cores import Terms, TermsPool
from pyrt.job import Job
from pyrt.memory import Arena, DeviceArray, Layout


class Model:
    """Parameters on the device, with the values they start from, and room for the activations of ``rows``
    samples. Collective; to be made within ``job.together()``."""

    def __init__(self, options: Options, dataset: Dataset, machine: Machine, rows: int) -> None:
        inputs, classes = dataset.images.shape[1], dataset.classes
        self.network = Network((inputs, *options.hidden, classes), options.activation, options.head)
        self.initial = self._start(options, machine.job)
        self.parameters = Arena(machine.driver, Layout(self.network.shapes, options.dtype))
        self.parameters.set(self.initial)
        self.terms = self._split_weights(machine, options)
        self.pool = TermsPool(machine.driver)
        self.activations = Activations(self.parameters, self.network, rows)

    @property
    def known(self) -> list[tuple[DeviceArray, Terms]]:
        """The weights that are there as terms, with these."""
        return [(self.parameters[f"W{layer}"], terms) for layer, terms in self.terms.items()]

    def _split_weights(self, machine: Machine, options: Options) -> dict[int, Terms]:
        """Terms of the weights of those layers whose products tensor cores take. The update keeps them.

        Not under --profile, where each operation is seen by itself.
        """
        kernels, result = machine.kernels, {}
        if kernels is None or not kernels.uses_terms or options.profile:
            return {}
        stream = machine.driver.create_stream()
        for layer in self.network.layers:
            units, inputs = self.network.shapes[f"W{layer}"]
            narrow = layer == self.network.depth and kernels.prefers_narrow_head(inputs, units)
            if not narrow and kernels.prefers_terms(units, units, inputs):
                W = self.parameters[f"W{layer}"]
                result[layer] = Terms.empty(machine.driver, kernels.terms, *W.shape)
                kernels.tensor_cores.split((W, result[layer]))(stream)
        machine.driver.synchronize_stream(stream)
        return result

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
