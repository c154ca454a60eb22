"""One rank: it has all of every matrix, so nothing moves."""

from __future__ import annotations

from pyrt.arrays import DeviceArray
from pyrt.redistribute import Redistribution, RedistributionContext, require_fitting


class _Nothing:
    def start(self) -> None:
        pass

    def finish(self) -> None:
        pass


class LocalLinks:
    """Source and target are the same array."""

    name = "local"
    on_device = True

    def __init__(self, setting: RedistributionContext) -> None:
        self._setting = setting

    def bind(
        self, phase_name: str, move: Redistribution, source: DeviceArray, target: DeviceArray
    ) -> _Nothing:
        require_fitting(self._setting, move, source, target)
        if (source.pointer, source.ld) != (target.pointer, target.ld):
            raise ValueError("with one rank the source of a move is its target")
        return _Nothing()

    def close(self) -> None:
        pass
