"""The network and its arrays on this rank: the part of them that the plan gives it."""

from __future__ import annotations

import numpy as np

from nn import parameters
from nn.activations import Activations
from nn.launches import Kernels
from nn.machine import Machine
from nn.network import Network
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


def initial_parameters(options: Options, network: Network, job: Job) -> dict[str, np.ndarray]:
    """The values that all ranks start from. Collective."""
    values: dict[str, np.ndarray] = {}
    with job.together():
        if options.init is None:
            values = parameters.initial(network, options.dtype, options.seed)
        elif job.rank == 0:  # the file may be on this rank's node alone
            values = parameters.load(options.init, network, options.dtype)
            if options.evaluate:
                parameters.require_same_model(options.init, options.as_json())
    return values if options.init is None else job.comm.bcast(values)


class Model:
    """This rank's parameters on the device, and room for the activations of a ``batch``: to `start`."""

    def __init__(self, options: Options, part: RankPart, machine: Machine, batch: int) -> None:
        self.part, self.network = part, part.network
        self._job, self._kernels = machine.job, machine.kernels
        with machine.driver.ledger.of("weights"):
            self.parameters = Arena(machine.driver, Layout(part.shapes, options.dtype))
        self.terms = self._room_for_terms(machine, options)
        self.pool = TermsPool(machine.driver)
        most = part.plan.largest_group(batch)
        self.activations = Activations(self.parameters, part, most)

    @property
    def known(self) -> list[tuple[DeviceArray, Terms]]:
        """The weights that are there as terms, with these."""
        return [(self.parameters[f"W{layer}"], terms) for layer, terms in self.terms.items()]

    def start(self, values: dict[str, np.ndarray]) -> None:
        """Give all parameters these values, of which this rank takes its part."""
        self.parameters.set(self.part.cut(values))
        driver = self.parameters.flat.driver
        stream = driver.create_stream()
        for W, terms in self.known:
            assert self._kernels is not None
            self._kernels.tensor_cores.split((W, terms))(stream)
        driver.synchronize_stream(stream)

    def whole_parameters(self) -> dict[str, np.ndarray]:
        """All parameters, on rank 0; empty on others. Collective."""
        plan = self.part.plan
        mine = self.parameters.to_host() if self.part.group == 0 else None
        self._job.wait_for_all()
        if plan.is_data:
            return mine or {}
        parts = self._job.comm.gather(mine)
        return whole_parameters(plan, self.network, parts[: plan.shards]) if parts is not None else {}

    def _room_for_terms(self, machine: Machine, options: Options) -> dict[int, Terms]:
        """Terms of the weights of those layers whose products tensor cores take. The update keeps them.

        Not under --profile, where each operation is seen by itself.
        """
        kernels, result = machine.kernels, {}
        if kernels is None or not kernels.uses_terms or options.profile:
            return {}
        for layer in layers_with_terms(kernels, self.part):
            with machine.driver.ledger.of("weights", layer):
                W = self.parameters[f"W{layer}"]
                result[layer] = Terms.empty(machine.driver, kernels.terms, *W.shape)
        return result
