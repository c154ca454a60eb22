"""nn/checkpoints: files that are whole or told, a folder that loses no good one, who may go on from them."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import resource
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy

from nn import parameters
from nn.batches import Schedule
from nn.checkpoints import files
from nn.checkpoints.files import OtherVersion
from nn.checkpoints.folder import FINISHED, PREEMPTED, Folder, InUse, is_own_file
from nn.checkpoints.lock import Lock
from nn.checkpoints.state import Checkpoint, Story, digest, digest_of_data
from nn.data import Dataset
from nn.files import write_whole
from nn.network import Network
from nn.options import Options
from nn.progress import Epoch, Progress
from pyrt.errors import UserError

NETWORK = Network((4, 3, 2), "sigmoid", "softmax")
BATCHES = 5
"""Steps of an epoch."""


def made(step: int, precision: float | None = None, dtype: str = "float32", **options: Any) -> Checkpoint:
    """A checkpoint after so many steps, of random parameters and velocities."""
    rng = np.random.default_rng(step)
    arrays = [
        {name: rng.standard_normal(shape).astype(dtype) for name, shape in NETWORK.shapes.items()}
        for _ in range(2)
    ]
    epochs = [Epoch(number + 1, 0.1 * number, 0.5, None, 2.5) for number in range(step // BATCHES)]
    story = Story(
        Progress(step, epochs, 0.1 + 0.2),
        precision,
        Options(**options).as_json(),
        {"ranks": 2, "nodes": 1, "devices": ["one", "one"]},
        {"grid": [2, 1], "layers": ["samples", "samples"]},
        "digest",
        "",
    )
    return Checkpoint(story, *arrays)


def equal(one: Checkpoint, other: Checkpoint) -> bool:
    """Bit by bit."""
    pairs = ((one.parameters, other.parameters), (one.velocity, other.velocity))
    return one.story == other.story and all(bits(a) == bits(b) for a, b in pairs)


def bits(arrays: dict[str, np.ndarray]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """The system lets no file grow beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class TestFiles:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("precision", [None, 0.625])
    def test_what_is_saved_is_loaded_bit_by_bit(
        self, tmp_path: Path, dtype: str, precision: float | None
    ) -> None:
        checkpoint = made(7, precision, dtype)
        files.save(tmp_path / "c.npz", checkpoint)
        assert equal(files.load(tmp_path / "c.npz"), checkpoint)
        assert files.load_story(tmp_path / "c.npz") == checkpoint.story

    def test_init_reads_it_too(self, tmp_path: Path) -> None:
        checkpoint = made(7)
        files.save(tmp_path / "c.npz", checkpoint)
        assert bits(parameters.load(tmp_path / "c.npz", NETWORK, "float32")) == bits(checkpoint.parameters)

    def test_damage_at_any_place_is_found_or_of_no_account(self, tmp_path: Path) -> None:
        """A bit that is flipped, of each 23rd byte; a file that is cut short, or has a hole of zeros."""
        path, checkpoint = tmp_path / "c.npz", made(7)
        files.save(path, checkpoint)
        whole = path.read_bytes()
        damaged = [
            whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :]
            for place in range(0, len(whole), 23)
        ]
        damaged += [whole[:size] for size in range(0, len(whole), 201)]
        damaged += [whole[:start] + bytes(64) + whole[start + 64 :] for start in range(0, len(whole), 127)]
        found = 0
        for content in damaged:
            path.write_bytes(content)
            try:
                assert equal(files.load(path), checkpoint)
            except UserError as error:
                assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
                found += 1
        assert found > 0.8 * len(damaged)

    def test_arrays_of_another_checkpoint_are_found(self, tmp_path: Path) -> None:
        """They are whole, in a zip that is whole."""
        files.save(tmp_path / "a.npz", made(7))
        files.save(tmp_path / "b.npz", made(8))
        with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
            np.savez(tmp_path / "c.npz", **{**a, "W1": b["W1"]})
            np.savez(tmp_path / "d.npz", **{name: a[name] for name in a.files if name != "v_b1"})
        for name in ("c.npz", "d.npz"):
            with pytest.raises(UserError, match="not those that were saved: it is damaged"):
                files.load(tmp_path / name)

    @pytest.mark.parametrize("name", ["W1", "more", "run"])
    def test_megabytes_packed_into_little_are_not_read(self, tmp_path: Path, name: str) -> None:
        files.save(tmp_path / "a.npz", made(7))
        zeros = np.zeros((), "U16000000") if name == "run" else np.zeros((16_000_000, 1), np.float32)
        with np.load(tmp_path / "a.npz") as a:
            np.savez_compressed(tmp_path / "c.npz", **{**a, name: zeros})
        del zeros
        tracemalloc.start()
        with pytest.raises(UserError, match="is no checkpoint: its arrays are larger than the file"):
            files.load(tmp_path / "c.npz")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1_000_000

    @pytest.mark.parametrize(
        "text",
        ["", "[]", "null", "{}", "[" * 100_000, '{"version": 2}', "1e999"],
        ids=lambda text: text[:20],
    )
    def test_a_text_that_is_no_story(self, tmp_path: Path, text: str) -> None:
        np.savez(tmp_path / "c.npz", W1=np.zeros(3), run=np.array(text))
        with pytest.raises(UserError, match="is no checkpoint"):
            files.load(tmp_path / "c.npz")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("validation_precision", "high"),
            ("options", []),
            ("environment", None),
            ("plan", "data"),
            ("data", 3),
            ("initial", None),
            ("progress", {"step": -1, "loss_sum": 0.0}),
            ("progress", {"step": True, "loss_sum": 0.0}),
            ("progress", {"step": 7, "loss_sum": 10**400}),
            ("progress", {"step": 3, "loss_sum": None}),
            ("progress", 3),
        ],
    )
    def test_a_story_of_other_types(self, tmp_path: Path, name: str, value: object) -> None:
        rewrite(tmp_path / "c.npz", made(7), **{name: value})
        with pytest.raises(UserError, match="is no checkpoint"):
            files.load(tmp_path / "c.npz")

    @pytest.mark.parametrize(
        "table",
        [
            np.zeros((1, 4), np.float32),
            np.zeros(4),
            np.zeros(()),
            np.zeros((1, 5)),
            np.zeros((1, 4, 1)),
            np.array([[np.nan, 0.5, 0.5, 1.0]]),
            np.array([[0.5, 0.5, 0.5, np.inf]]),
        ],
        ids=repr,
    )
    def test_epochs_that_are_none(self, tmp_path: Path, table: np.ndarray) -> None:
        rewrite(tmp_path / "c.npz", made(7), table)
        with pytest.raises(UserError, match="is no checkpoint"):
            files.load(tmp_path / "c.npz")

    def test_another_version_is_no_damage(self, tmp_path: Path) -> None:
        rewrite(tmp_path / "c.npz", made(7), version=1)
        with pytest.raises(OtherVersion, match=r"of version 1, and this code reads 2"):
            files.load(tmp_path / "c.npz")

    @pytest.mark.parametrize("size", [0, 1, 100, 1000, 3000])
    def test_a_full_disk_leaves_the_old_file_and_nothing_else(self, tmp_path: Path, size: int) -> None:
        path, before = tmp_path / "c.npz", made(7)
        files.save(path, before)
        with disk_of(size), pytest.raises(UserError, match=r"--checkpoint .*c\.npz: cannot be written"):
            files.save(path, made(8))
        assert equal(files.load(path), before)
        assert [file.name for file in tmp_path.iterdir()] == ["c.npz"]


