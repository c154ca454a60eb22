"""The cluster itself: namespaces, the network's rate, delay and loss, and that nothing of it stays behind."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import mpi
from tests.cluster.cluster import Cluster, obstacle
from tests.pyrt.job.test_job import is_gone, wait_until

SERVER = """
import socket
server = socket.create_server(("", 5000))
print("listening", flush=True)
peer, _ = server.accept()
while data := peer.recv(1 << 20):
    peer.sendall(data[-1:])
"""
"""Answers each part of what it gets by its last byte."""

CLIENT = """
import socket, sys, time
peer = socket.create_connection(("node1", 5000))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
size, times = int(sys.argv[1]), []
for _ in range(int(sys.argv[2])):
    started = time.perf_counter()
    peer.sendall(bytes(size - 1) + b"!")
    while not peer.recv(1 << 16).endswith(b"!"):
        pass
    times.append(time.perf_counter() - started)
print(*times)
"""
"""Sends so many bytes so many times; prints the seconds of each until the last of them was answered."""


def seconds(cluster: Cluster, size: int, count: int) -> list[float]:
    """Time messages of so many bytes from node 0 to node 1, each answered by a byte."""
    server = cluster.popen(1, f"{sys.executable} -c {shlex.quote(SERVER)}")
    assert server.stdout is not None and server.stdout.readline() == "listening\n"
    printed = cluster.on(0, f"{sys.executable} -c {shlex.quote(CLIENT)} {size} {count}")
    server.wait()
    server.stdout.close()
    return [float(word) for word in printed.split()]


def test_nodes_share_files_and_nothing_else(nodes: Cluster) -> None:
    names = [nodes.on(node, "hostname").strip() for node in (0, 1)]
    assert names == ["node0", "node1"]
    namespaces = [nodes.on(node, "readlink /proc/self/ns/*").split() for node in (0, 1)]
    own = [os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))]
    for kind in ("ipc", "mnt", "net", "pid", "uts"):
        each = {next(name for name in of if name.startswith(kind)) for of in (*namespaces, own)}
        assert len(each) == 3, each
    nodes.on(0, "touch /dev/shm/here")
    assert "here" not in nodes.on(1, "ls /dev/shm") + " ".join(os.listdir("/dev/shm"))
    assert "10.0.0" not in subprocess.run(["ip", "address"], capture_output=True, text=True).stdout


def test_a_link_has_a_rate_and_a_delay(nodes: Cluster) -> None:
    """Lower bounds: on a busy machine everything takes longer."""
    nodes.link(gbit=0.1, delay=20e-3)
    assert min(seconds(nodes, 1, 5)) > 40e-3
    size = 1_000_000
    assert min(seconds(nodes, size, 2)) > 40e-3 + size * 8 / 0.1e9
    nodes.link()
    assert min(seconds(nodes, 1, 20)) < 20e-3


@pytest.mark.long
def test_a_link_loses_frames(nodes: Cluster) -> None:
    """TCP sends them again, after 200 ms where no later one tells it."""
    nodes.link(loss=0.1)
    times = seconds(nodes, 1, 60)
    assert max(times) > 0.2 > min(times)
    nodes.link()
    assert min(seconds(nodes, 1, 20)) < 0.1


def test_a_cut_link_carries_nothing_until_it_is_mended(nodes: Cluster) -> None:
    nodes.cut(1)
    ask = f"{sys.executable} -c 'import socket; socket.create_connection((\"node1\", 5000), 1)'"
    assert "TimeoutError" in nodes.on(0, f"{ask} 2>&1 || true")
    nodes.join(1)
    assert "ConnectionRefusedError" in nodes.on(0, f"{ask} 2>&1 || true")


MAKES_ONE = """
import time
from tests.cluster.cluster import Cluster

cluster = Cluster(2)
cluster.popen(1, "sleep 1000")
print(cluster._head.pid, flush=True)
time.sleep(1000)
"""


def test_a_cluster_ends_with_the_process_that_made_it() -> None:
    """Even if that is killed: its processes are gone, and with them all that they alone had."""
    if obstacle():
        pytest.skip(obstacle())
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKES_ONE], env=mpi.environment(), stdout=subprocess.PIPE, text=True
    )
    assert maker.stdout is not None
    head = int(maker.stdout.readline())
    namespace = os.readlink(f"/proc/{head}/ns/net")
    assert processes_in(namespace)
    maker.send_signal(signal.SIGKILL)
    maker.communicate()
    wait_until(lambda: is_gone(head), "the cluster to end")
    assert not processes_in(namespace)


def processes_in(namespace: str) -> list[str]:
    """List the processes in a network namespace."""
    found = []
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if os.readlink(link) == namespace:
                found.append(str(link))
        except OSError:  # it has just ended
            continue
    return found
