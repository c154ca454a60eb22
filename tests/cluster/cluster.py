"""A cluster on one machine: nodes with their own network, name, shared memory and processes; jobs over them.

    with Cluster(2) as cluster:
        cluster.link(gbit=1, delay=1e-3)
        done = cluster.run(2, sys.executable, "train.py", "--check")   # two ranks on each node
        job = cluster.start(2, sys.executable, "train.py", "--epochs", "1000")
        cluster.cut(1)                                                 # node 1's link is down
        cluster.kill(job, rank=3)

The nodes have the files of this machine, as if all of them were on a shared file system, but each its own
/dev/shm, where its ranks also have their temporary files. No process, namespace, device or mount of a cluster
outlives the process that made it, however that ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests import mpi
from tests.cluster.head import FOLDER, LOGIN, in_own_namespaces, node_name
from tests.cluster.switch import Link

MOST_NODES = 4

_LAUNCHER = str(Path(__file__).with_name("launcher.sh"))

_OF_A_NODE = {"TMPDIR": "/dev/shm"}

_NEEDED = "mount -t tmpfs tmpfs /dev/shm && ip tuntap add dev tap mode tap"


@cache
def obstacle() -> str:
    """Return why there can be no cluster here; an empty text where there can."""
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        return "needs root on Linux"
    missing = [name for name in ("unshare", "nsenter", "ip", "mount") if shutil.which(name) is None]
    if missing:
        return f"needs the commands {', '.join(missing)}"
    tried = subprocess.run(in_own_namespaces("sh", "-c", _NEEDED), capture_output=True, text=True)
    if tried.returncode != 0:
        return f"needs the rights to make namespaces and a TAP device ({tried.stderr.strip()})"
    return ""


@cache
def is_open_mpi() -> bool:
    """Return whether the mpirun of the tests is Open MPI's."""
    return "Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout


class Job:
    """An mpirun that is under way in a cluster."""

    def __init__(self, process: subprocess.Popen[str], ranks_per_node: int) -> None:
        self.process, self.ranks_per_node = process, ranks_per_node

    def finish(self, timeout: float = mpi.TIMEOUT) -> subprocess.CompletedProcess[str]:
        """Wait for the end; a job that does not end in time is killed and raises TimeoutExpired."""
        return mpi.finish(self.process, timeout)


class Cluster:
    """Nodes, a login node from which jobs are started, and the network between them."""

    def __init__(self, nodes: int) -> None:
        """Raises RuntimeError, with the error of the command that failed; see `obstacle`."""
        self.nodes = nodes
        command = in_own_namespaces(sys.executable, "-m", "tests.cluster.head", str(nodes))
        self._started: list[subprocess.Popen[str]] = []
        self._head = subprocess.Popen(
            command,
            cwd=mpi.ROOT,
            env=mpi.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._head.stdout is not None and self._head.stderr is not None
        if self._head.stdout.readline() != "ready\n":
            error = self._head.stderr.read()
            self.close()
            raise RuntimeError(f"the cluster did not start: {error}")

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes of the cluster."""
        self._head.communicate()
        for process in self._started:
            with process:  # waits for it, and closes its pipes
                pass

    def link(self, gbit: float = 100.0, delay: float = 0.0, loss: float = 0.0) -> None:
        """Set the rate, the delay and the loss of all links: see `Link`."""
        self._tell("link", *Link(gbit, delay, loss))

    def cut(self, node: int) -> None:
        """Cut the link of a node. Nobody is told: frames no longer arrive."""
        self._tell("cut", node)

    def join(self, node: int) -> None:
        """Mend the link of a node."""
        self._tell("join", node)

    def run(
        self,
        ranks_per_node: int,
        *command: str,
        env: Mapping[str, str] | None = None,
        timeout: float = mpi.TIMEOUT,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on so many ranks of each node, from the login node, to its end."""
        return self.start(ranks_per_node, *command, env=env).finish(timeout)

    def start(
        self,
        ranks_per_node: int,
        *command: str,
        env: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        captured: bool = True,
    ) -> Job:
        """Start such a job with further options of mpirun.

        Its output goes into pipes or, not ``captured``, where that of this process goes.
        """
        variables = {**_OF_A_NODE, "CLUSTER": str(FOLDER), **(env or {})}
        ranks = str(self.nodes * ranks_per_node)
        process = subprocess.Popen(
            self._entering(*_mpirun(self.nodes, ranks_per_node), *options, "-n", ranks, *command),
            env={**mpi.naps(), **mpi.environment(variables)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if captured else None,
            stderr=subprocess.PIPE if captured else None,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return Job(process, ranks_per_node)

    def kill(self, job: Job, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a rank of a job, which must have started."""
        node = rank // job.ranks_per_node
        found = self.on(
            node, f"grep -lzE '^(PMI_RANK|OMPI_COMM_WORLD_RANK)={rank}$' /proc/[0-9]*/environ || true"
        )
        first = min(int(path.split("/")[2]) for path in found.split())  # the others are its children
        self.on(node, f"kill -{int(number)} {first}")

    def on(self, node: int, command: str) -> str:
        """Return what a shell command prints on a node; raises CalledProcessError if it fails there."""
        process = self.popen(node, command)
        printed, _ = process.communicate()
        if process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, command, printed)
        return printed

    def processes(self, node: int) -> list[str]:
        """Name the processes of a node, and among them those that set it up, and that ask."""
        return self.on(node, "cat /proc/[0-9]*/comm 2>/dev/null || true").split()

    def on_login(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        """Return what a command prints on the login node; raises CalledProcessError if it fails there."""
        variables = mpi.environment({**_OF_A_NODE, **(env or {})})
        done = subprocess.run(
            self._entering(*command), env=variables, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout

    def popen(self, node: int, command: str) -> subprocess.Popen[str]:
        """Start a shell command on a node, what it prints in a pipe."""
        process = subprocess.Popen(
            self._entering("sh", _LAUNCHER, node_name(node), command),
            env=mpi.environment({**_OF_A_NODE, "CLUSTER": str(FOLDER)}),
            stdout=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def _entering(self, *command: str) -> list[str]:
        """Return a command that runs another one on the login node, in the project's folder."""
        pid = self._head.pid
        namespaces = ["-m", "-u", "-i", "-n", f"--pid=/proc/{pid}/ns/pid_for_children"]
        return ["nsenter", "-t", str(pid), *namespaces, "env", "-C", str(mpi.ROOT), *command]

    def _tell(self, *words: object) -> None:
        assert self._head.stdin is not None and self._head.stdout is not None
        self._head.stdin.write(" ".join(map(str, words)) + "\n")
        self._head.stdin.flush()
        if self._head.stdout.readline() != "done\n":
            raise RuntimeError(f"the cluster did not take {words}")


def _mpirun(nodes: int, ranks_per_node: int) -> list[str]:
    """Return the command that starts so many ranks on each node, by `launcher.sh` in place of ssh."""
    hosts = ",".join(f"{node_name(node)}:{ranks_per_node}" for node in range(nodes))
    if is_open_mpi():
        mapping = f"ppr:{ranks_per_node}:node:oversubscribe"
        return ["mpirun", "--prtemca", "plm_ssh_agent", _LAUNCHER, "--host", hosts, "--map-by", mapping]
    return ["mpirun", "-launcher", "ssh", "-launcher-exec", _LAUNCHER, "-localhost", LOGIN, "-hosts", hosts]
