"""Operations but products and convolutions: how fast they reach memory, and the least that one takes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import cast

from nn.autotune.cost import is_pass, kind
from nn.autotune.listed_step import ListedStep, kernels_on
from nn.autotune.probe.clock import Clock, medians
from nn.autotune.probe.context import Extent, ProbeContext
from nn.autotune.probe.lender import Lender
from nn.model.net_text import make_network
from nn.optimisers import Sgd
from nn.parallel.plan import Plan
from nn.program import operations
from nn.program.operations import Operation
from nn.program.step import bound
from pyrt.arrays import DeviceArray
from pyrt.driver import Driver


def pass_rates(setting: ProbeContext, extent: Extent) -> tuple[float, dict[str, float]]:
    """Seconds of the smallest operation, and GB/s of those of steps that are `is_pass`, by kind.

    Of several of a kind that which moves most counts. Collective.
    """
    clock = Clock(setting.driver, setting.job)
    seconds: dict[str, tuple[int, float]] = {}
    for net, image, batch in extent.steps:
        with closing(Lender(setting.driver)) as lender:
            driver = cast(Driver, lender)
            kernels = kernels_on(driver, setting.task)
            network = make_network(net, image, 10, "softmax")
            task = replace(setting.task, network=network, batch=batch, optimiser=Sgd(momentum=0.0))
            data = Plan.data(1, network.depth)
            # Under other plans some operations are not fused that are here.
            steps = [ListedStep(task, data, driver, fused) for fused in dict.fromkeys((kernels, None))]
            for operation in (item for step in steps for item in (*step.items, step.update(True))):
                if not isinstance(operation, Operation) or not is_pass(operation.work):
                    continue
                name, nbytes = kind(operation), operation.bytes
                if nbytes > seconds.get(name, (0, 0.0))[0]:
                    work = bound(replace(operation, starts_early=False), kernels)
                    seconds[name] = nbytes, clock.seconds(work)
    least, *taken = medians(setting.job, [_least(setting), *(took for _, took in seconds.values())])
    return least, {
        name: nbytes * 1e-9 / (took - least)
        for (name, (nbytes, _)), took in zip(seconds.items(), taken, strict=True)
        if took > 1.5 * least  # else nothing is known but that it is small
    }


def _least(setting: ProbeContext) -> float:
    """Seconds of an operation that does next to nothing."""
    with closing(Lender(setting.driver)) as lender:
        driver = cast(Driver, lender)
        Z, b = (DeviceArray.empty(driver, shape, setting.task.dtype) for shape in ((4, 8), (8,)))
        operation = operations.bias_activation("least", Z, b, "identity")
        work = bound(operation, kernels_on(driver, setting.task))
        return Clock(setting.driver, setting.job).seconds(work)
