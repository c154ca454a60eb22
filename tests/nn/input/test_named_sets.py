"""nn/input/named_sets.py, and what download.py does: against servers on this machine."""

import gzip
import io
import logging
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pooch
import pytest

from nn.input import download, idx, load, named_sets
from nn.input.named_sets import SETS, NamedSet
from tests.nn.input.made import pack_cifar
from tests.nn.input.mirrors import (
    changed,
    dead_mirror,
    fetch,
    file_of,
    good,
    held,
    html,
    mirror,
    missing,
    mute_mirror,
    trickling_mirror,
    truncated,
)

pytestmark = pytest.mark.usefixtures("cache")


def test_good_mirror(cache, contents, files):
    with mirror(good(contents)) as (url, asked):
        folder = fetch([url], files)
    assert folder == cache
    assert held(folder) == contents
    assert asked == list(files)
    assert idx.load(folder).images.shape == (6, 12)


def test_the_second_time_no_network_is_touched(cache, contents, files):
    with mirror(good(contents)) as (url, asked):
        fetch([url], files)
        assert fetch([url], files) == cache
        assert len(asked) == 4
    assert fetch([url], files) == cache  # the server is gone


@pytest.mark.parametrize("bad", [changed, html, missing, truncated])
def test_a_bad_mirror_is_passed_over(cache, contents, files, bad):
    with mirror(bad(contents)) as (bad_url, bad_asked), mirror(good(contents)) as (url, _):
        fetch([bad_url, url], files)
    assert held(cache) == contents
    assert len(bad_asked) == 1  # once it failed it is asked last


@pytest.mark.parametrize("silent", [dead_mirror, mute_mirror])
def test_a_silent_first_mirror_is_passed_over(cache, contents, files, silent):
    start = time.perf_counter()
    with silent() as silent_url, mirror(good(contents)) as (url, _):
        fetch([silent_url, url], files)
    assert held(cache) == contents
    assert time.perf_counter() - start < 4  # TIMEOUT is half a second here


def test_mirrors_may_each_lack_something(cache, contents, files):
    first, *_, last = files
    lacks = [{**contents, name: b"rubbish"} for name in (first, last)]
    with mirror(good(lacks[0])) as (one, _), mirror(good(lacks[1])) as (two, _):
        fetch([one, two], files)
    assert held(cache) == contents


@pytest.mark.parametrize("bad", [changed, html, missing, truncated])
def test_a_bad_download_leaves_nothing_behind(cache, contents, files, refused, bad):
    with mirror(bad(contents)) as (url, _), refused("train-images-idx3-ubyte.gz"):
        fetch([url], files)
    assert held(cache) == {}


def test_without_a_mirror_the_choices_are_named(contents, files, refused):
    with ExitStack() as stack:
        urls = [stack.enter_context(mirror(bad(contents)))[0] for bad in (changed, missing)]
        urls += [stack.enter_context(dead_mirror()), stack.enter_context(mute_mirror())]
        hosts = [url.split("/")[2] for url in urls]
        reasons = ["not the right file (checksum)", "HTTP status 404", "no connection", "no answer in time"]
        expected = [f"{host}: {reason}" for host, reason in zip(hosts, reasons, strict=True)]
        with refused("--data embedded", "--data DIRECTORY", *SETS["mnist"].files, *expected):
            fetch(urls, files)


@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 200 OK\r\nX-Header: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n"]
)
def test_a_mirror_that_sends_a_byte_now_and_then_is_given_up(
    cache, contents, files, refused, monkeypatch, head
):
    monkeypatch.setattr(download, "LIMIT", 0.75)  # and sockets wait for half a second
    with trickling_mirror(head) as url, refused("too slow (not there after 0.75 s)", url.split("/")[2]):
        fetch([url], files)
    assert held(cache) == {}


def test_a_mirror_that_sends_no_end_fills_no_memory(cache, contents, files, refused):
    long = {name: bytes(6000) for name in contents}
    size = files["train-images-idx3-ubyte.gz"].size
    with mirror(good(long)) as (url, _), refused(f"no whole answer (more than {size} bytes)"):
        fetch([url], files)
    assert held(cache) == {}


