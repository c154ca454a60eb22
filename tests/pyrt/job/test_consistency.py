"""pyrt/job/consistency.py: what differs from rank to rank is named, on all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrt.errors import UserError
from pyrt.job import Job
from pyrt.job.consistency import require_alike, sources


def error(job: Job, mine: dict[str, str]) -> str:
    with pytest.raises(UserError) as caught:
        require_alike(job, mine, "mend it")
    assert len(set(job.comm.allgather(str(caught.value)))) == 1
    return str(caught.value)


@pytest.mark.parallel([1, 2, 4])
def test_what_is_the_same_everywhere_is_no_error(job: Job) -> None:
    items = [("a", "1"), ("b", "2")]
    require_alike(job, dict(items if job.rank else reversed(items)), "mend it")
    require_alike(job, {}, "mend it")


@pytest.mark.parallel([4])
def test_what_differs_is_named_with_its_ranks(job: Job) -> None:
    alike = {"a": "1", "b": "2", "c": "3"}
    odd = {**alike, "b": f"of {job.rank}", "c": "4"} if job.rank in (1, 3) else alike
    assert error(job, odd) == (
        "ranks 1, 3 are not as rank 0: b is of 1 on rank 1, 2 on rank 0, and 1 more differ: mend it"
    )
    missing = alike if job.rank != 2 else {"a": "1", "c": "3"}
    assert error(job, missing) == "rank 2 is not as rank 0: b is missing on rank 2, 2 on rank 0: mend it"
    more = alike if job.rank == 0 else {**alike, "d": "4"}
    assert error(job, more) == (
        "ranks 1, 2, 3 are not as rank 0: d is 4 on rank 1, missing on rank 0: mend it"
    )


class ManyRanks:
    """The first of six ranks, of which the others are not as this one."""

    rank, size = 0, 6

    def allgather(self, mine: object) -> list[object]:
        others = ("a", "2", 1) if isinstance(mine, tuple) else b"another digest"
        return [mine] + 5 * [others]

    def bcast(self, mine: object) -> object:
        return mine


def test_of_many_ranks_the_first_are_named() -> None:
    with pytest.raises(UserError, match="ranks 1, 2, 3, 4 and 1 others are not as rank 0: a is 2 on rank 1"):
        require_alike(Job(ManyRanks(), ManyRanks(), "an MPI", 1.0), {"a": "1"}, "mend it")


def test_sources_are_those_that_run(tmp_path: Path) -> None:
    files = {"a.py": "1", "b/c.cu": "2", "b/d.cuh": "3", "e.txt": "4", "__pycache__/a.pyc": "5"}
    for name, text in files.items():
        (tmp_path / "nn" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "nn" / name).write_text(text)
    (tmp_path / "train.py").write_text("x = 1")
    assert [*sources(tmp_path / "train.py")] == ["train.py"]
    found = sources(tmp_path / "nn", tmp_path / "none")
    assert list(found) == ["nn/a.py", "nn/b/c.cu", "nn/b/d.cuh"]
    sources.cache_clear()
    (tmp_path / "nn" / "a.py").write_text("2")
    changed = sources(tmp_path / "nn", tmp_path / "none")
    assert {name for name in found if found[name] != changed[name]} == {"nn/a.py"}
    assert changed["nn/a.py"] == changed["nn/b/c.cu"]
