"""nn/checkpoints/lock.py: one run at a time has a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from nn.checkpoints.folder import Folder
from nn.checkpoints.lock import Lock
from pyrt.errors import UserError
from tests.nn.checkpoints.made import failing


class TestLock:
    def test_one_has_it_until_it_is_released(self, tmp_path: Path) -> None:
        one, other = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
        assert one.take() and not other.take()
        assert one.take() and not other.take()
        one.release()
        one.release()
        assert other.take() and not one.take()
        other.release()

    def test_it_is_taken_anew_where_its_file_has_gone(self, tmp_path: Path) -> None:
        path = tmp_path / "lock"
        one, other = Lock(path), Lock(path)
        assert one.take()
        path.unlink()
        assert other.take() and not one.take()
        other.release()
        assert one.take() and not other.take()
        one.release()

    def test_no_file_stays_open(self, tmp_path: Path) -> None:
        path = tmp_path / "lock"
        one, other = Lock(path), Lock(path)
        before = len(os.listdir("/proc/self/fd"))
        assert one.take()
        path.unlink()
        assert one.take() and not other.take()
        assert len(os.listdir("/proc/self/fd")) == before + 1
        one.release()
        assert len(os.listdir("/proc/self/fd")) == before

    def test_a_program_that_is_started_meanwhile_does_not_hold_it(self, tmp_path: Path) -> None:
        one, other = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
        assert one.take()
        with subprocess.Popen(["sleep", "60"], close_fds=False) as program:
            one.release()
            try:
                assert other.take()
            finally:
                program.kill()
        other.release()

    @pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
    def test_where_the_file_system_has_none_both_go_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        monkeypatch.setattr(fcntl, "flock", failing(number))
        for lock in (Lock(tmp_path / "lock"), Lock(tmp_path / "lock")):
            assert lock.take()
            lock.release()

    def test_a_disk_that_fails_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(fcntl, "flock", failing(errno.EIO))
        with pytest.raises(UserError, match=f"--checkpoint {tmp_path}: cannot be written"):
            Folder(tmp_path, 1).prepare()
        assert len(os.listdir("/proc/self/fd")) == before
