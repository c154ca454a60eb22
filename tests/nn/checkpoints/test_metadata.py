"""nn/checkpoints/metadata.py: which runs may go on from a checkpoint."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nn.app.options import Options
from nn.checkpoints.metadata import digest, digest_of_data
from nn.input import Dataset
from nn.input.schedule import Schedule
from nn.optimisers import Adam, Sgd
from nn.problem.progress import Progress
from pyrt.errors import UserError
from tests.nn.checkpoints.made import NETWORK, made, require_fits


class TestMetadata:
    """Which runs may go on from a checkpoint."""

    SCHEDULE = Schedule(50, 50, 10, 3, True, 0)

    def test_the_same_run_may(self) -> None:
        require_fits(made(7).metadata, Options(), self.SCHEDULE, "digest")

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
        require_fits(made(7).metadata, Options(**changes), self.SCHEDULE, "digest")

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"hidden": (512, 256)}, "with --hidden 512, this run is with --hidden 512,256"),
            ({"activation": "tanh"}, "--activation sigmoid"),
            ({"head": "sigmoid"}, "--head softmax"),
            ({"reg": 0.0}, "--reg 0.0001"),
            ({"batch": 7}, "with --batch 3000, this run is with --batch 7"),
            ({"lr": 0.5}, "--lr 0.07"),
            ({"momentum": 0.5}, f"--momentum {Options.momentum}"),
            ({"optimiser": "adam"}, "with --optimiser sgd, this run is with --optimiser adam"),
            ({"dtype": "float64"}, "with --dtype float32, this run is with --dtype float64"),
            ({"samples": 9}, "without --samples, this run is with --samples 9"),
            ({"val_fraction": 0.5}, "--val-fraction 0.1"),
            ({"val_split": "random"}, "with --val-split tail, this run is with --val-split random"),
            ({"classes": 12}, "without --classes, this run is with --classes 12"),
            ({"shuffle": False}, "with --shuffle, this run is with --no-shuffle"),
            ({"seed": 1}, "--seed 0"),
            ({"augment": "shift2,flip"}, "without --augment, this run is with --augment flip,shift2"),
            ({"pixel_scale": 1.0}, "--pixel-scale 255.0"),
        ],
    )
    def test_another_training_may_not(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(UserError, match="--resume: the checkpoint was made ") as caught:
            require_fits(made(7).metadata, Options(**changes), self.SCHEDULE, "digest")
        assert words in str(caught.value)

    @pytest.mark.parametrize("rate", ["lr", "beta1", "beta2", "eps", "reg"])
    def test_another_training_with_adam_may_not(self, rate: str) -> None:
        kept = made(7, optimiser="adam").metadata
        require_fits(kept, Options(optimiser="adam"), self.SCHEDULE, "digest")
        now = Options(optimiser="adam", **{rate: 0.5})
        with pytest.raises(UserError, match=f"with --{rate} .*, this run is with --{rate} 0.5: give"):
            require_fits(kept, now, self.SCHEDULE, "digest")

    def test_rates_that_the_optimiser_does_not_have_decide_nothing(self) -> None:
        for kept, more in (("sgd", {"beta1": 0.5, "eps": 0.5}), ("adam", {"momentum": 0.5})):
            now = Options(optimiser=kept, **more)
            require_fits(made(7, optimiser=kept).metadata, now, self.SCHEDULE, "digest")

    def test_a_checkpoint_older_than_an_option_was_made_with_its_default(self) -> None:
        metadata = made(7).metadata
        for option in ("augment", "val_split", "classes", "optimiser", "beta1", "beta2", "eps"):
            del metadata.options[option]
        require_fits(metadata, Options(), self.SCHEDULE, "digest")
        with pytest.raises(UserError, match="with --val-split tail, this run is with --val-split stratified"):
            require_fits(metadata, Options(val_split="stratified"), self.SCHEDULE, "digest")
        with pytest.raises(UserError, match="without --classes, this run is with --classes 12"):
            require_fits(metadata, Options(classes=12), self.SCHEDULE, "digest")
        with pytest.raises(UserError, match="with --optimiser sgd, this run is with --optimiser adam"):
            require_fits(metadata, Options(optimiser="adam"), self.SCHEDULE, "digest")

    def test_other_data_may_not(self) -> None:
        metadata = made(7).metadata
        said = "other training or validation data: give the same --data, or another --checkpoint folder"
        with pytest.raises(UserError, match=f"{said}$"):
            require_fits(metadata, Options(), self.SCHEDULE, "other")
        del metadata.options["val_split"]
        with pytest.raises(
            UserError, match=rf"{said} \(it is of an older version, .* --val-fraction 0\.29: "
        ):
            require_fits(metadata, Options(), self.SCHEDULE, "other")

    def test_a_run_that_ends_before_it_may_not(self) -> None:
        require_fits(made(15).metadata, Options(epochs=3), self.SCHEDULE, "digest")
        with pytest.raises(UserError, match="is of step 16, and --epochs 3 end at 15"):
            require_fits(made(16).metadata, Options(epochs=3), self.SCHEDULE, "digest")

    def test_epochs_that_are_not_those_of_its_step_may_not(self) -> None:
        metadata = replace(made(7).metadata, progress=Progress(7, [], 0.0))
        with pytest.raises(UserError, match="step 7, but tells of 0 epochs"):
            require_fits(metadata, Options(), self.SCHEDULE, "digest")

    @pytest.mark.parametrize("what", ["parameters", "m", "v"])
    @pytest.mark.parametrize("kind", ["missing", "more", "shape", "dtype"])
    def test_arrays_of_another_network_may_not(self, what: str, kind: str) -> None:
        checkpoint, states = made(7, states=("m", "v")), ("m", "v")
        checkpoint.require_arrays(NETWORK, "float32", states)
        arrays = {"parameters": checkpoint.parameters, **checkpoint.states}[what]
        if kind == "missing":
            del arrays["b2"]
        else:
            new = {"more": ("b3", "f4"), "shape": ("b1", "f4"), "dtype": ("b2", "f8")}[kind]
            arrays[new[0]] = np.zeros(2, new[1])
        with pytest.raises(UserError, match=r"--resume: the checkpoint's .* are not those of 4-3-2"):
            checkpoint.require_arrays(NETWORK, "float32", states)

    def test_the_states_are_those_of_the_optimiser(self) -> None:
        """Velocities with momentum alone; two averages with adam."""
        optimisers = Sgd(momentum=0.0), Sgd(), Adam()
        checkpoints = [made(7, states=optimiser.states) for optimiser in optimisers]
        for checkpoint, optimiser in itertools.product(checkpoints, optimisers):
            if tuple(checkpoint.states) == tuple(optimiser.states):
                checkpoint.require_arrays(NETWORK, "float32", optimiser.states)
                continue
            with pytest.raises(UserError, match="states of the optimiser are not those of 4-3-2"):
                checkpoint.require_arrays(NETWORK, "float32", optimiser.states)

    def test_choices_serve_where_they_were_made(self) -> None:
        metadata = made(7).metadata
        assert metadata.is_of(2, 1, ["one", "one"])
        assert not metadata.is_of(1, 1, ["one"])
        assert not metadata.is_of(2, 2, ["one", "one"])
        assert not metadata.is_of(2, 1, ["one", "other"])
        assert metadata.chose("exchange") and not metadata.chose("plan")  # which is data, where nobody asks

    def test_what_trains_all_again_begins_where_it_did(self) -> None:
        drawn = made(7).metadata
        given = replace(drawn, initial="digest")
        drawn.require_start("")
        given.require_start("digest")
        for metadata, initial in ((drawn, "digest"), (given, ""), (given, "other")):
            with pytest.raises(UserError, match=r"--resume: the training did not begin .* leave out --check"):
                metadata.require_start(initial)

    def test_a_digest_is_of_values_shapes_and_dtypes(self) -> None:
        array = np.arange(6, dtype=np.float32)
        arrays = ([array], [array.reshape(2, 3)], [array.astype("f8")], [array, array], [-array])
        assert len({digest(each) for each in arrays}) == len(arrays)
        assert digest([array.reshape(2, 3).T]) == digest([array.reshape(2, 3).T.copy()])

    @pytest.mark.parametrize("used", [50, 100])
    def test_the_digest_tells_how_many_rows_were_held_out(self, used: int) -> None:
        """Older versions held out 28 of 100 rows at --val-fraction 0.29, not 29: such a run may not go on."""
        rows = np.zeros((100, 3), np.uint8)
        dataset = Dataset("name", rows, np.zeros(100, np.int32), None, None, (1, 3))
        older, newer = (digest_of_data(dataset, min(used, first), first) for first in (72, 71))
        assert older != newer

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
