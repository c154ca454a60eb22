"""Small files of the formats that `load` reads, for tests of the readers and of what uses them."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping

import numpy as np

CIFAR_NAMES = {
    10: (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"),
    100: ("train.bin", "test.bin"),
}


def cifar_images(n: int, seed: int = 0) -> np.ndarray:
    """Images (n, 32, 32, 3) as a data set should have them."""
    return np.random.default_rng(seed).integers(0, 256, (n, 32, 32, 3), np.uint8)


def pack_records(images: np.ndarray, *labels: np.ndarray) -> bytes:
    """Images (n, 32, 32, 3) as CIFAR's file, each behind these label bytes."""
    planes = [images[:, :, :, channel].reshape(-1, 1024) for channel in range(3)]
    return np.concatenate([*(label[:, None].astype(np.uint8) for label in labels), *planes], axis=1).tobytes()


def cifar_files(classes: int, n: int = 2) -> dict[str, bytes]:
    """The files of CIFAR-10 or CIFAR-100, with n images each; labels 0, 1, .. and coarse ones that are 7."""
    labels = np.arange(n)
    coarse = [np.full(n, 7)] if classes == 100 else []
    return {
        name: pack_records(cifar_images(n, seed), *coarse, labels)
        for seed, name in enumerate(CIFAR_NAMES[classes])
    }


def pack_tar(files: Mapping[str, bytes], packed: bool = True) -> bytes:
    """A .tar.gz of these files, as Python writes it; the same bytes at any time."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(held.getvalue(), mtime=0) if packed else held.getvalue()


def pack_cifar(classes: int, n: int = 2) -> bytes:
    """The archive of CIFAR-10 or CIFAR-100, with a text among the files, as it is downloaded."""
    folder = "cifar-10-batches-bin" if classes == 10 else "cifar-100-binary"
    files = {f"{folder}/{name}": content for name, content in cifar_files(classes, n).items()}
    return pack_tar({f"{folder}/readme.html": b"<html>", **files})


def pack_table(images: np.ndarray, labels: np.ndarray) -> bytes:
    """Images (n, ..) and labels (n,) as comma-separated values, the label first."""
    rows = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1)
    return "".join(",".join(map(str, row)) + "\n" for row in rows.tolist()).encode()


def pack_images(form: str) -> tuple[bytes, ...]:
    """A grey image of 9 x 7 pixels and one in colour, as ``PNG`` or ``JPEG``; none without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        return ()
    files = []
    for pixels in (cifar_images(1)[0, :9, :7, 0], cifar_images(1)[0, :9, :7]):
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(file, form)
        files.append(file.getvalue())
    return tuple(files)
