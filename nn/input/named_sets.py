"""Data sets by name: downloaded once into the user's cache directory, from any mirror that works.

A line of `SETS` says all of one: its files, the mirrors that have them, and what reads them.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from nn.input import cifar, idx
from nn.input.dataset import DEFAULT, Dataset, Wanted
from nn.input.download import Failed, download
from pyrt import cache
from pyrt.cache import cache_folder
from pyrt.errors import UserError, shown
from pyrt.log import log


class File(NamedTuple):
    """A file as it should be: its size in bytes, and its SHA-256 in hexadecimal digits."""

    size: int
    sha256: str


@dataclass(frozen=True)
class NamedSet:
    """A data set that is downloaded.

    mirrors: URLs to which the name of a file is added. load: reads the folder of the files.
    installed: the folder where a Debian package, ``package``, puts the same data.
    image_shape, classes: those of what it holds.
    """

    name: str
    title: str
    mirrors: Sequence[str]
    files: Mapping[str, File]
    load: Callable[[Path, Wanted], Dataset] = idx.load
    installed: Path | None = None
    package: str = ""
    image_shape: tuple[int, ...] = (28, 28)
    classes: int = 10


def _idx_files(*files: File) -> dict[str, File]:
    """Name the training images and labels, then the test images and labels, as MNIST's are called."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return {f"{name}-ubyte.gz": file for name, file in zip(names, files, strict=True)}


def _cifar(classes: int, file: File) -> NamedSet:
    """Describe CIFAR-10 or CIFAR-100, which are one archive."""
    name, archive = f"cifar{classes}", f"cifar-{classes}-binary.tar.gz"
    mirrors = (
        "https://www.cs.toronto.edu/~kriz/",
        f"https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/gluon/dataset/{name}/",
        "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/",
    )

    def load(folder: Path, wanted: Wanted) -> Dataset:
        return cifar.load_archive(folder / archive, wanted)

    title, images = f"CIFAR-{classes}", (32, 32, 3)
    return NamedSet(name, title, mirrors, {archive: file}, load, image_shape=images, classes=classes)


# Sizes and checksums: TensorFlow Datasets, url_checksums.
_ALL = (
    NamedSet(
        "mnist",
        "MNIST",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://raw.githubusercontent.com/fgnt/mnist/master/",
            "https://yann.lecun.com/exdb/mnist/",
        ),
        _idx_files(
            File(9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            File(28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            File(1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            File(4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
    ),
    NamedSet(
        "fashion-mnist",
        "Fashion-MNIST",
        (
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        ),
        _idx_files(
            File(26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            File(29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            File(4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            File(5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ),
        installed=Path("/usr/share/datasets/fashion-mnist"),
        package="dataset-fashion-mnist",
    ),
    NamedSet(
        "kmnist",
        "KMNIST",
        (
            "https://codh.rois.ac.jp/kmnist/dataset/kmnist/",
            "http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
        ),
        _idx_files(
            File(18165135, "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4"),
            File(29497, "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17"),
            File(3041136, "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5"),
            File(5120, "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c"),
        ),
    ),
    _cifar(10, File(170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd")),
    _cifar(100, File(168513733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec")),
)
SETS = {one.name: one for one in _ALL}
"""By the word that ``--data`` takes."""


def load(named: NamedSet, wanted: Wanted = DEFAULT) -> Dataset:
    """Read a data set from where a package of the system put it, else from the cache; download it first.

    Raises ``UserError`` when it can be got from nowhere, or is not whole.
    """
    folder = named.installed
    if folder is None or not all((folder / name).is_file() for name in named.files):
        folder = fetch(named)
    return replace(named.load(folder, wanted), name=named.title)


def fetch(named: NamedSet) -> Path:
    """Download those of a set's files that are missing or not whole; return their folder.

    A file appears in the folder whole and verified or not at all. If all files are there the network is not
    used. Processes that call this at once each download for themselves, so let one a node go first.

    Raises ``UserError`` when no mirror gives a file, or the cache directory cannot be written.
    """
    import pooch  # only these data sets need it, and it takes a while

    pooch.get_logger().setLevel("ERROR")
    folder = cache_folder(named.name)
    if not all((folder / name).is_file() for name in named.files):
        log.info(f"downloading into {shown(folder)} (once)")
    retrieve = partial(pooch.retrieve, path=folder)
    queue = deque(named.mirrors)
    for name in named.files:
        try:
            fetch_file(named, name, queue, retrieve)
        except OSError as error:
            raise UserError(
                f"{shown(folder)}: cannot be used ({error.strerror or 'no permission'}): "
                f"set {cache.VARIABLE} to a directory you may write to"
            ) from error
    return folder


def fetch_file(named: NamedSet, name: str, mirrors: deque[str], retrieve: Callable[..., str]) -> None:
    """Get one file from the first of ``mirrors`` that has it; a mirror that fails goes to the queue's end."""
    failures: dict[str, list[str]] = {}
    size, sha256 = named.files[name]
    for _ in range(len(mirrors)):
        try:
            retrieve(
                mirrors[0] + name, f"sha256:{sha256}", fname=name, downloader=partial(download, size=size)
            )
            return
        except Failed as error:
            why = str(error)
        except ValueError:  # pooch's, where the checksum is wrong
            why = "not the right file (checksum)"
        failures.setdefault(why, []).append(urlsplit(mirrors[0]).netloc)
        mirrors.rotate(-1)
    said = "; ".join(f"{', '.join(hosts)}: {why}" for why, hosts in failures.items())
    raise UserError(
        f"{name} could not be downloaded ({shown(said)}): offline? use --data embedded, {_instead(named)}"
    )


def _instead(named: NamedSet) -> str:
    """Say how else to give the data set."""
    package = f"install the package {named.package}, " if named.package else ""
    names = ", ".join(named.files)
    if len(named.files) == 1:
        return f"{package}or --data PATH/{names}"
    return f"{package}or --data DIRECTORY with the files {names}"
