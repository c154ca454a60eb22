"""nn/input/download.py: why a download failed, as people can mend it."""

import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from nn.input.named_sets import File
from pyrt.errors import UserError
from tests.nn.input.mirrors import dead_mirror, fetch, mirror, mute_mirror

pytestmark = pytest.mark.usefixtures("cache")


def why(monkeypatch: pytest.MonkeyPatch, url: str = "https://127.0.0.1:9/", **environment: str) -> str:
    """The reason that is given with these environment variables."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        fetch([url, url], {"file": File(1, "0" * 64)})
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
