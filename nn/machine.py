"""What a network is trained with on this rank: its place in the job, device, streams, phases, kernels."""

from __future__ import annotations

from dataclasses import dataclass

from nn.launches import Kernels
from pyrt.driver import Driver
from pyrt.exchange.choose import Choice
from pyrt.job import Job
from pyrt.phases import Phases
from pyrt.streams import Streams


@dataclass(frozen=True)
class Machine:
    """What a network is trained with on this rank; ``kernels`` is None where NumPy computes."""

    job: Job
    driver: Driver
    streams: Streams
    phases: Phases
    kernels: Kernels | None
    exchange: Choice
