"""Parameter servers: some ranks hold the parameters, the others push gradients to them and pull.

    server 0   | apply 1 | apply 2 |          | apply 1 | ..        shard 0 of the parameters
    server 1     | apply 1 |        | apply 2 |  ..                 shard 1
                  ^      v            ^      v
    worker 1   | step | push, pull | step | push, pull | ..
    worker 2   | step           | push, pull | step    | ..

Li et al., Scaling Distributed Machine Learning with the Parameter Server, 2014. Each server holds a range of
the flat parameters, all of equal bytes, with what the optimiser keeps of it. A worker pushes the gradients of
its own samples, each shard as soon as its buckets are ready, and pulls what the shard is then. A server
applies gradients as they come. A bound on the staleness (pyrt/exchange/server/clocks.py) keeps fast workers
from running away; with 0 the servers wait for all workers, sum in their order and apply once: then training
is synchronous. docs/explain/asynchronous.md has the semantics.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyrt.errors import UserError
from pyrt.exchange import Bucket, Exchange, ExchangeContext, NoUpdate
from pyrt.exchange.facts import Facts, Traffic
from pyrt.exchange.server.message_memory import MessageMemory
from pyrt.exchange.server.roles import Roles, shards
from pyrt.exchange.server.serving import ServingExchange
from pyrt.exchange.server.working import WorkingExchange

NAME = "server"


def make(setting: ExchangeContext) -> Exchange:
    """Make the exchange of this rank, a server or a worker. Collective.

    Raises UserError, on all ranks, if a server would hold no parameters.
    """
    if isinstance(setting.update, NoUpdate) or not setting.asynchrony.servers:
        raise UserError(f"--exchange {NAME}: sums nothing: use host")
    roles = Roles(setting.job.size, setting.asynchrony.servers)
    ranges = shards(setting.parameters.size, setting.parameters.dtype.itemsize, roles.servers)
    if any(start == stop for start, stop in ranges):
        raise UserError(f"--servers {roles.servers}: one would hold no parameters: use fewer")
    memory = MessageMemory(setting, roles, ranges)
    with setting.job.agree():  # memory may end on one of them
        side = ServingExchange if roles.is_server(setting.job.rank) else WorkingExchange
        return side(setting, memory, roles, ranges)


def _traffic(buckets: Sequence[Bucket], ranks: int, rank: int, itemsize: int) -> Traffic:
    """Count one push of all numbers by a worker; what servers answer is as much again."""
    return Traffic(sum(bucket.stop - bucket.start for bucket in buckets), 1)


FACTS = Facts(
    NAME,
    "workers push gradients to parameter servers and pull parameters",
    make,
    _traffic,
    asynchronous=True,
)
