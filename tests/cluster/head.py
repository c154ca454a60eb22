"""The first process of a cluster: it makes the nodes, and is the switch between them.

    unshare --net --uts --ipc --mount --pid --fork --kill-child --mount-proc python -m tests.cluster.head 2

The namespaces that it begins in are those of the login node, from which jobs are started; the other nodes'
are within them. It takes commands from standard input, and ends when that ends: then the kernel ends every
process of the cluster, and what only they had goes with them, namespaces, devices and mounts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.cluster.switch import MTU, Link, Switch, hardware_address, open_tap

FOLDER = Path("/dev/shm/cluster")
"""The folder on the login node with a file for each node: the number of a process in its namespaces."""

LOGIN = "login"

_HERE = Path(__file__).parent
_OWN = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def in_own_namespaces(*command: str) -> list[str]:
    """Return a command that runs ``command`` as the first process of new namespaces."""
    return ["unshare", *_OWN, *command]


def node_name(node: int) -> str:
    return f"node{node}"


def address(node: int) -> str:
    """Return the node's address, known within the cluster alone."""
    return f"10.0.0.{node + 1}"


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _write_names(names: list[str]) -> None:
    """Let all namespaces that are made from here on find the nodes by name."""
    FOLDER.mkdir()
    hosts = FOLDER / "hosts"
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address(i)} {n}\n" for i, n in enumerate(names)))
    _run("mount", "--bind", str(hosts), "/etc/hosts")


def _set_up(process: subprocess.Popen[str], number: int) -> int:
    """Give the node that this process sets up its network device; return the device's file descriptor."""
    assert process.stdin is not None and process.stdout is not None
    _expect(process, "namespaces")
    tap = open_tap("tap")
    _run("ip", "link", "set", "tap", "address", hardware_address(number), "netns", str(process.pid))
    process.stdin.write("\n")
    process.stdin.flush()
    _expect(process, "up")
    return tap


def _expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    if line.strip() != word:
        raise RuntimeError(f"a node was to say {word}, and said {line!r}")


def _make_node(number: int) -> int:
    """Make a node; return the file descriptor of its network device."""
    setup = ["sh", str(_HERE / "node.sh"), node_name(number), f"{address(number)}/24", str(MTU)]
    process = subprocess.Popen(
        in_own_namespaces(*setup), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    (FOLDER / node_name(number)).write_text(str(process.pid))
    return _set_up(process, number)


def _make_login(number: int) -> int:
    """Give this process's own namespaces a network device; return its file descriptor."""
    tap = open_tap("tap")
    _run("ip", "link", "set", "tap", "address", hardware_address(number), "name", "eth0", "mtu", str(MTU))
    _run("ip", "address", "add", f"{address(number)}/24", "dev", "eth0")
    _run("ip", "link", "set", "eth0", "up")
    return tap


def main(nodes: int) -> None:
    """Make the nodes, then do what standard input says; each command is answered by a line."""
    _run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    _run("hostname", LOGIN)
    _run("ip", "link", "set", "lo", "up")
    _write_names([*map(node_name, range(nodes)), LOGIN])
    taps = [_make_node(number) for number in range(nodes)]
    switch = Switch([*taps, _make_login(nodes)], Link())
    with suppress(OSError):  # not in every container
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # busy ranks do not slow down the network
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # processes whose parents have ended come here
    print("ready", flush=True)
    while True:
        switch.run(control=0)
        words = os.read(0, 1024).decode().split()
        if not words:
            return
        _obey(switch, *words)
        print("done", flush=True)


def _obey(switch: Switch, command: str, *values: str) -> None:
    if command == "link":
        switch.link = Link(*map(float, values))
    elif command == "cut":
        switch.cut(int(values[0]))
    else:
        switch.join(int(values[0]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
