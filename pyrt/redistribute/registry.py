"""All that connects the ranks of a group, by name."""

from __future__ import annotations

from collections.abc import Callable

from pyrt.redistribute import RedistributionContext, Redistributor
from pyrt.redistribute.device import DeviceLinks
from pyrt.redistribute.host import HostLinks
from pyrt.redistribute.local import LocalLinks
from pyrt.redistribute.peer import PeerLinks

_MADE: dict[str, Callable[[RedistributionContext], Redistributor]] = {
    "host": HostLinks,
    "device": DeviceLinks,
    "peer": PeerLinks,
}


def create_links(name: str, setting: RedistributionContext) -> Redistributor:
    """Make the links of that name; ``local`` whatever the name where there is one rank.

    Collective. Raises UserError, on all ranks, where they cannot work here.
    """
    return LocalLinks(setting) if setting.job.size == 1 else _MADE[name](setting)