def test_a_disk_that_is_full(cache, contents, files, refused, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with mirror(good(contents)) as (url, _), refused(cache, "No space left on device", "PYRT_CACHE_DIR"):
        fetch([url], files)


def test_a_damaged_file_in_the_cache_is_fetched_again(cache, contents, files):
    cache.mkdir(parents=True)
    name = next(iter(files))
    (cache / name).write_bytes(contents[name][:-1])
    with mirror(good(contents)) as (url, _):
        fetch([url], files)
    assert held(cache) == contents


def test_a_mirror_that_unpacks_as_it_serves_is_asked_not_to(cache, contents, files):
    """Some label .gz files as transfer-encoded; unpacked on arrival they would fail their checksum."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Accept-Encoding"])
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request).start()
        with pytest.raises(Exception, match="404"):
            fetch([f"http://127.0.0.1:{server.server_port}/"], files)
    assert seen == ["identity"]


def test_a_cache_that_cannot_be_made(tmp_path, contents, files, refused, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PYRT_CACHE_DIR", str(tmp_path / "file"))
    with refused(tmp_path / "file", "PYRT_CACHE_DIR"):
        fetch(["http://127.0.0.1:9/"], files)


def test_a_cache_without_permission(cache, contents, files, refused, monkeypatch):
    def deny(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "makedirs", deny)
    with refused(cache, "PYRT_CACHE_DIR"):
        fetch(["http://127.0.0.1:9/"], files)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_progress_bar_only_on_a_terminal(contents, files, capsys, monkeypatch, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with mirror(good(contents)) as (url, _):
        fetch([url], files)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("100%" in err) if terminal else (err == "")


def test_pooch_says_nothing_of_its_own(contents, files, monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr(pooch.get_logger(), "handlers", [logging.StreamHandler(said)])
    with mirror(good(contents)) as (url, _):
        fetch([url], files)
    assert said.getvalue() == ""


@pytest.mark.parametrize("name", SETS)
def test_the_real_mirrors_and_checksums(name):
    """Of files that are checked by SHA-256, one mirror may do without TLS."""
    named = SETS[name]
    assert named.name == name and len(named.mirrors) >= 2
    assert named.mirrors[0].startswith("https://") and all(url.endswith("/") for url in named.mirrors)
    for file in named.files.values():
        assert len(file.sha256) == 64 and set(file.sha256) <= set("0123456789abcdef") and file.size > 1000


def test_importing_the_data_package_does_not_import_pooch():
    """It and requests take longer to import than the digits to read."""
    code = "import sys, nn.input; sys.exit('pooch' in sys.modules or 'requests' in sys.modules)"
    root = Path(named_sets.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_pixels_survive_the_way_from_server_to_rows(contents, files):
    with mirror(good(contents)) as (url, _):
        found = idx.load(fetch([url], files))
    packed = gzip.decompress(contents["train-images-idx3-ubyte.gz"])
    np.testing.assert_array_equal(found.images.ravel(), np.frombuffer(packed[16:], np.uint8))


# --- the sets ----------------------------------------


def test_each_set_has_a_folder_of_its_own(cache, contents, files):
    with mirror(good(contents)) as (url, _):
        folder = named_sets.fetch(replace(SETS["kmnist"], mirrors=[url], files=files))
    assert folder == cache.with_name("kmnist") and held(folder) == contents


def test_large_files_are_given_more_time(cache, contents, files, refused, monkeypatch):
    monkeypatch.setattr(download, "LIMIT", 0.1)
    monkeypatch.setattr(download, "SLOWEST", 4 * files["train-images-idx3-ubyte.gz"].size)
    with trickling_mirror(b"") as url, refused("too slow (not there after 0.25 s)"):
        fetch([url], files)


@pytest.fixture
def fashion(contents, files, tmp_path, monkeypatch) -> NamedSet:
    """Fashion-MNIST of tiny files, which a package may have put into a folder of the system."""
    made = replace(
        SETS["fashion-mnist"], mirrors=["http://127.0.0.1:9/"], files=files, installed=tmp_path / "usr"
    )
    monkeypatch.setitem(SETS, "fashion-mnist", made)
    return made


def test_the_files_of_a_package_are_taken_as_they_are(fashion, tmp_path):
    """Debian's are packed anew: the checksums differ, the contents do not."""
    (tmp_path / "origin").rename(tmp_path / "usr")
    labels = tmp_path / "usr" / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(gzip.decompress(labels.read_bytes()), 1, mtime=1))
    found = load("fashion-mnist")
    assert (found.name, found.images.shape, found.image_shape) == ("Fashion-MNIST", (6, 12), (4, 3))


@pytest.mark.parametrize("lost", ["train-labels-idx1-ubyte.gz", ""])
def test_a_package_that_is_not_whole_is_not_taken(fashion, tmp_path, refused, lost):
    if lost:
        (tmp_path / "origin").rename(tmp_path / "usr")
        (tmp_path / "usr" / lost).unlink()
    with refused("could not be downloaded", "install the package dataset-fashion-mnist, or --data DIRECTORY"):
        load("fashion-mnist")


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_is_read_from_the_archive_that_was_downloaded(monkeypatch, refused, classes):
    named = SETS[f"cifar{classes}"]
    archive = pack_cifar(classes)
    [name] = named.files
    with mirror(lambda asked: (200, len(archive), archive)) as (url, asked):
        monkeypatch.setitem(SETS, named.name, replace(named, mirrors=[url], files={name: file_of(archive)}))
        found = load(named.name)
    assert asked == [f"cifar-{classes}-binary.tar.gz"] == [name]
    assert (found.name, found.image_shape) == (f"CIFAR-{classes}", (32, 32, 3))
    monkeypatch.setitem(SETS, "cifar10", replace(SETS["cifar10"], mirrors=["http://127.0.0.1:9/"]))
    if classes == 100:
        with refused("offline? use --data embedded, or --data PATH/cifar-10-binary.tar.gz"):
            load("cifar10")
