"""All that reads files which users give. A new reader is one more `Reader` in `READERS`.

Each has valid files, from which the damaged ones are made (tests/fuzz/corpus.py, tests/fuzz/test_random.py).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nn import data, parameters
from nn.batches import Schedule
from nn.checkpoints import files as checkpoints
from nn.checkpoints.state import Checkpoint
from nn.data import Dataset, Wanted, suspicious
from nn.held_out import TAIL
from nn.network import Network
from nn.options import Options
from nn.plan import SPLITS, Plan, files, rates
from nn.plan.cost import Costing
from nn.plan.paper import Task, on_paper
from nn.plan.rates import Rates
from nn.progress import Epoch, Progress
from pyrt.errors import UserError
from tests.nn.data.conftest import pack_idx
from tests.nn.rates import HOPPER, random_rates

NETWORK = Network((12, 5, 3), "sigmoid", "softmax")
IMAGES = np.random.default_rng(0).integers(0, 256, (6, 4, 3), np.uint8)
LABELS = np.arange(6, dtype=np.uint8) % 3

Members = Mapping[str, bytes]
"""Of a zip, by name."""


@dataclass(frozen=True)
class Reader:
    """Of one kind of file."""

    name: str
    file: str
    """What the file is called; where its name means something, this one."""
    read: Callable[[Path], Any]
    require_valid: Callable[[Any], None]
    """AssertionError for what `read` must not return."""
    arrays: tuple[np.ndarray, ...] = ()
    """Valid IDX files, raw and packed, are of these,"""
    members: Mapping[str, Any] = field(default_factory=dict)
    """valid npz files of these, stored and deflated,"""
    deflated: bool = True
    """(or stored alone)"""
    document: Any = None
    """valid JSON of this: the file, or the text `run` of an npz."""
    beside: Mapping[str, bytes] = field(default_factory=dict)
    """Files that are whole."""

    @property
    def family(self) -> str:
        """Those of the same have readers in common."""
        return "IDX" if self.arrays else "npz" if self.members else self.name

    @property
    def seeds(self) -> list[bytes]:
        """Valid files."""
        if self.arrays:
            raw = [pack_idx(array) for array in self.arrays]
            return [*raw, *map(pack_gzip, raw)]
        if self.members:
            saves = (np.savez, np.savez_compressed) if self.deflated else (np.savez,)
            return [_saved(save, self._all_members) for save in saves]
        return [json.dumps(self.document).encode()]

    @property
    def packed_members(self) -> dict[str, bytes]:
        """Of a valid npz."""
        return {f"{name}.npy": pack_npy(array) for name, array in self._all_members.items()}

    @property
    def _all_members(self) -> dict[str, np.ndarray]:
        story = {} if self.document is None else {"run": np.array(json.dumps(self.document))}
        return {**self.members, **story}

    def with_document(self, text: bytes) -> bytes:
        """The file with this JSON, or something like it, in the place of the valid one."""
        if not self.members:
            return text
        story = pack_npy(np.array(text.decode("latin1")))
        return pack_zip({**self.packed_members, "run.npy": story})


def _saved(save: Callable[..., None], members: Mapping[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    save(file, **members)
    return file.getvalue()


def pack_gzip(content: bytes) -> bytes:
    """The same bytes at any time."""
    return gzip.compress(content, mtime=0)


def pack_npy(array: np.ndarray) -> bytes:
    """A .npy file; objects are pickled."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def pack_zip(members: Members, packing: int = zipfile.ZIP_STORED, more: Members | None = None) -> bytes:
    """``more`` may have names that are there already."""
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", packing) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in (*members.items(), *(more or {}).items()):
            archive.writestr(zipfile.ZipInfo(name), content, packing)
    return file.getvalue()


def read_folder(path: Path) -> Dataset:
    """The IDX files of which this is one."""
    return data.load(str(path.parent))


def read_npz(path: Path) -> Dataset:
    """In float64: what float32 holds comes in float32 as well."""
    return data.load(str(path), Wanted("float64"))


def require_data_set(found: Dataset) -> None:
    halves = [(found.images, found.labels)]
    assert (found.test_images is None) == (found.test_labels is None)
    if found.test_images is not None and found.test_labels is not None:
        halves.append((found.test_images, found.test_labels))
    for images, labels in halves:
        assert images.ndim == 2 and images.size > 0 and images.flags.c_contiguous
        assert images.dtype == found.images.dtype and images.dtype in (np.uint8, np.float32, np.float64)
        assert images.shape[1] == math.prod(found.image_shape) and np.isfinite(images).all()
        assert labels.shape == images.shape[:1] and labels.dtype == np.int32
        assert labels.min() >= 0 and labels.max() < found.classes <= 1 << 16
    lines = [
        *suspicious.of_pixels(found, 255.0),
        *suspicious.of_labels(found, 2, len(found.labels) // 2, TAIL),
    ]
    assert all(line.isprintable() for line in lines)


def read_init(path: Path) -> dict[str, np.ndarray]:
    return parameters.load(path, NETWORK, "float32")


def read_evaluated(path: Path) -> dict[str, np.ndarray]:
    """As --evaluate does."""
    found = read_init(path)
    parameters.require_same_model(path, _OPTIONS)
    return found


def require_parameters(found: dict[str, np.ndarray]) -> None:
    assert {name: array.shape for name, array in found.items()} == NETWORK.shapes
    assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in found.values())


