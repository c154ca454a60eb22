"""MNIST itself: four files, downloaded once into the user's cache directory from any mirror that works."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from nn.input.download import Failed, download
from pyrt import cache
from pyrt.cache import cache_folder
from pyrt.errors import UserError, shown
from pyrt.log import log

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://raw.githubusercontent.com/fgnt/mnist/master/",
    "https://yann.lecun.com/exdb/mnist/",
)

FILES = {
    "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
}


def fetch(mirrors: Sequence[str] = MIRRORS, files: Mapping[str, str] = FILES) -> Path:
    """Download those of ``files`` (name to checksum) that are missing or not whole; return their folder.

    A file appears in the folder whole and verified or not at all. If all files are there the network is not
    used. Processes that call this at once each download for themselves, so let one a node go first.

    Raises ``UserError`` when no mirror gives a file, or the cache directory cannot be written.
    """
    import pooch  # only this data set needs it, and it takes a while

    pooch.get_logger().setLevel("ERROR")
    folder = cache_folder("mnist")
    if not all((folder / name).is_file() for name in files):
        log.info(f"downloading into {shown(folder)} (once)")
    retrieve = partial(pooch.retrieve, path=folder, downloader=download)
    queue = deque(mirrors)
    for name, checksum in files.items():
        try:
            fetch_file(name, checksum, queue, retrieve)
        except OSError as error:
            raise UserError(
                f"{shown(folder)}: cannot be used ({error.strerror or 'no permission'}): "
                f"set {cache.VARIABLE} to a directory you may write to"
            ) from error
    return folder


def fetch_file(name: str, checksum: str, mirrors: deque[str], retrieve: Callable[..., str]) -> None:
    """Get one file from the first of ``mirrors`` that has it; a mirror that fails goes to the queue's end."""
    failures: dict[str, list[str]] = {}
    for _ in range(len(mirrors)):
        try:
            retrieve(mirrors[0] + name, checksum, fname=name)
            return
        except Failed as error:
            why = str(error)
        except ValueError:  # pooch's, where the checksum is wrong
            why = "not the right file (checksum)"
        failures.setdefault(why, []).append(urlsplit(mirrors[0]).netloc)
        mirrors.rotate(-1)
    said = "; ".join(f"{', '.join(hosts)}: {why}" for why, hosts in failures.items())
    raise UserError(
        f"{name} could not be downloaded ({shown(said)}): offline? use --data embedded, "
        f"or --data DIRECTORY with the four files {', '.join(FILES)}"
    )
