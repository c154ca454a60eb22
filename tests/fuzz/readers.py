"""All that reads files which users give. A new reader is one more `Reader` in `READERS`.

Each has valid files, from which the damaged ones are made (tests/fuzz/corpus.py, tests/fuzz/test_random.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from nn.app.network_of_file import NAMES, options_of_file
from nn.app.options import Options
from nn.autotune import rates
from nn.autotune.cost import Costing
from nn.autotune.listed_step import Task, on_null
from nn.autotune.rates import CONVOLUTIONS, Convolutions, Rates
from nn.checkpoints import files as checkpoints
from nn.checkpoints.metadata import Checkpoint
from nn.files import net_files, parameters
from nn.files.digest import digest
from nn.input import Dataset, Wanted, class_folders, npz, suspicious
from nn.input import load as load_data
from nn.input.schedule import Schedule
from nn.input.validation_split import TAIL
from nn.model.conv2d import Conv2d
from nn.model.dense import Dense
from nn.model.initial import initial_values
from nn.model.net_text import layers_of_text
from nn.model.network import Network, text_of
from nn.model.pool import MaxPool2d
from nn.parallel import plan_files
from nn.parallel.plan import SPACE, SPLITS, Plan
from nn.problem.progress import Epoch, Progress
from pyrt.errors import UserError
from tests.fuzz.packing import (
    join_pyrtz,
    pack_gzip,
    pack_npy,
    pack_pyrtz,
    pack_safetensors,
    pack_zip,
    split_pyrtz,
)
from tests.nn.autotune.rates import HOPPER, random_rates
from tests.nn.checkpoints.made import require_fits
from tests.nn.input.conftest import pack_idx
from tests.nn.input.made import cifar_files, pack_cifar, pack_images, pack_table
from tests.nn.model.net_json import as_json

with contextlib.suppress(ImportError):  # a reader that is watched imports nothing
    import safetensors.numpy  # noqa: F401
with contextlib.suppress(ImportError):
    import bitarray.util  # noqa: F401
with contextlib.suppress(ImportError):
    from PIL import Image

    Image.preinit()

NETWORK = Network.dense((12, 5, 3), "sigmoid", "softmax")
CONVOLUTIONAL = Network((4, 3, 1), [Conv2d(2, 2, activation="relu"), MaxPool2d(2), Dense(3)])
IMAGES = np.random.default_rng(0).integers(0, 256, (6, 4, 3), np.uint8)
LABELS = np.arange(6, dtype=np.uint8) % 3


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
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict)
    """valid safetensors files of these,"""
    files: tuple[bytes, ...] = ()
    """valid files of other formats are these,"""
    document: Any = None
    """valid JSON of this: the file, or the text `run` of an npz, a safetensors or a pyrtz file."""
    beside: Mapping[str, bytes] = field(default_factory=dict)
    """Files that are whole."""
    package: str = ""
    """What it needs that is not installed everywhere."""

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
        if self.files:
            return list(self.files)
        if self.tensors:
            single = {name: array.astype(np.float32) for name, array in self.tensors.items()}
            document = json.dumps(self.document)
            return [pack_safetensors(self.tensors, document), pack_safetensors(single, None)]
        return [json.dumps(self.document).encode()]

    @property
    def packed_members(self) -> dict[str, bytes]:
        """Of a valid npz."""
        return {f"{name}.npy": pack_npy(array) for name, array in self._all_members.items()}

    @property
    def _all_members(self) -> dict[str, np.ndarray]:
        run = {} if self.document is None else {"run": np.array(json.dumps(self.document))}
        return {**self.members, **run}

    def with_document(self, text: bytes) -> bytes:
        """The file with this JSON, or something like it, in the place of the valid one."""
        if self.tensors:
            return pack_safetensors(self.tensors, text.decode("latin1"))
        if self.files:
            return join_pyrtz(text, *split_pyrtz(self.files[0])[1:])
        if not self.members:
            return text
        run = pack_npy(np.array(text.decode("latin1")))
        return pack_zip({**self.packed_members, "run.npy": run})


def _saved(save: Callable[..., None], members: Mapping[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    save(file, **members)
    return file.getvalue()


def read_folder(path: Path) -> Dataset:
    """The IDX files of which this is one."""
    return load_data(str(path.parent))


def read_npz(path: Path) -> Dataset:
    """In float64: what float32 holds comes in float32 as well."""
    return load_data(str(path), Wanted("float64"))


def read_file(path: Path) -> Dataset:
    """A file of a format that its name tells."""
    return load_data(str(path))


def read_image(path: Path) -> np.ndarray:
    """One of a class folder's."""
    return class_folders.images([path])


