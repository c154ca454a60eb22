"""The plan of a run: what the user asked for by a word, or by a file."""

from __future__ import annotations

from pathlib import Path

from nn.network import Network
from nn.options import Options
from nn.plan import Plan, files
from pyrt.errors import UserError


def choose_plan(options: Options, network: Network, ranks: int) -> Plan:
    """Of ``--plan`` and ``--grid``. UserError where it does not fit the network or the ranks."""
    plan = _asked(options, network, ranks)
    plan.require_fits(network, ranks)
    return plan


def _asked(options: Options, network: Network, ranks: int) -> Plan:
    if options.plan == "data":
        return Plan.data(ranks, network.depth)
    if options.plan == "model":
        groups, shards = map(int, options.grid.split("x")) if options.grid else (1, ranks)
        if groups * shards != ranks:
            raise UserError(f"--grid {options.grid}: is for {groups * shards} ranks, not {ranks}")
        return Plan.model(groups, shards, network.depth)
    return files.load(Path(options.plan))