def require_plan(found: Plan) -> None:
    assert type(found.groups) is int and found.groups > 0 and type(found.shards) is int and found.shards > 0
    assert isinstance(found.splits, tuple) and set(found.splits) <= set(SPLITS)
    assert str(found).isprintable()
    try:
        found.require_fits(NETWORK, 4)
    except UserError as error:
        assert str(error).isprintable()


def require_rates(found: Rates) -> None:
    """They survive their file, which is strict JSON, and predict times: finite ones above 0."""
    assert rates.parsed(json.loads(json.dumps(asdict(found), allow_nan=False))) == found
    try:
        found.require_reach(2)
    except UserError as error:
        assert str(error).isprintable()
        return
    task = Task(NETWORK, 20, found.dtype, gemm=found.gemm, math=found.math)
    step = on_paper(task, Plan.model(1, 2, NETWORK.depth), found.device, exchange=found.exchange)
    assert 0 < Costing(step, found).cost.seconds < math.inf


def require_checkpoint(found: Checkpoint) -> None:
    """A run may go on from it, or says in one line why not."""
    for epoch in found.story.progress.epochs:
        assert np.isreal([epoch.loss, epoch.seconds, epoch.validation_precision or 0.0]).all()
    try:
        found.require_arrays(NETWORK, "float64", True)
        found.story.require_fits(_RUN, Schedule(6, 6, 3, 9, True, 0), "digest")
    except UserError as error:
        assert str(error).isprintable() and len(str(error)) < 1000


_OPTIONS = {"hidden": [5], "activation": "sigmoid", "head": "softmax", "pixel_scale": 255.0}
_SET = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:4].astype(">i2"), "y_test": LABELS[:4]}
_PARAMETERS = parameters.initial(NETWORK, "float64", 0)
_FLOATS = IMAGES.astype(np.float32) / 255
_RATES = replace(random_rates(0, HOPPER), tflop_s=50.0, passes_gb_s={"head": 100.0})

_RUN = Options(hidden=(5,), momentum=0.5, dtype="float64", batch=3)
_PROGRESS = Progress(3, [Epoch(1, 0.5, 0.9, None, 0.1)], 1.5)
_KEPT = {
    **_PARAMETERS,
    **{f"v_{name}": array / 2 for name, array in _PARAMETERS.items()},
    "epochs": _PROGRESS.table(),
}
_STORY = {
    "version": checkpoints.VERSION,
    "progress": {"step": _PROGRESS.step, "loss_sum": _PROGRESS.loss_sum},
    "validation_precision": 0.5,
    "options": {name: _RUN.as_json()[name] for name in ("hidden", "activation", "lr", "dtype")},
    "environment": {"ranks": 1, "devices": ["cpu"]},
    "plan": {"grid": [1, 1], "layers": ["samples", "samples"]},
    "data": "digest",
    "initial": "",
    "sha256": {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in _KEPT.items()},
}

READERS = (
    Reader(
        "IDX images",
        "train-images-idx3-ubyte",
        read_folder,
        require_data_set,
        arrays=(IMAGES, _FLOATS),
        beside={"train-labels-idx1-ubyte": pack_idx(LABELS)},
    ),
    Reader(
        "IDX labels",
        "train-labels-idx1-ubyte",
        read_folder,
        require_data_set,
        arrays=(LABELS, LABELS.astype(np.int32)),
        beside={"train-images-idx3-ubyte": pack_idx(IMAGES)},
    ),
    Reader("npz", "data.npz", read_npz, require_data_set, members=_SET),
    Reader("init", "weights.npz", read_init, require_parameters, members=_PARAMETERS),
    Reader(
        "evaluate",
        "weights.npz",
        read_evaluated,
        require_parameters,
        members=_PARAMETERS,
        document={"options": _OPTIONS},
    ),
    Reader(
        "checkpoint",
        "step-000000000003.npz",
        checkpoints.load,
        require_checkpoint,
        members=_KEPT,
        deflated=False,
        document=_STORY,
    ),
    Reader(
        "plan",
        "plan.json",
        files.load,
        require_plan,
        document={"grid": [2, 2], "layers": ["rows", "columns"]},
    ),
    Reader("rates", "rates.json", rates.load, require_rates, document=asdict(_RATES)),
)