def require_image(found: np.ndarray) -> None:
    assert found.dtype == np.uint8 and found.size > 0
    assert found.shape[0] == 1 and found.shape[3:] in ((), (3,), (4,))


def read_mapped(path: Path) -> Dataset:
    """An npz whose arrays are as large as those that are mapped."""
    with mock.patch.object(npz, "LEAST", 1):
        return read_npz(path)


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


def told_options(path: Path, given: Mapping[str, Any], others: Mapping[str, Any]) -> Options:
    """Options as the file tells them; others where it tells nothing."""
    told = options_of_file(path, given) or others
    assert not set(told) - set(NAMES)
    told = {name: tuple(value) if name == "hidden" else value for name, value in told.items()}
    options = Options(**told)
    assert options.pixel_scale > 0
    return options


def read_evaluated(path: Path) -> dict[str, np.ndarray]:
    """As --evaluate does where it is given one of the options."""
    options = told_options(path, {"activation": "sigmoid"}, {"hidden": (5,)})
    return parameters.load(path, options.make_network((12,), options.classes or 3), "float32")


def read_evaluated_net(path: Path) -> dict[str, np.ndarray]:
    """As --evaluate does where it is given no option."""
    options = told_options(path, {}, {"net": CONVOLUTIONAL.text})
    return parameters.load(path, options.make_network((4, 3), options.classes or 3), "float32")


def require_parameters_of_either(found: dict[str, np.ndarray]) -> None:
    """Of a dense network too: a file may tell that it has one."""
    shapes = {name: array.shape for name, array in found.items()}
    assert shapes in (CONVOLUTIONAL.shapes, NETWORK.shapes)
    assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in found.values())


def require_net(found: tuple[str, str | None]) -> None:
    """A text that is read again, and says no more than the file did."""
    text, loss = found
    assert text_of(layers_of_text(text)) == text and loss in (None, "softmax", "sigmoid")


def require_parameters(found: dict[str, np.ndarray]) -> None:
    assert {name: array.shape for name, array in found.items()} == NETWORK.shapes
    assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in found.values())


def require_plan(found: Plan) -> None:
    assert type(found.groups) is int and found.groups > 0 and type(found.shards) is int and found.shards > 0
    assert isinstance(found.splits, tuple) and set(found.splits) <= {*SPLITS, SPACE}
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
    step = on_null(task, Plan.model(1, 2, NETWORK.depth), found.device, exchange=found.exchange)
    assert 0 < Costing(step, found).cost.seconds < math.inf


def require_checkpoint(found: Checkpoint) -> None:
    """A run may go on from it, or says in one line why not."""
    for epoch in found.metadata.progress.epochs:
        assert np.isreal([epoch.loss, epoch.seconds, epoch.validation_precision or 0.0]).all()
    try:
        found.require_arrays(NETWORK, "float64", _RUN.make_optimiser().states)
        require_fits(found.metadata, _RUN, Schedule(6, 6, 3, 9, True, 0), "digest")
    except UserError as error:
        assert str(error).isprintable() and len(str(error)) < 1000


_OPTIONS = {"hidden": [5], "activation": "sigmoid", "head": "softmax", "pixel_scale": 255.0}
_NET_OPTIONS = {"net": CONVOLUTIONAL.text, "head": "softmax", "pixel_scale": 255.0, "hidden": [512]}
_SET = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:4].astype(">i2"), "y_test": LABELS[:4]}
_TABLES = pack_table(IMAGES, LABELS), b"a,label,b\n" + pack_table(IMAGES[:, :1, :2], LABELS)
_PARAMETERS = initial_values(NETWORK, "float64", 0)
_NET_PARAMETERS = initial_values(CONVOLUTIONAL, "float64", 0)
_FLOATS = IMAGES.astype(np.float32) / 255
_CONVOLUTIONS = Convolutions([64, 4096], [8], [27, 576], dict.fromkeys(CONVOLUTIONS, [[[1.0, 2.0]]] * 2))
_RATES = replace(
    random_rates(0, HOPPER), tflop_s=50.0, passes_gb_s={"head": 100.0}, convolutions=_CONVOLUTIONS
)

