"""pyrt/errors.py: errors of Python's own that are told as what a user can mend."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyrt import cache
from pyrt.driver.emulated import compile
from pyrt.errors import UserError, mended_by_user
from pyrt.job import AgreedError, Job

TOO_FEW = r"^this process may have \d+ open files, too few: raise that limit, as by `ulimit -n 1024`$"


@contextmanager
def no_more_files() -> Iterator[None]:
    """Within it this process can open none."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_limit_on_open_files_is_no_broken_compiler_and_no_bad_folder(tmp_path: Path, job: Job) -> None:
    with no_more_files():
        with pytest.raises(UserError, match=TOO_FEW):
            compile._run(["true"], "fails")
        with pytest.raises(UserError, match=TOO_FEW), cache.new_folder(tmp_path / "folder"):
            pass
        with pytest.raises(AgreedError, match=TOO_FEW), job.agree():
            (tmp_path / "file").touch()
        obstacle = cache._obstacle(tmp_path / "kernels")
        with pytest.raises(OSError) as caught:  # which has no number
            ctypes.CDLL(str(Path(__file__)))
        words = mended_by_user(caught.value)
    assert "open files" in obstacle and obstacle == words


@pytest.mark.parametrize("bug", [ValueError("Too many"), FileNotFoundError(2, "No such file"), SystemExit(3)])
def test_bugs_keep_their_traceback(bug: BaseException) -> None:
    assert mended_by_user(bug) == ""
