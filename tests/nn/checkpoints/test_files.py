"""nn/checkpoints/files.py: what is saved is loaded bit by bit, and what is damaged is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nn.checkpoints import files
from nn.checkpoints.files import OtherVersion
from nn.files import parameters
from pyrt.errors import UserError
from tests import LONG, few
from tests.memory import peak_below
from tests.nn.checkpoints.made import NETWORK, bits, disk_of, equal, made, rewrite


class TestFiles:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("precision", [None, 0.625])
    @pytest.mark.parametrize("states", [(), ("v",), ("m", "v")])
    def test_what_is_saved_is_loaded_bit_by_bit(
        self, tmp_path: Path, dtype: str, precision: float | None, states: tuple[str, ...]
    ) -> None:
        checkpoint = made(7, precision, dtype, states)
        files.save(tmp_path / "c.npz", checkpoint)
        assert equal(files.load(tmp_path / "c.npz"), checkpoint)
        assert files.load_metadata(tmp_path / "c.npz") == checkpoint.metadata

    def test_init_reads_it_too(self, tmp_path: Path) -> None:
        checkpoint = made(7)
        files.save(tmp_path / "c.npz", checkpoint)
        assert bits(parameters.load(tmp_path / "c.npz", NETWORK, "float32")) == bits(checkpoint.parameters)

    def test_damage_at_any_place_is_found_or_of_no_account(self, tmp_path: Path) -> None:
        """A bit that is flipped, of many bytes; a file that is cut short, or has a hole of zeros."""
        path, checkpoint, apart = tmp_path / "c.npz", made(7), 1 if LONG else 3
        files.save(path, checkpoint)
        whole = path.read_bytes()
        damaged = [
            whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :]
            for place in range(0, len(whole), 23 * apart)
        ]
        damaged += [whole[:size] for size in range(0, len(whole), 201 * apart)]
        holes = range(0, len(whole), 127 * apart)
        damaged += [whole[:start] + bytes(64) + whole[start + 64 :] for start in holes]
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

    @pytest.mark.parametrize("name", few(["run"], of=["W1", "more", "run"]))
    def test_megabytes_packed_into_little_are_not_read(self, tmp_path: Path, name: str) -> None:
        files.save(tmp_path / "a.npz", made(7))
        zeros = np.zeros((), "U16000000") if name == "run" else np.zeros((16_000_000, 1), np.float32)
        with np.load(tmp_path / "a.npz") as a:
            np.savez_compressed(tmp_path / "c.npz", **{**a, name: zeros})
        del zeros
        message = "is no checkpoint: its arrays are larger than the file"
        with peak_below(1_000_000), pytest.raises(UserError, match=message):
            files.load(tmp_path / "c.npz")

    @pytest.mark.parametrize(
        "text",
        ["", "[]", "null", "{}", "[" * 100_000, '{"version": 2}', "1e999"],
        ids=lambda text: text[:20],
    )
    def test_a_text_that_is_no_metadata(self, tmp_path: Path, text: str) -> None:
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
    def test_a_metadata_of_other_types(self, tmp_path: Path, name: str, value: object) -> None:
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
