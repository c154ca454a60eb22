"""pyrt/host_memory.py: what the system says is free, and what is left of a group's limit."""

from pathlib import Path

import pytest

from pyrt import host_memory
from pyrt.host_memory import HostMemory, _left, _Version

NAMES = ("memory.max", "memory.current", "inactive_file")
FILES = _Version(Path("/"), *NAMES)


def group(folder: Path, limit: str, used: int, files: int) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon {used - files}\ninactive_file {files}\n")
    return folder


def test_it_is_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_left_in_groups", lambda: iter(()))
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    memory = HostMemory.now()
    assert memory.total == int(lines["MemTotal"].split()[0]) * 1024
    assert 0 < memory.free < memory.total


@pytest.mark.parametrize(
    ("limit", "used", "files", "left"),
    [("1000", 400, 100, [700]), ("1000", 1300, 100, [0]), ("max", 400, 100, [])],
)
def test_files_in_memory_make_room_below_a_limit(tmp_path, limit, used, files, left):
    assert list(_left(group(tmp_path, limit, used, files), FILES)) == left


def test_a_group_that_is_not_seen_from_here_limits_nothing(tmp_path):
    assert list(_left(tmp_path / "nowhere", FILES)) == []


def test_the_tightest_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_left_in_groups", lambda: iter([2**62, 12345]))
    assert HostMemory.now().free == 12345


def test_groups_of_groups_are_asked(tmp_path, monkeypatch):
    """Version 2, and a path that is only in part seen from here."""
    group(tmp_path, "max", 0, 0)
    group(tmp_path / "job", "1000", 300, 0)
    group(tmp_path / "job" / "step", "5000", 100, 0)
    monkeypatch.setattr(host_memory, "_VERSIONS", (_Version(tmp_path, *NAMES), FILES))
    read = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path: "5:cpu:/x\n0::/job/step/hidden\n" if str(path) == "/proc/self/cgroup" else read(path),
    )
    assert sorted(host_memory._left_in_groups()) == [700, 4900]
