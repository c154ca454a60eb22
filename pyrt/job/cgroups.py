"""The control groups that limit this process: the folders that have their files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path


def folders(controller: str, roots: Sequence[Path]) -> Iterator[tuple[bool, Path]]:
    """Yield the folders of the groups that this process is in, and of those around them, innermost first.

    ``roots`` are those of versions 2 and 1 of control groups. Each folder comes with whether it is of version
    1; the folder, or a file of the controller in it, need not be there.
    """
    try:
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for _, controllers, path in groups:
        if not controllers or controller in controllers.split(","):
            is_first = bool(controllers)
            root = roots[is_first]
            # In a container the path may be that of the host, where only the root is seen from here.
            for folder in (root / path.strip("/"), *(root / path.strip("/")).parents):
                if folder.is_relative_to(root):
                    yield is_first, folder
