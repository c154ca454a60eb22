"""How much memory the host can still give: the kernel's estimate, and the limits of this process's groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyrt.job.cgroups import folders


@dataclass(frozen=True)
class _Version:
    """Where a version of control groups keeps the numbers of a group."""

    root: Path
    limit: str
    used: str
    reclaimable: str
    """In ``memory.stat``: files in memory, which count as used and make room."""


_VERSIONS = (
    _Version(Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    _Version(
        Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    ),
)


@dataclass(frozen=True)
class HostMemory:
    """Bytes."""

    free: int
    """That all processes of this node, or of the group that limits this one, can get without swapping."""
    total: int

    @classmethod
    def now(cls) -> HostMemory:
        """Return the memory of this moment."""
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free, total = (int(lines[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
        return cls(min([free, *_left_in_groups()]), total)


def _left_in_groups() -> Iterator[int]:
    """Bytes that are left under the limit of each group that this process is in, and of those around it."""
    for is_first, folder in folders("memory", [version.root for version in _VERSIONS]):
        yield from _left(folder, _VERSIONS[is_first])


def _left(folder: Path, version: _Version) -> Iterator[int]:
    try:
        limit, used = ((folder / name).read_text().strip() for name in (version.limit, version.used))
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return
    if limit != "max":
        yield max(0, int(limit) - int(used) + int(stat.get(version.reclaimable, 0)))
