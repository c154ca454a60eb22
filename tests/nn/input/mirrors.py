"""Mirrors on this machine, good and bad, and downloads from them; no test touches the network."""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from nn.input import named_sets
from nn.input.named_sets import SETS, File


def file_of(content: bytes) -> File:
    return File(len(content), hashlib.sha256(content).hexdigest())


def fetch(urls: Sequence[str], files: Mapping[str, File]) -> Path:
    """Download MNIST as it would be with these mirrors and files."""
    return named_sets.fetch(replace(SETS["mnist"], mirrors=urls, files=files))


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
