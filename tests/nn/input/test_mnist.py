"""nn/input/mnist.py and download.py: against HTTP servers on this machine; no test touches the network."""

import gzip
import hashlib
import io
import logging
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pooch
import pytest

from nn.input import download, idx, mnist
from pyrt.errors import UserError


@pytest.fixture(autouse=True)
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
    assert contents.keys() == mnist.FILES.keys()
    return contents


@pytest.fixture
def files(contents) -> dict[str, str]:
    """Their checksums, in the order in which MNIST's are listed."""
    return {name: f"md5:{hashlib.md5(contents[name]).hexdigest()}" for name in mnist.FILES}


Answer = Callable[[str], tuple[int, int, bytes]]  # file name -> status, announced length, body


@contextmanager
def mirror(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server on this machine; gives its URL and the growing list of the files it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            asked.append(name)
            status, length, body = answer(name)
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/mnist/", asked
        finally:
            server.shutdown()
            thread.join()


def good(contents: dict[str, bytes]) -> Answer:
    return lambda name: (200, len(contents[name]), contents[name])


def changed(contents: dict[str, bytes]) -> Answer:
    return lambda name: (200, len(contents[name]), contents[name][:-1] + b"!")


def html(contents: dict[str, bytes]) -> Answer:
    page = b"<!DOCTYPE html><title>Please log in to this network</title>"
    return lambda name: (200, len(page), page)


def missing(contents: dict[str, bytes]) -> Answer:
    return lambda name: (404, 9, b"not found")


def truncated(contents: dict[str, bytes]) -> Answer:
    return lambda name: (200, len(contents[name]), contents[name][:-10])


@contextmanager
def dead_mirror() -> Iterator[str]:
    """A port nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/mnist/"


@contextmanager
def mute_mirror() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mnist/"


def held(folder: Path) -> dict[str, bytes]:
    """All that is in the cache, leftovers of broken downloads included."""
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def test_good_mirror(cache, contents, files):
    with mirror(good(contents)) as (url, asked):
        folder = mnist.fetch([url], files)
    assert folder == cache
    assert held(folder) == contents
    assert asked == list(files)
    assert idx.load(folder).images.shape == (6, 12)


def test_the_second_time_no_network_is_touched(cache, contents, files):
    with mirror(good(contents)) as (url, asked):
        mnist.fetch([url], files)
        assert mnist.fetch([url], files) == cache
        assert len(asked) == 4
    assert mnist.fetch([url], files) == cache  # the server is gone


@pytest.mark.parametrize("bad", [changed, html, missing, truncated])
def test_a_bad_mirror_is_passed_over(cache, contents, files, bad):
    with mirror(bad(contents)) as (bad_url, bad_asked), mirror(good(contents)) as (url, _):
        mnist.fetch([bad_url, url], files)
    assert held(cache) == contents
    assert len(bad_asked) == 1  # once it failed it is asked last


@pytest.mark.parametrize("silent", [dead_mirror, mute_mirror])
def test_a_silent_first_mirror_is_passed_over(cache, contents, files, silent):
    start = time.perf_counter()
    with silent() as silent_url, mirror(good(contents)) as (url, _):
        mnist.fetch([silent_url, url], files)
    assert held(cache) == contents
    assert time.perf_counter() - start < 4  # TIMEOUT is half a second here


def test_mirrors_may_each_lack_something(cache, contents, files):
    first, *_, last = files
    lacks = [{**contents, name: b"rubbish"} for name in (first, last)]
    with mirror(good(lacks[0])) as (one, _), mirror(good(lacks[1])) as (two, _):
        mnist.fetch([one, two], files)
    assert held(cache) == contents


@pytest.mark.parametrize("bad", [changed, html, missing, truncated])
def test_a_bad_download_leaves_nothing_behind(cache, contents, files, refused, bad):
    with mirror(bad(contents)) as (url, _), refused("train-images-idx3-ubyte.gz"):
        mnist.fetch([url], files)
    assert held(cache) == {}


def test_without_a_mirror_the_choices_are_named(contents, files, refused):
    with ExitStack() as stack:
        urls = [stack.enter_context(mirror(bad(contents)))[0] for bad in (changed, missing)]
        urls += [stack.enter_context(dead_mirror()), stack.enter_context(mute_mirror())]
        hosts = [url.split("/")[2] for url in urls]
        reasons = ["not the right file (checksum)", "HTTP status 404", "no connection", "no answer in time"]
        expected = [f"{host}: {reason}" for host, reason in zip(hosts, reasons, strict=True)]
        with refused("--data embedded", "--data DIRECTORY", *mnist.FILES, *expected):
            mnist.fetch(urls, files)


@contextmanager
def trickling_mirror(head: bytes) -> Iterator[str]:
    """A server that sends this at once, then a byte now and then, far sooner than a socket's timeout."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):  # the other side has left, or the test is over
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(head)
                    while True:
                        connection.sendall(b"x")
                        time.sleep(0.1)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mnist/"


@pytest.mark.parametrize(
    "head", [b"", b"HTTP/1.1 200 OK\r\nX-Header: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n"]
)
def test_a_mirror_that_sends_a_byte_now_and_then_is_given_up(
    cache, contents, files, refused, monkeypatch, head
):
    monkeypatch.setattr(download, "LIMIT", 0.75)  # and sockets wait for half a second
    with trickling_mirror(head) as url, refused("too slow (not there after 0.75 s)", url.split("/")[2]):
        mnist.fetch([url], files)
    assert held(cache) == {}


def test_a_mirror_that_sends_no_end_fills_no_memory(cache, contents, files, refused, monkeypatch):
    monkeypatch.setattr(download, "MOST", 5000)
    long = {name: bytes(6000) for name in contents}
    with mirror(good(long)) as (url, _), refused("no whole answer (more than 5000 bytes)"):
        mnist.fetch([url], files)
    assert held(cache) == {}


# --- why a download failed ----------------------------------------


def why(monkeypatch: pytest.MonkeyPatch, url: str = "https://127.0.0.1:9/", **environment: str) -> str:
    """The reason that is given with these environment variables."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        mnist.fetch([url, url], {"file": "md5:" + "0" * 32})
    host, found = url.split("/")[2], str(caught.value)
    before, after = f"file could not be downloaded ({host}, {host}: ", "): offline? use --data embedded"
    assert found.startswith(before) and after in found and "\n" not in found
    return found.removeprefix(before).partition(after)[0]


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize(
    ("proxy", "reason"),
    [
        ("foo://127.0.0.1:1", "the proxy is not of the form http://host:port"),
        ("http://", "the proxy is not of the form http://host:port"),
        ("http://me:secret@:::::", "the proxy is not of the form http://host:port"),
        ("http://127.0.0.1:1", "the proxy cannot be used (Connection refused"),
    ],
)
def test_a_proxy_that_is_none(monkeypatch, variable, proxy, reason):
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    said = why(monkeypatch, **{variable: proxy})
    assert said.startswith(reason) and f"see {variable})" in said and "secret" not in said


def test_a_proxy_that_does_not_answer_or_refuses(monkeypatch):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    with mute_mirror() as url:
        proxy = url.removesuffix("mnist/")
        assert why(monkeypatch, HTTPS_PROXY=proxy) == "no answer in time (by the proxy of HTTPS_PROXY)"
    with dead_mirror() as url:
        assert "the proxy cannot be used (Connection refused" in why(monkeypatch, HTTPS_PROXY=url)
    with mirror(lambda name: (200, 0, b"")) as (url, _):  # it knows no CONNECT
        assert "the proxy cannot be used (Tunnel connection failed: 501" in why(monkeypatch, HTTPS_PROXY=url)


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_certificate_authorities_that_are_not_there(monkeypatch, tmp_path, variable):
    """It said that there is no permission to use the cache."""
    missing = tmp_path / "missing.pem"
    said = why(monkeypatch, **{variable: str(missing)})
    assert str(missing) in said and f"see {variable})" in said


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_certificate_that_is_refused(monkeypatch, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost"
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = [*make.split(), "-days", "2", "-addext", "subjectAltName=IP:127.0.0.1", *files]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with mirror(lambda name: (404, 0, b""), context) as (url, _):
        url = url.replace("http:", "https:")
        assert why(monkeypatch, url).startswith("the certificate is refused (self-signed certificate; ")
        assert why(monkeypatch, url, REQUESTS_CA_BUNDLE=str(certificate)) == "HTTP status 404"
        assert why(monkeypatch, url, REQUESTS_CA_BUNDLE=str(key)).startswith("no secure connection (")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc", "no whole answer (IncompleteRead(3 bytes read"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nabc", "no whole answer (invalid literal"),
        (b"HTTP/1.1 302 Found\r\nLocation: foo://x\r\n\r\n", "no whole answer (No connection adapters"),
        (b"rubbish\r\n\r\n", "no connection (rubbish"),
    ],
)
def test_an_answer_that_is_none(monkeypatch, answer, reason):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for _ in range(2):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert why(monkeypatch, f"http://127.0.0.1:{listening.getsockname()[1]}/").startswith(reason)
        thread.join()


def test_a_name_that_nobody_knows(monkeypatch):
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert why(monkeypatch, "https://mirror.invalid/") == "no connection (Name or service not known)"


def test_a_disk_that_is_full(cache, contents, files, refused, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with mirror(good(contents)) as (url, _), refused(cache, "No space left on device", "PYRT_CACHE_DIR"):
        mnist.fetch([url], files)


def test_a_damaged_file_in_the_cache_is_fetched_again(cache, contents, files):
    cache.mkdir(parents=True)
    name = next(iter(files))
    (cache / name).write_bytes(contents[name][:-1])
    with mirror(good(contents)) as (url, _):
        mnist.fetch([url], files)
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
            mnist.fetch([f"http://127.0.0.1:{server.server_port}/"], files)
    assert seen == ["identity"]


def test_a_cache_that_cannot_be_made(tmp_path, contents, files, refused, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PYRT_CACHE_DIR", str(tmp_path / "file"))
    with refused(tmp_path / "file", "PYRT_CACHE_DIR"):
        mnist.fetch(["http://127.0.0.1:9/"], files)


def test_a_cache_without_permission(cache, contents, files, refused, monkeypatch):
    def deny(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "makedirs", deny)
    with refused(cache, "PYRT_CACHE_DIR"):
        mnist.fetch(["http://127.0.0.1:9/"], files)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_progress_bar_only_on_a_terminal(contents, files, capsys, monkeypatch, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with mirror(good(contents)) as (url, _):
        mnist.fetch([url], files)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("100%" in err) if terminal else (err == "")


def test_pooch_says_nothing_of_its_own(contents, files, monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr(pooch.get_logger(), "handlers", [logging.StreamHandler(said)])
    with mirror(good(contents)) as (url, _):
        mnist.fetch([url], files)
    assert said.getvalue() == ""


def test_the_real_mirrors_are_https_and_the_files_have_checksums():
    assert len(mnist.MIRRORS) >= 3
    assert all(url.startswith("https://") and url.endswith("/") for url in mnist.MIRRORS)
    assert all(len(checksum) == len("md5:") + 32 for checksum in mnist.FILES.values())


def test_importing_the_data_package_does_not_import_pooch():
    """It and requests take longer to import than the digits to read."""
    code = "import sys, nn.input; sys.exit('pooch' in sys.modules or 'requests' in sys.modules)"
    root = Path(mnist.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_pixels_survive_the_way_from_server_to_rows(contents, files):
    with mirror(good(contents)) as (url, _):
        found = idx.load(mnist.fetch([url], files))
    packed = gzip.decompress(contents["train-images-idx3-ubyte.gz"])
    np.testing.assert_array_equal(found.images.ravel(), np.frombuffer(packed[16:], np.uint8))
