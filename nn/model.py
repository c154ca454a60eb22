"""The network and its arrays on this rank: the part of them that the plan gives it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nn import parameters
from nn.activations import Activations
from nn.launches import Kernels
from nn.machine import Machine
from nn.options import Options
from nn.plan import RankPart, whole_parameters
from nn.tensor_cores import Terms, TermsPool
from pyrt.job import Job
from pyrt.memory import Arena, DeviceArray, Layout


def layers_with_terms(kernels: Kernels, part: RankPart) -> list[int]:
    """The layers whose products read their weights as terms."""
    result = []
    for layer in part.network.layers:
        units, inputs = part.shapes[f"W{layer}"]
        ends = layer == part.network.depth and part.plan.is_data
        narrow = ends and kernels.prefers_narrow_head(inputs, units)
        if not narrow and kernels.prefers_terms(units, units, inputs):
            result.append(layer)
    return result


class Model:
    """This rank's parameters on the device, the values that all start from, and room for the activations of a
    ``batch``. Collective; to be made within ``job.together()``."""

    def __init__(
        self,
        options: Options,
        part: RankPart,
        machine: Machine,
        batch: int,
        resumed: Mapping[str, np.ndarray] | None,
    ) -> None:
        """``resumed`` are whole parameters of a checkpoint to go on from, if there is one."""
        self.part, self.network = part, part.network
        self._job = machine.job
        self.initial = self._start(options, machine.job)
        self.parameters = Arena(machine.driver, Layout(part.shapes, options.dtype))
        self.parameters.set(part.cut(self.initial if resumed is None else dict(resumed)))
        self.terms = self._split_weights(machine, options)
        self.pool = TermsPool(machine.driver)
        most = part.plan.largest_group(batch)
        self.activations = Activations(self.parameters, part, most)

    @property
    def known(self) -> list[tuple[DeviceArray, Terms]]:
        """The weights that are there as terms, with these."""
        return [(self.parameters[f"W{layer}"], terms) for layer, terms in self.terms.items()]

    def whole_parameters(self) -> dict[str, np.ndarray]:
        """All parameters, on rank 0; empty on others. Collective."""
        plan = self.part.plan
        mine = self.parameters.to_host() if self.part.group == 0 else None
        self._job.wait_for_all()
        if plan.is_data:
            return mine or {}
        parts = self._job.comm.gather(mine)
        return whole_parameters(plan, self.network, parts[: plan.shards]) if parts is not None else {}

    def _split_weights(self, machine: Machine, options: Options) -> dict[int, Terms]:
        """Terms of the weights of those layers whose products tensor cores take. The update keeps them.

        Not under --profile, where each operation is seen by itself.
        """
        kernels, result = machine.kernels, {}
        if kernels is None or not kernels.uses_terms or options.profile:
            return {}
        stream = machine.driver.create_stream()
        for layer in layers_with_terms(kernels, self.part):
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
