"""MNIST itself: four files, downloaded once into the user's cache directory from any mirror that works."""

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

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

# Seconds to connect to each of a host's addresses (a mirror has up to 16), and to wait for the next bytes.
TIMEOUT = (2.0, 10.0)


def fetch(mirrors: Sequence[str] = MIRRORS, files: Mapping[str, str] = FILES) -> Path:
    """The folder with ``files`` (name to checksum), after downloading those that are not there or not whole.

    A file appears in the folder whole and verified or not at all. With everything there the network is left
    alone. Processes that call this at once each download for themselves, so let one a node go first.

    Raises ``UserError`` when no mirror gives a file, or the cache directory cannot be written.
    """
    import pooch  # only this data set needs it, and it takes a while

    pooch.get_logger().setLevel("ERROR")
    folder = cache_folder("mnist")
    if not all((folder / name).is_file() for name in files):
        log.info(f"downloading into {shown(folder)} (once)")
    downloader = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(), timeout=TIMEOUT, headers={"Accept-Encoding": "identity"}
    )
    retrieve = partial(pooch.retrieve, path=folder, downloader=downloader)
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
    from requests import RequestException

    failures = []
    for _ in range(len(mirrors)):
        try:
            retrieve(mirrors[0] + name, checksum, fname=name)
            return
        except (RequestException, ValueError) as error:  # pooch says ValueError where the checksum is wrong
            failures.append(f"{urlsplit(mirrors[0]).netloc}: {reason(error)}")
            mirrors.rotate(-1)
    raise UserError(
        f"{name} could not be downloaded ({'; '.join(failures)}): offline? use --data embedded, "
        f"or --data DIRECTORY with the four files {', '.join(FILES)}"
    )


def reason(error: Exception) -> str:
    """Why a mirror was passed over, in a few words."""
    from requests import ConnectionError, HTTPError, Timeout

    if isinstance(error, HTTPError) and error.response is not None:
        return f"HTTP status {error.response.status_code}"
    if isinstance(error, Timeout):
        return "no answer in time"
    if isinstance(error, ConnectionError):
        return "no connection"
    return "not the right file (checksum)" if isinstance(error, ValueError) else type(error).__name__
