"""Sums of an array over ranks, by every exchange of gradients: blocking, or started and finished."""

from __future__ import annotations

from pyrt.arrays import DeviceArray
from pyrt.driver import Driver
from pyrt.exchange import Bucket, ExchangeContext, NoUpdate
from pyrt.exchange.choose import ExchangeChoice
from pyrt.exchange.registry import create_exchange
from pyrt.phases import Phases
from pyrt.streams import Streams


class AllReduce:
    """The sum of one array over the ranks of a job, in its place."""

    def __init__(
        self, driver: Driver, streams: Streams, phases: Phases, choice: ExchangeChoice, array: DeviceArray
    ) -> None:
        """``array`` (n,) of float32 or float64, as long on every rank.

        Collective. Raises UserError, on all ranks, where the exchange cannot work here.
        """
        self._choice = choice
        setting = ExchangeContext(
            driver,
            streams,
            choice.job,
            choice.node,
            phases,
            array,
            array,
            [Bucket(0, array.size)],
            NoUpdate(),
        )
        self._exchange = create_exchange(choice.name, setting)

    @property
    def name(self) -> str:
        """The exchange that sums."""
        return self._exchange.name

    def start(self) -> None:
        """Begin once the kernels that write the array are queued on the compute stream; nobody waits.

        Until `finish` has been called nothing may read the array or write it.
        """
        self._exchange.ready(0)

    def finish(self) -> None:
        """End the sum: what is queued on the compute stream from here on finds it in the array."""
        self._exchange.finish()

    def __call__(self) -> None:
        """Start and finish."""
        self.start()
        self.finish()

    def close(self) -> None:
        """Free what is shared with other processes. Collective."""
        self._exchange.close()
        self._choice.close()
