"""The engine's jars, and their download from a repository on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.certificates import certificate
from volstream.errors import JavaError
from volstream.spark.jvm import install


class Repository:
    """A Maven repository on this machine, with TLS or without."""

    def __init__(self, scheme: str, server: http.server.HTTPServer) -> None:
        self.url = f"{scheme}://127.0.0.1:{server.server_port}/mirror"
        self.answers: dict[str, list[tuple[int, bytes]]] = {}  #: by name of the jar: what the next requests get
        self.asked: list[str] = []


@pytest.fixture
def serve() -> Iterator[Callable[..., Repository]]:
    with contextlib.ExitStack() as stack:

        def start(tls: ssl.SSLContext | None = None) -> Repository:
            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    repository.asked.append(self.path)
                    status, content = repository.answers[self.path.rpartition("/")[2]].pop(0)
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

                def log_message(self, *_: object) -> None:
                    pass

            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            if tls is not None:
                server.socket = tls.wrap_socket(server.socket, server_side=True)
            repository = Repository("http" if tls is None else "https", server)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            return repository

        yield start


JAR = install.Jar("org.thing", "thing", "1", hashlib.sha256(b"tested").hexdigest())


def test_missing_jars_are_named_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match=r"delta-storage-4\.4\.0\.jar") as caught:
        install.cached_jars(tmp_path)
    assert "volstream setup" in caught.value.remedy


def test_jars_are_fetched_from_a_mirror_and_once_more_after_an_error_that_may_pass(
    tmp_path: Path, serve: Callable[..., Repository]
) -> None:
    repository = serve()
    repository.answers["thing-1.jar"] = [(503, b""), (200, b"tested")]
    assert install.fetch_jars(tmp_path, [JAR], repository.url)
    assert repository.asked == ["/mirror/org/thing/thing/1/thing-1.jar"] * 2
    assert install.cached_jars(tmp_path, [JAR]) == [tmp_path / "jars" / "thing-1.jar"]
    assert not install.fetch_jars(tmp_path, [JAR], repository.url)


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [(404, b"", r"127\.0\.0\.1 answered 404 for thing-1\.jar"), (200, b"<html>", "is not the jar that volstream was built with")],
)
def test_a_jar_that_is_not_the_right_one_is_not_kept(
    tmp_path: Path, serve: Callable[..., Repository], status: int, content: bytes, message: str
) -> None:
    repository = serve()
    repository.answers["thing-1.jar"] = [(status, content)]
    with pytest.raises(JavaError, match=message):
        install.fetch_jars(tmp_path, [JAR], repository.url)
    assert list((tmp_path / "jars").iterdir()) == []


def test_a_companys_certificate_is_trusted_by_ssl_cert_file_alone(
    tmp_path: Path, serve: Callable[..., Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    public, private = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    repository = serve(context)
    repository.answers["thing-1.jar"] = [(200, b"tested")]
    repository.url = repository.url.replace("127.0.0.1", "localhost")
    with pytest.raises(JavaError, match="certificate of localhost is not trusted") as caught:
        install.fetch_jars(tmp_path, [JAR], repository.url)
    assert "SSL_CERT_FILE" in caught.value.remedy
    monkeypatch.setenv("SSL_CERT_FILE", str(public))
    assert install.fetch_jars(tmp_path, [JAR], repository.url)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_of_certificates_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    file = tmp_path / "company.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    with pytest.raises(JavaError, match=r"The certificates in .*company\.pem cannot be read: "):
        install.fetch_jars(tmp_path, [JAR], "https://localhost")


def test_a_jar_changed_since_setup_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "jars" / JAR.name
    path.parent.mkdir()
    path.write_bytes(b"tested")
    assert install.cached_jars(tmp_path, [JAR]) == [path]
    path.write_bytes(b"tampered")
    with pytest.raises(JavaError, match=r"differ from those that volstream was built with: thing-1\.jar"):
        install.cached_jars(tmp_path, [JAR])


def test_a_cache_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JavaError, match=r"cannot be created: .* Set VOLSTREAM_CACHE"):
        install.create_cache(tmp_path / "file" / "cache")
