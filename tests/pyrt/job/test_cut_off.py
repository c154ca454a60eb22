"""A rank and its connections to other nodes, without nodes. Links that are cut: tests/cluster."""

from __future__ import annotations

import socket
import subprocess
import sys

from tests.mpi import environment

WATCHES = """
import socket, sys
from pyrt.job.cut_off import _watch

ports = map(int, sys.argv[1:])
connections = {socket.create_connection(("127.0.0.1", port)): f"node{i}" for i, port in enumerate(ports)}
print("watches", flush=True)
_watch(connections, 5.0)
print("watches nothing more")
"""
"""A rank with connections to these ports."""


class Rank:
    """A process that watches two connections, and their other ends."""

    def __init__(self) -> None:
        servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        ports = [str(server.getsockname()[1]) for server in servers]
        self._process = subprocess.Popen(
            [sys.executable, "-c", WATCHES, *ports],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.others = [server.accept()[0] for server in servers]
        for server in servers:
            server.close()
        assert self._process.stdout is not None and self._process.stdout.readline() == "watches\n"

    def end(self) -> tuple[int, str, str]:
        """Return its exit code, and what it printed on standard output and error."""
        out, err = self._process.communicate(timeout=30)
        for other in self.others:
            other.close()
        return self._process.returncode, out, err


def test_ranks_that_end_are_forgotten() -> None:
    rank = Rank()
    for other in rank.others:
        other.close()
    assert rank.end() == (0, "watches nothing more\n", "")


def test_a_node_that_has_started_anew_ends_the_rank_and_it_tells_the_others() -> None:
    rank = Rank()
    rank.others[1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset, not closed
    rank.others[1].close()
    assert rank.others[0].recv(1) == b"!"
    code, _, error = rank.end()
    assert code == 1
    assert error.startswith("-c: error: node1 no longer answers ")
    assert " (Connection reset by peer): " in error and error.count("\n") == 1


def test_a_rank_that_is_told_ends_and_tells_the_others() -> None:
    rank = Rank()
    rank.others[0].sendall(b"!")
    assert rank.others[1].recv(1) == b"!"
    code, out, error = rank.end()
    assert (code, out, error) == (1, "", "")
