"""A bucket for warehouses, and another writer that is faster by a moment."""

from __future__ import annotations

import http.client
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3
import pytest

from tests.servers import KEY_ID, SECRET, served
from volstream.base import config
from volstream.errors import JavaError
from volstream.spark.jvm import install


@contextmanager
def warehouse_in_s3(server: str) -> Iterator[Mapping[str, str]]:
    """The settings of a home with a warehouse in a new bucket of a server; skips where the engine's connector was not fetched, but not in
    CI."""
    try:
        install.cached_jars(config.cache_directory(), install.jars_of("s3://"))
    except JavaError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    with bucket("warehouse", server) as options:
        yield {"WAREHOUSE": "s3://warehouse/here", "WAREHOUSE_OPTIONS": json.dumps(options)}


@contextmanager
def bucket(name: str, server: str) -> Iterator[dict[str, str]]:
    """A new bucket of a server; yields the options with which a warehouse there is reached."""
    with served(server) as url:
        _client(url).create_bucket(Bucket=name)
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }


def _client(store: str) -> Any:
    keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
    return boto3.client("s3", endpoint_url=store, region_name="us-east-1", **keys)


class Overtaking:
    """A proxy before a store: another writer creates an object while the request of a client that creates it is on its way.

    Args:
        store: its URL.
        agent: how the client calls itself.
    """

    def __init__(self, store: str, agent: str) -> None:
        host, other = urlsplit(store).netloc, _client(store)
        self.overtaken: list[str] = []  #: paths of such requests
        self._next: tuple[str, bytes] | None = None
        this = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def handle_request(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                mine = agent in self.headers.get("User-Agent", "")
                if self.command == "PUT" and mine and this._next is not None and self.path.endswith(this._next[0]):
                    content, this._next = this._next[1], None
                    this.overtaken.append(self.path)
                    place, _, key = unquote(self.path).lstrip("/").partition("/")
                    other.put_object(Bucket=place, Key=key, Body=content)
                headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
                answer, data = _asked(host, self.command, self.path, body, headers)
                self.send_response(answer.status, answer.reason)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else None
                self.send_header("Content-Length", length or str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_request  # noqa: N815  # names of the library

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def overtake(self, ending: str, content: bytes) -> None:
        """Is faster the next time that an object whose path has this ending is created."""
        self._next = ending, content

    def close(self) -> None:
        """Ends the proxy."""
        self._server.shutdown()
        self._server.server_close()


def _asked(host: str, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
    with closing(http.client.HTTPConnection(host, timeout=60)) as connection:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer, answer.read()
