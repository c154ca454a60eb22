"""nn/checkpoints/folder.py: the last and the best are kept, and no good one is lost."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from numpy.lib import format as npy

from nn.checkpoints import files
from nn.checkpoints.files import OtherVersion
from nn.checkpoints.folder import FINISHED, PREEMPTED, Folder, InUse, is_own_file
from nn.files.write import write_whole
from pyrt.errors import UserError
from tests.nn.checkpoints.made import disk_of, equal, failing, made, rewrite


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with closing(begun(tmp_path / "c", keep=2)) as folder:
        yield folder


class TestKept:
    def test_the_last_ones_are_kept_and_the_best(self, folder: Folder) -> None:
        for step, precision in ((1, 0.1), (2, 0.7), (3, 0.7), (4, 0.2), (5, None), (6, 0.3)):
            folder.add(made(step, precision))
        assert steps_in(folder) == [2, 5, 6]  # the first of two that are as good
        assert state(folder) == {
            "state": "running",
            "step": 6,
            "checkpoint": "step-000000000006.npz",
            "best": "step-000000000002.npz",
            "best_validation_precision": 0.7,
        }
        folder.add(made(7, 0.8))
        assert steps_in(folder) == [6, 7]

    def test_without_validation_there_is_no_best(self, folder: Folder) -> None:
        for step in range(1, 6):
            folder.add(made(step))
        assert steps_in(folder) == [4, 5]
        assert state(folder)["best"] is None

    @pytest.mark.parametrize("how", [PREEMPTED, FINISHED])
    def test_scripts_can_tell_how_it_ended(self, folder: Folder, how: str) -> None:
        assert state(folder) == {
            "state": "running",
            "step": 0,
            "checkpoint": None,
            "best": None,
            "best_validation_precision": None,
        }
        folder.add(made(3))
        folder.end(how)
        assert (state(folder)["state"], state(folder)["step"]) == (how, 3)

    def test_a_run_that_goes_on_knows_those_before(self, folder: Folder) -> None:
        """The best among them stays, the last ones count."""
        for step, precision in ((1, 0.9), (2, 0.1), (3, 0.2)):
            folder.add(made(step, precision))
        folder.close()
        again, warnings = begun(folder.path, keep=2), []
        newest = again.newest(warnings.append)
        assert newest is not None and equal(newest, made(3, 0.2)) and not warnings
        again.begin()
        assert state(again)["best"] == "step-000000000001.npz"
        again.add(made(4, 0.3))
        assert steps_in(again) == [1, 3, 4]


class TestDamaged:
    @pytest.mark.parametrize("damaged", [[3], [3, 2]])
    def test_the_newest_whole_one_is_taken_and_the_others_are_told(
        self, folder: Folder, damaged: list[int]
    ) -> None:
        folder.close()
        folder = begun(folder.path, keep=3)
        for step in (1, 2, 3):
            folder.add(made(step))
        for step in damaged:
            cut_short(folder.file(step))
        warnings: list[str] = []
        newest = folder.newest(warnings.append)
        assert newest is not None and newest.metadata.progress.step == 3 - len(damaged)
        assert [line.split(":")[0] for line in warnings] == [str(folder.file(step)) for step in damaged]
        assert all(line.endswith("the one before it is taken") for line in warnings)

    def test_an_older_one_that_is_damaged_concerns_nobody(self, folder: Folder) -> None:
        for step in (1, 2):
            folder.add(made(step))
        folder.file(1).write_bytes(b"damaged")
        warnings: list[str] = []
        assert folder.newest(warnings.append) is not None
        assert not warnings

    def test_where_all_are_damaged_there_is_none(self, folder: Folder) -> None:
        folder.add(made(1))
        cut_short(folder.file(1))
        warnings: list[str] = []
        assert folder.newest(warnings.append) is None
        assert len(warnings) == 1 and warnings[0].endswith("there is none before it")

    @pytest.mark.parametrize("reason", [errno.EACCES, errno.EIO, errno.ESTALE])
    def test_one_that_cannot_be_read_may_be_whole(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch, reason: int
    ) -> None:
        """Nothing goes on from one before it, whose run would take its place."""
        for step in (1, 2):
            folder.add(made(step))

        def refuse(path: str | Path, *arguments: Any, **more: Any) -> Any:
            if str(path) == str(folder.file(2)):
                raise OSError(reason, os.strerror(reason))
            return open_(path, *arguments, **more)

        open_ = io.open
        monkeypatch.setattr(io, "open", refuse)
        monkeypatch.setattr("builtins.open", refuse)
        with pytest.raises(UserError, match=rf"{folder.file(2)}: cannot be read \({os.strerror(reason)}\)"):
            folder.newest(pytest.fail)

    def test_nor_is_one_damaged_for_which_there_is_no_memory(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for step in (1, 2):
            folder.add(made(step))

        def refuse(*_: object, **__: object) -> None:
            raise MemoryError

        monkeypatch.setattr(npy, "read_array", refuse)
        with pytest.raises(UserError, match=f"{folder.file(2)}: does not fit into memory"):
            folder.newest(pytest.fail)

    def test_a_folder_that_cannot_be_looked_into_is_an_error(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        with pytest.raises(UserError, match=r"cannot be read \(File name too long\)"):
            Folder(tmp_path / ("c" * 300), 2).require_readable()
        monkeypatch.setattr(Path, "is_dir", failing(errno.EACCES))
        with pytest.raises(UserError, match=r"cannot be read \(Permission denied\)"):
            folder.require_readable()

    def test_a_name_makes_no_other_step_of_it(self, folder: Folder) -> None:
        for step in (1, 2):
            folder.add(made(step))
        folder.file(2).rename(folder.file(900))
        warnings: list[str] = []
        again = Folder(folder.path, 1)
        newest = again.newest(warnings.append)
        assert newest is not None and newest.metadata.progress.step == 1
        assert warnings == [
            f"{folder.file(900)}: is of step 2, whatever its name says; the one before it is taken"
        ]
        folder.close()
        again.add(made(3))
        assert steps_in(again) == [3, 900]
        again.close()

    def test_a_damaged_one_takes_no_place_from_whole_ones(self, folder: Folder) -> None:
        """Its step is behind those of the run that goes on before it."""
        for step in (1, 9):
            folder.add(made(step))
        cut_short(folder.file(9))
        folder.close()
        again = begun(folder.path, keep=1)
        assert again.newest(lambda line: None) is not None
        again.begin()
        assert state(again)["step"] == 1
        for step in (2, 3):
            again.add(made(step))
            assert state(again)["step"] == step
            assert step in steps_in(again)
        assert steps_in(again) == [3, 9]
        again.add(made(9))
        assert equal(files.load(again.file(9)), made(9))

    def test_another_version_is_not_passed_over(self, folder: Folder) -> None:
        folder.add(made(1))
        rewrite(folder.file(2), made(2), version=1)
        with pytest.raises(OtherVersion):
            folder.newest(lambda line: None)


class TestPlace:
    def test_files_of_others_are_left_alone(self, tmp_path: Path) -> None:
        names = ["step-1.npz", "step-000000000001.npz.old", "a.npz", ".writing-w.npz-x", "state.json.bak"]
        for name in names:
            (tmp_path / name).write_bytes(b"not ours")
        folder = Folder(tmp_path, 1)
        folder.prepare()
        folder.require_unused()
        assert folder.newest(lambda line: None) is None
        folder.begin()
        for step in (1, 2, 3):
            folder.add(made(step))
        assert all((tmp_path / name).read_bytes() == b"not ours" for name in names)
        assert steps_in(folder) == [3]

    def test_what_a_killed_run_has_left_half_written_goes(self, folder: Folder) -> None:
        left = [f".writing-{name}-abc" for name in ("step-000000000007.npz", "state.json")]
        for name in left:
            (folder.path / name).write_bytes(b"half")
        folder.begin()
        assert not any((folder.path / name).exists() for name in left)

    def test_checkpoints_are_not_taken_for_nothing(self, folder: Folder) -> None:
        folder.require_unused()
        folder.add(made(1))
        with pytest.raises(UserError, match=r"--checkpoint .*: has checkpoints: go on .* --resume"):
            Folder(folder.path, 2).require_unused()

    @pytest.mark.parametrize("size", [0, 1000])
    def test_a_full_disk_costs_no_checkpoint_that_is_there(self, folder: Folder, size: int) -> None:
        for step in (1, 2):
            folder.add(made(step, 0.5))
        names = sorted(path.name for path in folder.path.iterdir())
        with disk_of(size), pytest.raises(UserError, match="--checkpoint"):
            folder.add(made(3, 0.9))
        assert sorted(path.name for path in folder.path.iterdir()) == names
        assert equal(files.load(folder.file(2)), made(2, 0.5))
        assert (state(folder)["step"], state(folder)["best"]) == (2, "step-000000000001.npz")
        folder.add(made(4, 0.9))  # there is room again
        assert steps_in(folder) == [2, 4]

    def test_a_disk_with_room_for_the_checkpoint_alone_loses_older_ones_first(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """state.json finds none until they have gone; else no other checkpoint would ever fit."""
        for step in (1, 2):
            folder.add(made(step))

        def write(option: str, path: Path, write: Callable[[Any], object]) -> None:
            if path.name == "state.json" and folder.file(1).exists():
                raise UserError("no space")
            write_whole(option, path, write)

        monkeypatch.setattr("nn.checkpoints.folder.write_whole", write)
        folder.add(made(3))
        assert steps_in(folder) == [2, 3]
        assert state(folder)["step"] == 3

    def test_a_folder_that_has_gone_is_made_again(self, folder: Folder) -> None:
        folder.add(made(1))
        for path in folder.path.iterdir():
            path.unlink()
        folder.path.rmdir()
        folder.add(made(2))
        assert steps_in(folder) == [2]
        with pytest.raises(InUse):
            Folder(folder.path, 2).prepare()

    def test_what_somebody_has_removed_is_promised_to_no_script(self, folder: Folder) -> None:
        for step, precision in ((1, 0.9), (2, 0.1), (3, 0.3)):
            folder.add(made(step, precision))
        folder.file(1).unlink()
        folder.add(made(4, 0.2))
        assert state(folder)["best"] == folder.file(3).name
        assert steps_in(folder) == [3, 4]
        for step in (3, 4):
            folder.file(step).unlink()
        folder.end(FINISHED)
        assert state(folder)["checkpoint"] is state(folder)["best"] is None

    @pytest.mark.parametrize("act", ["prepare", "begin", "add", "end"])
    def test_another_run_changes_nothing_while_it_is_held(self, folder: Folder, act: str) -> None:
        folder.add(made(1))
        (folder.path / ".writing-step-000000000002.npz-abc").write_bytes(b"half")
        before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
        other = Folder(folder.path, 1)
        acts = {
            "prepare": other.prepare,
            "begin": other.begin,
            "add": lambda: other.add(made(2)),
            "end": lambda: other.end(FINISHED),
        }
        with pytest.raises(InUse, match=r"--checkpoint .*: another run is writing there: give .* wait"):
            acts[act]()
        assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before
        folder.close()
        acts[act]()

    @pytest.mark.parametrize("where", ["file", "file/c", "missing/c", "/proc/c", "/proc/sys"])
    def test_a_place_where_no_folder_can_be(self, tmp_path: Path, where: str) -> None:
        (tmp_path / "file").write_bytes(b"in the way")
        folder = Folder(tmp_path / where, 2)
        for act in (folder.prepare, folder.begin, lambda: folder.add(made(1))):
            with pytest.raises(UserError, match=f"--checkpoint {tmp_path / where}") as caught:
                act()
            assert "\n" not in str(caught.value) and "None" not in str(caught.value)
        folder.require_unused()
        assert folder.newest(lambda line: None) is None


def test_files_of_its_own_are_known_by_place_and_name(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "link").symlink_to("c")
    for name in ("state.json", "lock", "step-000000000020.npz"):
        assert is_own_file(tmp_path / "c", tmp_path / "link" / name)
        assert not is_own_file(tmp_path / "c", tmp_path / name)
    (tmp_path / "other.json").symlink_to("c/state.json")
    assert is_own_file(tmp_path / "c", tmp_path / "other.json")
    for name in ("final.npz", "step-20.npz", "state.json.bak"):
        assert not is_own_file(tmp_path / "c", tmp_path / "c" / name)


def begun(path: Path, keep: int) -> Folder:
    folder = Folder(path, keep)
    folder.prepare()
    folder.begin()
    return folder


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def steps_in(folder: Folder) -> list[int]:
    return sorted(
        int(path.stem.removeprefix("step-")) for path in folder.path.glob("step-" + 12 * "[0-9]" + ".npz")
    )


def state(folder: Folder) -> dict[str, Any]:
    return json.loads((folder.path / "state.json").read_text())
