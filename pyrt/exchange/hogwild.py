"""Without locks: each rank updates shared parameters with its own gradients, and waits for nobody.

    rank 0, compute   | step | update, push, pull | step    | update, push, pull | ..
    rank 1, compute   | step       | update, push, pull | step      | update, push, pull | ..
                               shared parameters: p += what the update has changed

Niu et al., Hogwild!: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent, 2011. A rank updates
its own parameters by the rule of the optimiser, whose state is its own, and adds the difference where the
shared ones lie; then it takes what is there. Others have changed that since it last did: its gradients are
stale by as many updates. Plain stores lose an update where two ranks add to a number at once; atomic adds
lose none.
docs/explain/asynchronous.md has the semantics.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyrt.errors import UserError
from pyrt.exchange import Bucket, ExchangeContext, NoUpdate, UpdateCounts
from pyrt.exchange.facts import NO_TRAFFIC, Facts, Traffic
from pyrt.exchange.shared_parameters import SharedParameters


class HogwildExchange:
    """Updates all buckets once they are ready, pushes and pulls; no sum is made."""

    name = "hogwild"
    on_device = True

    def __init__(self, setting: ExchangeContext) -> None:
        """Collective. Raises UserError, on all ranks, where they do not reach each other's memory."""
        if setting.node.size < setting.job.size:
            raise UserError(f"--exchange {self.name}: for the ranks of one node: use host")
        if isinstance(setting.update, NoUpdate):
            raise UserError(f"--exchange {self.name}: sums nothing: use host")
        self.updates: Sequence[Bucket] = setting.buckets
        self._compute = setting.streams.compute
        self._step = setting.phases.phase("step", self._compute)
        self._push = setting.phases.phase("push and pull", self._compute)
        self._meeting = setting.phases.phase("wait for all workers")
        with setting.job.agree():  # memory may end on one of them
            self._update = setting.update.bind(*setting.buckets, ends_step=True)
            refresh = setting.update.refresh()
        self._shared = SharedParameters(setting, refresh)

    def ready(self, bucket: int) -> None:
        pass

    def finish(self) -> None:
        with self._step:
            self._update(self._compute)
        with self._push:
            self._shared.push(self._compute)

    def begin(self) -> None:
        """See `Asynchronous.begin`."""
        self._shared.begin()

    def meet(self) -> None:
        """See `Asynchronous.meet`."""
        with self._meeting:
            self._shared.meet()

    def count(self) -> UpdateCounts:
        """See `Asynchronous.count`."""
        return self._shared.count()

    def close(self) -> None:
        self._shared.close()


def _traffic(buckets: Sequence[Bucket], ranks: int, rank: int, itemsize: int) -> Traffic:
    """Count one push of all numbers; they lie with rank 0."""
    size = sum(bucket.stop - bucket.start for bucket in buckets)
    return Traffic(size, 1) if rank > 0 else NO_TRAFFIC


FACTS = Facts(
    HogwildExchange.name,
    "workers update shared parameters without waiting; results differ from run to run",
    HogwildExchange,
    _traffic,
    on_device=HogwildExchange.on_device,
    asynchronous=True,
)