def rewrite(path: Path, checkpoint: Checkpoint, epochs: np.ndarray | None = None, **changes: object) -> None:
    """The checkpoint, its arrays with their checksums, a text with these changes, perhaps other epochs."""
    files.save(path, checkpoint)
    with np.load(path) as file:
        members = dict(file)
    members["epochs"] = epochs if epochs is not None else members["epochs"]
    members["run"] = np.array(json.dumps({**json.loads(str(members["run"])), **changes}))
    np.savez(path, **members)


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Iterator[Folder]:
        with closing(begun(tmp_path / "c", keep=2)) as folder:
            yield folder

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
        assert newest is not None and newest.story.progress.step == 3 - len(damaged)
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
        assert newest is not None and newest.story.progress.step == 1
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


def failing(number: int) -> Callable[..., None]:
    """A system call that fails so."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


class TestStory:
    """Which runs may go on from a checkpoint."""

    SCHEDULE = Schedule(50, 50, 10, 3, True, 0)

    def test_the_same_run_may(self) -> None:
        made(7).story.require_fits(Options(), self.SCHEDULE, "digest")

    @pytest.mark.parametrize(
        "changes",
        [
            {"epochs": 100},
            {"device": "cpu"},
            {"exchange": "root"},
            {"plan": "model"},
            {"graph": False},
            {"check": True},
            {"print_every": 3},
            {"checkpoint": Path("c"), "checkpoint_every": "7", "keep": 9, "resume": True},
        ],
    )
    def test_what_changes_no_network_may_change(self, changes: dict[str, Any]) -> None:
        made(7).story.require_fits(Options(**changes), self.SCHEDULE, "digest")

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"hidden": (512, 256)}, "with --hidden 512, this run is with --hidden 512,256"),
            ({"activation": "tanh"}, "--activation sigmoid"),
            ({"head": "sigmoid"}, "--head softmax"),
            ({"reg": 0.0}, "--reg 0.0001"),
            ({"batch": 7}, "with --batch 3000, this run is with --batch 7"),
            ({"lr": 0.5}, "--lr 1.0"),
            ({"momentum": 0.5}, "--momentum 0.0"),
            ({"dtype": "float64"}, "with --dtype float32, this run is with --dtype float64"),
            ({"samples": 9}, "without --samples, this run is with --samples 9"),
            ({"val_fraction": 0.5}, "--val-fraction 0.1"),
            ({"shuffle": False}, "with --shuffle, this run is with --no-shuffle"),
            ({"seed": 1}, "--seed 0"),
            ({"pixel_scale": 1.0}, "--pixel-scale 255.0"),
        ],
    )
    def test_another_training_may_not(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(UserError, match="--resume: the checkpoint was made ") as caught:
            made(7).story.require_fits(Options(**changes), self.SCHEDULE, "digest")
        assert words in str(caught.value)

    def test_other_data_may_not(self) -> None:
        with pytest.raises(UserError, match="other training or validation data: give the same --data"):
            made(7).story.require_fits(Options(), self.SCHEDULE, "other")

    def test_a_run_that_ends_before_it_may_not(self) -> None:
        made(15).story.require_fits(Options(epochs=3), self.SCHEDULE, "digest")
        with pytest.raises(UserError, match="is of step 16, and --epochs 3 end at 15"):
            made(16).story.require_fits(Options(epochs=3), self.SCHEDULE, "digest")

    def test_epochs_that_are_not_those_of_its_step_may_not(self) -> None:
        story = replace(made(7).story, progress=Progress(7, [], 0.0))
        with pytest.raises(UserError, match="step 7, but tells of 0 epochs"):
            story.require_fits(Options(), self.SCHEDULE, "digest")

    @pytest.mark.parametrize("what", ["parameters", "velocity"])
    @pytest.mark.parametrize("kind", ["missing", "more", "shape", "dtype"])
    def test_arrays_of_another_network_may_not(self, what: str, kind: str) -> None:
        checkpoint = made(7)
        checkpoint.require_arrays(NETWORK, "float32", momentum=True)
        arrays = getattr(checkpoint, what)
        if kind == "missing":
            del arrays["b2"]
        else:
            new = {"more": ("b3", "f4"), "shape": ("b1", "f4"), "dtype": ("b2", "f8")}[kind]
            arrays[new[0]] = np.zeros(2, new[1])
        with pytest.raises(UserError, match=r"--resume: the checkpoint's .* are not those of 4-3-2"):
            checkpoint.require_arrays(NETWORK, "float32", momentum=True)

    def test_velocities_are_there_with_momentum_alone(self) -> None:
        checkpoint = made(7)
        still = replace(checkpoint, velocity={})
        still.require_arrays(NETWORK, "float32", momentum=False)
        for one, momentum in ((still, True), (checkpoint, False)):
            with pytest.raises(UserError, match="velocities"):
                one.require_arrays(NETWORK, "float32", momentum)

    def test_choices_serve_where_they_were_made(self) -> None:
        story = made(7).story
        assert story.is_of(2, 1, ["one", "one"])
        assert not story.is_of(1, 1, ["one"])
        assert not story.is_of(2, 2, ["one", "one"])
        assert not story.is_of(2, 1, ["one", "other"])
        assert story.chose("exchange") and not story.chose("plan")  # which is data, where nobody asks

    def test_what_trains_all_again_begins_where_it_did(self) -> None:
        drawn = made(7).story
        given = replace(drawn, initial="digest")
        drawn.require_start("")
        given.require_start("digest")
        for story, initial in ((drawn, "digest"), (given, ""), (given, "other")):
            with pytest.raises(UserError, match=r"--resume: the training did not begin .* leave out --check"):
                story.require_start(initial)

    def test_a_digest_is_of_values_shapes_and_dtypes(self) -> None:
        array = np.arange(6, dtype=np.float32)
        arrays = ([array], [array.reshape(2, 3)], [array.astype("f8")], [array, array], [-array])
        assert len({digest(each) for each in arrays}) == len(arrays)
        assert digest([array.reshape(2, 3).T]) == digest([array.reshape(2, 3).T.copy()])

    def test_the_digest_is_of_what_is_trained_on_and_of_what_validates(self) -> None:
        images = np.arange(60, dtype=np.uint8).reshape(20, 3)
        labels = np.arange(20, dtype=np.int32) % 4

        def of(images: np.ndarray, labels: np.ndarray) -> str:
            return digest_of_data(Dataset("name", images, labels, None, None, (1, 3)), 12, 15)

        first = of(images, labels)
        for row in range(20):
            other, relabelled = images.copy(), labels.copy()
            other[row] += 1
            relabelled[row] += 1
            is_unused = 12 <= row < 15
            assert (of(other, labels) == first) == (of(images, relabelled) == first) == is_unused, row
        assert of(images.astype("f4"), labels) != first