_RUN = Options(hidden=(5,), optimiser="adam", dtype="float64", batch=3)
_PROGRESS = Progress(3, [Epoch(1, 0.5, 0.9, None, 0.1)], 1.5)
_KEPT = {
    **_PARAMETERS,
    **{f"m_{name}": array / 2 for name, array in _PARAMETERS.items()},
    **{f"v_{name}": array * array for name, array in _PARAMETERS.items()},
    "epochs": _PROGRESS.table(),
}
_METADATA = {
    "version": checkpoints.VERSION,
    "progress": {"step": _PROGRESS.step, "loss_sum": _PROGRESS.loss_sum},
    "validation_precision": 0.5,
    "options": {name: _RUN.as_json()[name] for name in ("hidden", "activation", "optimiser", "dtype")},
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
    Reader(
        "CIFAR file",
        "train.bin",
        read_folder,
        require_data_set,
        files=(cifar_files(100, 1)["train.bin"], cifar_files(100, 2)["train.bin"]),
        beside={"test.bin": cifar_files(100, 1)["test.bin"]},
    ),
    Reader("CIFAR archive", "set.tar.gz", read_file, require_data_set, files=(pack_cifar(100, 1),)),
    Reader("CSV", "table.csv", read_file, require_data_set, files=_TABLES),
    Reader("packed CSV", "table.csv.gz", read_file, require_data_set, files=tuple(map(pack_gzip, _TABLES))),
    Reader("PNG", "1.png", read_image, require_image, files=pack_images("PNG"), package="PIL"),
    Reader("JPEG", "1.jpg", read_image, require_image, files=pack_images("JPEG"), package="PIL"),
    Reader("npz", "data.npz", read_npz, require_data_set, members=_SET),
    Reader("mapped npz", "data.npz", read_mapped, require_data_set, members=_SET, deflated=False),
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
        "evaluate net",
        "weights.npz",
        read_evaluated_net,
        require_parameters_of_either,
        members=_NET_PARAMETERS,
        document={"options": _NET_OPTIONS},
    ),
    Reader(
        "safetensors",
        "weights.safetensors",
        read_evaluated,
        require_parameters,
        tensors=_PARAMETERS,
        document={
            "options": _OPTIONS,
            "sha256": {name: digest([array]) for name, array in _PARAMETERS.items()},
        },
        package="safetensors",
    ),
    Reader(
        "pyrtz",
        "weights.pyrtz",
        read_evaluated,
        require_parameters,
        files=pack_pyrtz(_PARAMETERS, {"options": _OPTIONS}),
        document={"options": _OPTIONS},
        package="bitarray",
    ),
    Reader(
        "checkpoint",
        "step-000000000003.npz",
        checkpoints.load,
        require_checkpoint,
        members=_KEPT,
        deflated=False,
        document=_METADATA,
    ),
    Reader(
        "plan",
        "plan.json",
        plan_files.load,
        require_plan,
        document={"grid": [2, 2], "layers": ["rows", "columns"]},
    ),
    Reader(
        "net",
        "net.json",
        net_files.load,
        require_net,
        document={"layers": as_json(CONVOLUTIONAL.layers), "loss": "softmax"},
    ),
    Reader("rates", "rates.json", rates.load, require_rates, document=asdict(_RATES)),
)


def each(readers: Iterable[Reader]) -> pytest.MarkDecorator:
    """Parametrise a test by readers; those whose package is missing are skipped."""
    return pytest.mark.parametrize("reader", [_parameter(reader) for reader in readers])


def _parameter(reader: Reader) -> Any:
    missing = bool(reader.package) and importlib.util.find_spec(reader.package) is None
    skip = pytest.mark.skipif(missing, reason=f"needs {reader.package}: make test installs it")
    return pytest.param(reader, id=reader.name, marks=skip)
