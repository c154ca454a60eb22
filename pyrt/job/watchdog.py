"""Notices when another rank of this node is gone, and ends this one, and with it the job.

A rank that waits for another in a kernel, or in MPI, would wait for ever. So the ranks of a node keep
connections to each other: the system closes those of a process that ends, however it ends, and of no other;
one that is slow, or stopped, keeps its own. A thread waits for that.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from pyrt.errors import UserError
from pyrt.job.ending import end_from_thread

if TYPE_CHECKING:
    from mpi4py import MPI

_BYE = b"."  # what a rank sends before it leaves in good order
_TOKEN_BYTES = 16
_LAST_WAIT = 2.0
"""Seconds that a rank that leaves waits for the others to leave too."""
_LAST_WORK = 1.0
"""Seconds in which kernels that were told to give up, and this rank's last words, come to an end."""


class Watchdog:
    """Watches the other ranks of a communicator whose processes are on one machine."""

    def __init__(self, node: MPI.Comm, give_up: Callable[[], None]) -> None:
        """Collective. When a rank is gone, ``give_up`` is called, and then the job is ended with code 1: this
        process, and through MPI the others."""
        self._give_up = give_up
        self._peers = _connect(node)
        self._rank = node.rank
        self._wake, wakened = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, args=(wakened,), name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> bool:
        """Let the others know that this rank leaves in good order, and wait for them to, for a moment.

        Returns whether all have left. To be called once.
        """
        for peer in self._peers:
            with suppress(OSError):  # it left first
                peer.send(_BYE)
        self._thread.join(_LAST_WAIT)
        have_left = not self._thread.is_alive()
        with suppress(OSError):  # the thread has ended
            self._wake.send(_BYE)
        self._thread.join()
        self._wake.close()
        for peer in self._peers:
            peer.close()
        return have_left

    def _watch(self, wakened: socket.socket) -> None:
        with wakened, selectors.DefaultSelector() as selector:
            selector.register(wakened, selectors.EVENT_READ)
            for peer in self._peers:
                selector.register(peer, selectors.EVENT_READ)
            left = 0
            while left < len(self._peers):
                for key, _ in selector.select():
                    if key.fileobj is wakened:
                        return
                    if not _left_in_good_order(key.fileobj):
                        self._end()
                    selector.unregister(key.fileobj)
                    left += 1

    def _end(self) -> None:
        self._give_up()
        text = f"{os.path.basename(sys.argv[0])}: rank {self._rank} ends: another rank of its node is gone\n"
        with suppress(OSError):  # nobody need listen
            os.write(2, text.encode())
        time.sleep(_LAST_WORK)
        end_from_thread(1)  # ranks of other nodes too, which know of nothing


def _left_in_good_order(peer: object) -> bool:
    assert isinstance(peer, socket.socket)
    try:
        return peer.recv(1) == _BYE
    except OSError:
        return False


def _connect(node: MPI.Comm) -> list[socket.socket]:
    """Return a connection to each other rank: to those before this one, and from those behind it.

    They are local ones, which need no network. Collective. Raises UserError, on all ranks, where a rank
    finds no way to another: nobody waits for a connection that does not come.
    """
    token = node.bcast(secrets.token_bytes(_TOKEN_BYTES), 0)
    with socket.socket(socket.AF_UNIX) as server, ExitStack() as opened:
        name, obstacle = b"\0pyrt-" + secrets.token_hex(_TOKEN_BYTES).encode(), ""
        peers = []
        try:
            server.bind(name)  # a name in no file system: it goes with the socket
            server.listen(node.size)
        except OSError as error:
            obstacle = str(error)
        names = _agreed(node, name, obstacle)
        try:
            for other in names[: node.rank]:
                peers.append(opened.enter_context(socket.socket(socket.AF_UNIX)))
                peers[-1].connect(other)
                peers[-1].sendall(token)
        except OSError as error:
            obstacle = str(error)
        _agreed(node, name, obstacle)
        while len(peers) < node.size - 1:
            peer, _ = server.accept()
            if peer.recv(_TOKEN_BYTES, socket.MSG_WAITALL) == token:
                peers.append(peer)
            else:
                peer.close()  # somebody else's
        opened.pop_all()
    return peers


def _agreed(node: MPI.Comm, name: bytes, obstacle: str) -> list[bytes]:
    """Return the names of all ranks. Collective. Raises UserError, on all, where one has met an obstacle."""
    answers = node.allgather((name, obstacle))
    found = next((text for _, text in answers if text), "")
    if found:
        raise UserError(
            f"ranks of a node cannot connect to each other ({found}): start them in one network namespace "
            "(container), or use --exchange host"
        )
    return [name for name, _ in answers]
