"""What the data tests share: their own writer of IDX files, and the check every error message must pass."""

import gzip
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from nn.input import download
from nn.input.named_sets import SETS, File
from pyrt.errors import UserError
from tests.nn.input.mirrors import file_of

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def pack_idx(array: np.ndarray) -> bytes:
    """The array as the bytes of an IDX file."""
    header = bytes([0, 0, CODES[array.dtype.str[1:]], array.ndim]) + struct.pack(
        f">{array.ndim}I", *array.shape
    )
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_data_set(
    folder: Path, prefix: str = "", split: str = "train", packed: bool = False, n: int = 6
) -> None:
    """Images (n, 4, 3) of random pixels and labels 0, 1, 2, 0, ... under the usual names in ``folder``."""
    pixels = np.random.default_rng(n).integers(0, 256, (n, 4, 3), np.uint8)
    for kind, array in (("images-idx3", pixels), ("labels-idx1", np.arange(n, dtype=np.uint8) % 3)):
        data = pack_idx(array)
        path = folder / f"{prefix}{split}-{kind}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)


@contextmanager
def user_error(*words: object) -> Iterator[None]:
    """Passes when the block raises a ``UserError`` of one line with all of ``words`` in it."""
    with pytest.raises(UserError) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert str(word) in message


@pytest.fixture
def idx_bytes() -> Callable[[np.ndarray], bytes]:
    return pack_idx


@pytest.fixture
def data_set() -> Callable[..., None]:
    return write_data_set


@pytest.fixture
def refused() -> Callable[..., AbstractContextManager[None]]:
    return user_error


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache directory, and no proxy between the tests and their servers."""
    monkeypatch.setenv("PYRT_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    for name in (*download.PROXIES, *download.AUTHORITIES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download, "TIMEOUT", (0.5, 0.5))
    return tmp_path / "cache" / "mnist"


@pytest.fixture
def contents(tmp_path, data_set) -> dict[str, bytes]:
    """What a good mirror serves: the four files, tiny."""
    (tmp_path / "origin").mkdir()
    for split in ("train", "t10k"):
        data_set(tmp_path / "origin", split=split, packed=True)
    contents = {path.name: path.read_bytes() for path in (tmp_path / "origin").iterdir()}
    assert contents.keys() == SETS["mnist"].files.keys()
    return contents


@pytest.fixture
def files(contents) -> dict[str, File]:
    """Their sizes and checksums, in the order in which MNIST's are listed."""
    return {name: file_of(contents[name]) for name in SETS["mnist"].files}
