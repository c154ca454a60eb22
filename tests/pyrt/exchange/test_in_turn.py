"""pyrt/exchange/in_turn.py: each bucket goes to the exchange whose it is; the last one ends the step."""

from __future__ import annotations

from collections.abc import Sequence

from pyrt.exchange import Bucket
from pyrt.exchange.in_turn import InTurn


class Told:
    """An exchange that notes what it is told."""

    def __init__(
        self, name: str, on_device: bool, notes: list[tuple[str, ...]], updates: Sequence[Bucket] = ()
    ) -> None:
        self.name, self.on_device, self._notes = name, on_device, notes
        self.updates = updates

    def ready(self, bucket: int) -> None:
        self._notes.append((self.name, f"ready {bucket}"))

    def finish(self) -> None:
        self._notes.append((self.name, "finish"))

    def close(self) -> None:
        self._notes.append((self.name, "close"))


def test_buckets_go_where_they_belong_and_the_last_exchange_is_finished_last() -> None:
    notes: list[tuple[str, ...]] = []
    one, two = Told("host", False, notes), Told("peer", True, notes)
    both = InTurn([([1, 3], one), ([0, 2], two)])
    for bucket in range(4):
        both.ready(bucket)
    both.finish()
    both.close()
    assert notes == [
        ("peer", "ready 0"),
        ("host", "ready 0"),
        ("peer", "ready 1"),
        ("host", "ready 1"),
        ("host", "finish"),
        ("peer", "finish"),
        ("host", "close"),
        ("peer", "close"),
    ]


def test_it_stays_on_the_device_where_all_do() -> None:
    assert not InTurn([([0], Told("a", True, [])), ([1], Told("b", False, []))]).on_device
    assert InTurn([([0], Told("a", True, [])), ([1], Told("b", True, []))]).on_device


def test_it_updates_what_they_update() -> None:
    one, two = Told("a", True, [], [Bucket(3, 5)]), Told("b", True, [], [Bucket(0, 3), Bucket(7, 9)])
    assert InTurn([([1], one), ([0, 2], two)]).updates == [Bucket(3, 5), Bucket(0, 3), Bucket(7, 9)]
