"""pyrt/cache.py: where files are kept between runs, and whose compiled kernels are loaded."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyrt import cache
from pyrt.cache import cache_folder, is_kept, kernel_folder, make_folder, new_folder
from pyrt.errors import UserError
from tests import mpi


def test_the_users_own_cache_unless_it_is_moved(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("PYRT_CACHE_DIR", "")
    assert cache_folder("mnist") == tmp_path / ".cache" / "pyrt" / "mnist"
    monkeypatch.setenv("PYRT_CACHE_DIR", "~/moved")
    assert cache_folder("kernels") == Path(tmp_path) / "moved" / "kernels"
    monkeypatch.setenv("PYRT_CACHE_DIR", "~nobody-of-that-name/moved")
    with pytest.raises(UserError, match="there is no home directory: set PYRT_CACHE_DIR to"):
        cache_folder("kernels")


def without_files(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def without_bytes(folder: Path) -> None:
    (folder / "library.so").write_bytes(b"")


def of_other_bytes(folder: Path) -> None:
    (folder / "library.so").write_text("edoc")


def under_another_name(folder: Path) -> None:
    (folder / "library.so").rename(folder / "other.so")


def a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


def a_link_to_nothing(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to("nothing")


DAMAGES = (without_files, without_bytes, of_other_bytes, under_another_name, a_file, a_link_to_nothing)


def another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on this process is one of another user, whose files all that is there are not."""
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)


