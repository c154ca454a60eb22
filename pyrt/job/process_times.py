"""When this process and the mpirun above it began, on the clock of ``time.perf_counter()``.

So that a job's times count from where its user counts: from mpirun.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

_LAUNCHERS = {
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "hydra_pmi_proxy",
    "orterun",
    "orterun_wrapper",
    "orted",
    "prterun",
    "prted",
}
"""Names under which launchers and their helpers run; Slurm's step daemon outlives a job and is none."""


def process_start() -> float:
    """Return when this process began, to 10 ms; now, if that is not known."""
    return _start(os.getpid())


def launch_start() -> float:
    """Return when this process's launcher began, or the process itself if it has no launcher on this node."""
    return _start(_launcher())


def launched_from_terminal() -> bool:
    """Return whether a person watches: the standard error of the launcher, which passes on this process's, is
    a terminal."""
    try:
        return _is_terminal(2)
    except OSError:
        return os.isatty(2)


def terminal_columns(descriptor: int) -> int | None:
    """Find the width of the terminal that is the launcher's standard output (1) or error (2), as the launcher
    passes on what this process writes there. None where it is no terminal."""
    try:
        if not _is_terminal(descriptor):
            return None
        terminal = os.open(_path(descriptor), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            return os.get_terminal_size(terminal).columns or None
        finally:
            os.close(terminal)
    except OSError:
        return None


def _is_terminal(descriptor: int) -> bool:
    return os.readlink(_path(descriptor)).startswith(("/dev/pts/", "/dev/tty"))


def _path(descriptor: int) -> str:
    """Return the /proc path of a file descriptor of the launcher."""
    return f"/proc/{_launcher()}/fd/{descriptor}"


def _launcher() -> int:
    pid = os.getpid()
    while (parent := _parent(pid)) and _name(parent) in _LAUNCHERS:
        pid = parent
    return pid


def _start(pid: int) -> float:
    now = time.perf_counter()
    try:
        return min(now, _boot() + int(_status(pid)[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, IndexError, ValueError):
        return now


@cache
def _boot() -> float:
    """Return when the machine began, to 10 ms; read once, so no process seems to begin before its parent."""
    return time.perf_counter() - float(Path("/proc/uptime").read_text().split()[0])


def _parent(pid: int) -> int:
    try:
        return int(_status(pid)[1])
    except (OSError, IndexError, ValueError):
        return 0


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _status(pid: int) -> list[str]:
    """List the fields of /proc/PID/stat after the name, which may hold blanks: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
