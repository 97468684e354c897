"""Tables in S3 with keys of a profile, by requests to a server that remembers whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.clouds import QuietServer, serving
from volstream.base import config
from volstream.errors import StorageError
from volstream.files.providers.aws import tables
from volstream.tables.delta.places import mapped, open_table
from volstream.tables.delta.warehouse import register_options

asked: list[str] = []


class _Refusing(BaseHTTPRequestHandler):
    """Refuses, and notes whose request it was."""

    def do_GET(self) -> None:
        asked.append(self.headers["Authorization"].partition("Credential=")[2].partition("/")[0])
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815  # of the class

    def log_message(self, *_: object) -> None:
        """Not into the tests' output."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    with serving(QuietServer(("127.0.0.1", 0), _Refusing)) as url:
        yield url


def test_new_keys_in_the_file_of_a_profile_are_used_at_once(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
    settings = config.load(tmp_path, warehouse="s3://bucket/wh", warehouse_options=options)
    register_options(settings.warehouse_path, settings.warehouse_storage)
    for key in ("ONE", "ANOTHER"):
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret\n")
        asked.clear()
        with suppress(OSError):
            tables.filesystem(settings.warehouse_storage).get_file_info("bucket/wh/x")
        assert {*asked} == {key}, "of Arrow"
        asked.clear()
        with (
            pytest.raises(StorageError, match=r"Kernel error -> .*: Error performing GET http.*: 403 Forbidden"),
            mapped("s3://bucket/wh/t"),
        ):
            open_table("s3://bucket/wh/t")
        assert {*asked} == {key}, "of deltalake"