class TestKernelFolder:
    @pytest.fixture(autouse=True)
    def root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A cache of the test's own, and nothing found yet."""
        monkeypatch.setattr(cache._Found, "folder", None)
        monkeypatch.setattr(cache._Found, "temporary", None)
        monkeypatch.setenv("PYRT_CACHE_DIR", str(tmp_path / "cache"))
        return tmp_path / "cache"

    def not_kept(self, root: Path) -> str:
        """Why; there is another folder instead, for this user alone."""
        found = kernel_folder()
        assert found.path.is_dir() and not found.path.is_relative_to(root)
        assert stat.S_IMODE(found.path.stat().st_mode) == 0o700
        assert kernel_folder() is found
        assert found.why_not_kept.startswith("compiled kernels are not kept: ")
        return found.why_not_kept

    @pytest.mark.parametrize("umask", [0o022, 0o002, 0o000])
    def test_it_is_made_so_that_nobody_else_can_write_it(self, root: Path, umask: int) -> None:
        before = os.umask(umask)
        try:
            found = kernel_folder()
        finally:
            os.umask(before)
        assert (found.path, found.why_not_kept) == (root / "kernels", "")
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in (root, found.path))

    @pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777])
    @pytest.mark.parametrize("name", ["", "kernels"])
    def test_what_others_can_write_in_is_not_used(self, root: Path, mode: int, name: str) -> None:
        (root / "kernels").mkdir(parents=True)
        (root / name).chmod(mode)
        remedy = f"remove it, or `chmod -R go-w {root}`"
        assert f"others can write in {root / name}: {remedy}" in self.not_kept(root)

    def test_nor_is_another_users(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        root.mkdir()
        another_user(monkeypatch)
        assert f"{root} belongs to another user: set PYRT_CACHE_DIR to" in self.not_kept(root)
        assert list(root.iterdir()) == []

    @pytest.mark.parametrize("place", ["/proc/none", "file/cache"])
    def test_nor_one_that_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("PYRT_CACHE_DIR", str(tmp_path / place))
        why = self.not_kept(tmp_path / place)
        assert f"{tmp_path / place}/kernels cannot be written (" in why
        assert why.endswith("): set PYRT_CACHE_DIR to a folder of your own")

    def test_who_has_no_home_keeps_none(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYRT_CACHE_DIR", "~nobody-of-that-name/moved")
        assert "there is no home directory: set PYRT_CACHE_DIR to" in self.not_kept(root)

    def test_without_any_folder_there_is_an_error(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        root.touch()

        def refuse(**_: object) -> None:
            raise FileNotFoundError("no usable temporary directory")

        monkeypatch.setattr(cache.tempfile, "TemporaryDirectory", refuse)
        with pytest.raises(UserError, match=r"PYRT_CACHE_DIR.*; and there is no folder for temporary files"):
            kernel_folder()

    def test_a_temporary_one_goes_with_the_process(self) -> None:
        code = "from pyrt.cache import kernel_folder; print(kernel_folder().path)"
        environment = mpi.environment({"PYRT_CACHE_DIR": "/proc/none"})
        printed = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
        assert not Path(printed.strip()).exists()


class TestMakeFolder:
    def test_one_makes_it_and_the_others_wait(self, tmp_path: Path) -> None:
        made: list[Path] = []

        def fill(scratch: Path) -> None:
            made.append(scratch)
            time.sleep(0.05)
            (scratch / "library.so").write_text("code")

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: make_folder(tmp_path / "cache" / "key", fill), range(4)))
        assert len(made) == 1 and is_kept(tmp_path / "cache" / "key")

    def test_it_is_tried_again_after_a_failure(self, tmp_path: Path) -> None:
        with pytest.raises(ZeroDivisionError):
            make_folder(tmp_path / "key", lambda _: 1 // 0)
        make_folder(tmp_path / "key", lambda scratch: (scratch / "library.so").write_text("code"))
        assert is_kept(tmp_path / "key")


class TestNewFolder:
    def fill(self, folder: Path) -> None:
        with new_folder(folder) as scratch:
            (scratch / "library.so").write_text("code")

    def test_it_is_there_whole_and_for_this_user_alone(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            self.fill(tmp_path / "cache" / "key")
        finally:
            os.umask(before)
        assert is_kept(tmp_path / "cache" / "key")
        assert [path.name for path in (tmp_path / "cache").iterdir()] == ["key"]

    def test_or_not_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="a mistake"), new_folder(tmp_path / "key") as scratch:
            (scratch / "library.so").touch()
            raise UserError("a mistake")
        assert list(tmp_path.iterdir()) == []
        assert not is_kept(tmp_path / "key")

    def test_the_first_job_counts(self, tmp_path: Path) -> None:
        with new_folder(tmp_path / "key") as scratch:
            self.fill(tmp_path / "key")
            (scratch / "library.so").write_text("the same code")
        assert (tmp_path / "key" / "library.so").read_text() == "code"

    @pytest.mark.parametrize("name", ["", "library.so"])
    def test_what_others_can_write_is_not_loaded_but_replaced(self, tmp_path: Path, name: str) -> None:
        self.fill(tmp_path / "key")
        (tmp_path / "key" / "library.so").write_text("somebody else's")
        (tmp_path / "key" / name).chmod(0o777)
        assert not is_kept(tmp_path / "key")
        self.fill(tmp_path / "key")
        assert is_kept(tmp_path / "key")
        assert (tmp_path / "key" / "library.so").read_text() == "code"
        assert [path.name for path in tmp_path.iterdir()] == ["key"]

    @pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
    def test_so_is_what_is_damaged(self, tmp_path: Path, damage: Callable[[Path], None]) -> None:
        self.fill(tmp_path / "key")
        damage(tmp_path / "key")
        assert not is_kept(tmp_path / "key")
        self.fill(tmp_path / "key")
        assert is_kept(tmp_path / "key")
        assert (tmp_path / "key" / "library.so").read_text() == "code"

    def test_of_jobs_that_replace_it_at_once_all_find_it_whole(self, tmp_path: Path) -> None:
        for round in range(30):
            folder = tmp_path / str(round)
            self.fill(folder)
            (folder / "library.so").write_bytes(b"")
            with ThreadPoolExecutor(8) as pool:
                for done in [pool.submit(self.find, folder) for _ in range(8)]:
                    assert done.result() == "code"
        assert not list(tmp_path.glob("*ing-*"))

    def find(self, folder: Path) -> str:
        if not is_kept(folder):
            self.fill(folder)
        return (folder / "library.so").read_text()

    def test_a_folder_that_nobody_may_replace_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.fill(tmp_path / "key")
        (tmp_path / "key").chmod(0o777)

        def refuse(*_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(Path, "rename", refuse)
        with pytest.raises(UserError, match=r"key: cannot be written \(Operation not permitted\): make room"):
            self.fill(tmp_path / "key")

    def test_nor_what_is_another_users(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fill(tmp_path / "key")
        another_user(monkeypatch)
        assert not is_kept(tmp_path / "key")

    def test_a_disk_that_is_full_is_an_error_for_the_user(self, tmp_path: Path) -> None:
        words = r"key: cannot be written \(No space left on device\): make room"
        with pytest.raises(UserError, match=words), new_folder(tmp_path / "key"):
            raise OSError(28, "No space left on device")
        assert list(tmp_path.iterdir()) == []
