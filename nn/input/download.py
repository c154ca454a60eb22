"""One download over HTTP, given up after a time in all; and why it failed, as people can mend it."""

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

# Seconds to connect to each of a host's addresses (a mirror has up to 16), and to wait for the next bytes.
TIMEOUT = (2.0, 10.0)
LIMIT = 300.0  # seconds for a whole file: one of 10 MB then comes with 33 kB a second or more
SLOWEST = 200_000  # bytes a second, for files that this gives more time

AUTHORITIES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


class Failed(Exception):
    """A file was not downloaded; the text says why."""


class Held(io.BytesIO):
    """The bytes of a file on its way, held in memory until it is whole."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        """Take more bytes; ``ValueError`` for more than the file has, and where they are wanted no more."""
        if self.tell() + len(data) > self._most:
            raise ValueError(f"more than {self._most} bytes")
        return super().write(data)


def download(url: str, output_file: str, _: object, size: int) -> None:
    """Download ``url``, of ``size`` bytes, into a file; ``Failed`` where the other side is to blame.

    Called by pooch.

    A mirror that sends a byte now and then passes the timeouts of sockets, in its header and in its file. So
    a thread of its own waits for it, which is left behind where it takes too long.
    """
    import pooch

    get = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(), timeout=TIMEOUT, headers={"Accept-Encoding": "identity"}
    )
    limit = max(LIMIT, size / SLOWEST)
    held, ended = Held(size), SimpleQueue[Exception | None]()

    def run() -> None:
        try:
            get(url, held, None)
            ended.put(None)
        except Exception as error:
            ended.put(error)

    Thread(target=run, name="download", daemon=True).start()
    try:
        error = ended.get(timeout=limit)
    except Empty:
        held.close()
        raise Failed(f"too slow (not there after {limit:g} s)") from None
    if isinstance(error, OSError | ValueError):  # requests raises both, of its own and not
        raise Failed(reason(error, url)) from error
    if error is not None:
        raise error
    Path(output_file).write_bytes(held.getvalue())


def reason(error: Exception, url: str) -> str:
    """Say in a few words why a download failed, and which setting of the user's is to blame, if one is."""
    from requests import exceptions as requests
    from requests.utils import get_environ_proxies, select_proxy

    cause = list(causes(error))[-1]
    what = next(filter(None, (getattr(cause, name, None) for name in ("verify_message", "strerror"))), cause)
    is_proxied = select_proxy(url, get_environ_proxies(url)) is not None
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"HTTP status {error.response.status_code}"
    if is_proxied and isinstance(error, requests.InvalidURL):
        # Not shown: it may have a password.
        return f"the proxy is not of the form http://host:port (see {given(PROXIES)})"
    if is_proxied and isinstance(error, requests.InvalidSchema | requests.ProxyError):
        return f"the proxy cannot be used ({what}; see {given(PROXIES)})"
    if isinstance(error, requests.SSLError):
        failed = "the certificate is refused" if hasattr(cause, "verify_message") else "no secure connection"
        return f"{failed} ({what}; for authorities of your own see {given(AUTHORITIES)})"
    if isinstance(error, requests.Timeout) or isinstance(cause, TimeoutError):
        return f"no answer in time{f' (by the proxy of {given(PROXIES)})' if is_proxied else ''}"
    if isinstance(error, requests.ConnectionError):
        return f"no connection ({what})"
    if isinstance(error, requests.RequestException | ValueError):
        return f"no whole answer ({what})"
    return f"{what} (see {given(AUTHORITIES)})"  # the OSError that requests raises where they are not there


def given(variables: tuple[str, ...]) -> str:
    """Return the first of these environment variables that is set, else the first."""
    return next((name for name in variables if os.environ.get(name)), variables[0])


def causes(error: BaseException) -> Iterator[BaseException]:
    """Give an exception and those that led to it, back to the first."""
    while True:
        yield error
        before = error.__cause__ or error.__context__
        if before is None:
            return
        error = before
