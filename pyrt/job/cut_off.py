"""Notices when a node is cut off from the others, and ends the job: MPI itself may wait for it for ever.

Each rank keeps a TCP connection: the first of a node to the first of the next node, round in a ring, the
others to the first of their node. Their kernels send each other probes and answer them whatever the processes
do: a rank that is slow or stopped keeps its connection. If no answer comes for a while, the link between the
nodes is down, or a node is. A rank that sees this tells the ranks that it is connected to, and these tell
others, so that all end, even those that mpirun no longer reaches.

A connection that is closed says nothing: that a rank has ended is known to mpirun. One that is reset says
that the node has started anew. Where nodes find no way to each other by TCP (IPv4), nothing is watched.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import socket
import struct
import threading
from contextlib import ExitStack, suppress
from math import nan
from typing import TYPE_CHECKING, NamedTuple

from pyrt.errors import UserError
from pyrt.job.ending import end_from_thread, print_error, program_name

if TYPE_CHECKING:
    from mpi4py import MPI

    from pyrt.job import Job

VARIABLE = "PYRT_NODE_TIMEOUT"
"""Environment variable: seconds without an answer after which the job ends; 0: it is never ended for that."""

LIMIT = 180.0
"""The default of `VARIABLE`, in seconds. MPI goes on by itself after a shorter outage."""

_LONGEST = 86400.0
"""The largest value of `VARIABLE`, in seconds: the kernel counts no more than some days."""

_PROBES = 10
"""The number of probes that the kernel sends within the limit; at most one a second."""

_CONNECTING = 2.0
"""Seconds for a connection to be made."""

_TOKEN_BYTES = 16
_RANK = struct.Struct("!i")
_CUT_OFF = b"!"
_SIOCGIFADDR = 0x8915
_OF_ONE_MACHINE = ("127.", "169.254.")


class _Place(NamedTuple):
    """The addresses and the port at which the first rank of a node takes connections; others have none."""

    node: str
    addresses: list[str]
    port: int


def watch_nodes(job: Job) -> None:
    """Watch, in a thread, whether nodes are cut off, until this process ends. Collective.

    For a job of several nodes. Raises UserError, on all ranks, if `VARIABLE` is no number.
    """
    with job.agree():
        mine = _limit()
    seconds: float = job.comm.bcast(mine)
    connections = _connect(job.comm, job.node) if seconds > 0 else None
    if connections is not None:
        for connection in connections:
            _probe(connection, seconds)
        threading.Thread(target=_watch, args=(connections, seconds), name="cut off", daemon=True).start()


def _limit() -> float:
    text = os.environ.get(VARIABLE, "") or str(LIMIT)
    try:
        seconds = float(text)
    except ValueError:
        seconds = nan
    if not 0 <= seconds <= _LONGEST:
        raise UserError(f"{VARIABLE}={text}: takes seconds, up to {_LONGEST:g}, or 0 for no limit")
    return seconds


def _connect(comm: MPI.Comm, node: MPI.Comm) -> dict[socket.socket, str] | None:
    """Return this rank's connections, each with the name of the node at its other end. Collective.

    None, on all ranks, where one finds no way to another: nobody waits for a connection that does not come.
    """
    token = comm.bcast(os.urandom(_TOKEN_BYTES))
    with ExitStack() as opened:
        server = _server(node.size) if node.rank == 0 else None
        mine = _Place(socket.gethostname(), [], 0)
        if server is not None:
            opened.enter_context(server)
            mine = mine._replace(addresses=_addresses(), port=server.getsockname()[1])
        places: list[_Place] = comm.allgather(mine)
        to = places[_partner(comm.rank, node.bcast(comm.rank), places)]
        made = _connected(to, token + _RANK.pack(comm.rank))
        if not all(comm.allgather(made is not None)):
            return None
        found = {made: to.node} if made is not None else {}
        if server is not None:
            found |= {peer: places[rank].node for peer, rank in _accepted(server, node.size, token)}
        if not all(comm.allgather(len(found) == (1 if server is None else 1 + node.size))):
            return None
    return found


def _server(ranks: int) -> socket.socket | None:
    """Take connections, of so many ranks; None where that cannot be."""
    try:
        return socket.create_server(("", 0), backlog=ranks)
    except OSError:
        return None


def _partner(rank: int, first: int, places: list[_Place]) -> int:
    """Return the rank that a rank connects to; ``first`` is the first one of its node."""
    if rank != first or not places[first].port:
        return first
    firsts = [rank for rank, place in enumerate(places) if place.port]
    return firsts[(firsts.index(first) + 1) % len(firsts)]


def _addresses() -> list[str]:
    """List the IPv4 addresses of this machine that other machines can use."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has none
                answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [address for address in found if not address.startswith(_OF_ONE_MACHINE)]


def _connected(place: _Place, greeting: bytes) -> socket.socket | None:
    """Connect to a rank, by the first of its addresses that is reached; None where none is."""
    for address in place.addresses:
        with suppress(OSError):
            made = socket.create_connection((address, place.port), _CONNECTING)
            made.sendall(greeting)
            return made
    return None


def _accepted(server: socket.socket, count: int, token: bytes) -> list[tuple[socket.socket, int]]:
    """Take so many connections of ranks that know the token, each with its rank; fewer if not all come."""
    taken: list[tuple[socket.socket, int]] = []
    server.settimeout(_CONNECTING)
    with suppress(OSError):
        while len(taken) < count:
            peer, _ = server.accept()
            peer.settimeout(_CONNECTING)
            greeting = peer.recv(_TOKEN_BYTES + _RANK.size, socket.MSG_WAITALL)
            if greeting.startswith(token):
                taken.append((peer, *_RANK.unpack(greeting[_TOKEN_BYTES:])))
            else:
                peer.close()  # somebody else's
    return taken


def _probe(connection: socket.socket, seconds: float) -> None:
    """Let the kernel ask the other end whether it is there, and give up after so many seconds."""
    pause = max(1, round(seconds / _PROBES))
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        connection.setsockopt(socket.IPPROTO_TCP, name, pause)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, round(seconds / pause) - 1))


def _watch(connections: dict[socket.socket, str], seconds: float) -> None:
    """Wait until a connection fails, or another rank says that one has; forget those that are closed."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                if _is_cut_off(key.fileobj, connections[key.fileobj], seconds):
                    _end(connections)
                selector.unregister(key.fileobj)


def _is_cut_off(connection: socket.socket, node: str, seconds: float) -> bool:
    """Return whether this connection has failed, and say so, or whether the other end tells that one has."""
    try:
        return connection.recv(1) == _CUT_OFF
    except OSError as error:  # no answer, or the node has restarted and does not know the connection
        print_error(
            program_name(),
            f"{node} no longer answers {socket.gethostname()} ({error.strerror}): the link between them, or "
            f"one of them, is or was down; ${VARIABLE} sets the limit of {seconds:g} s, 0 none",
        )
        return True


def _end(connections: dict[socket.socket, str]) -> None:
    """Tell the ranks that this one is connected to, and end."""
    for connection in connections:
        with suppress(OSError):  # it has ended
            connection.send(_CUT_OFF, socket.MSG_DONTWAIT)
    end_from_thread(1)
