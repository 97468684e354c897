"""``session.connector.upload_file``: files of each format become versions of immutable tables."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from tests.certificates import certificate
from tests.clouds import Cloud, QuietServer, azurite, cloud, gcs, localstack, moto, oss, seaweedfs, serving, unused_name
from tests.integration.conftest import session_on
from volstream.api.session import Session
from volstream.base import config
from volstream.base.config import Settings
from volstream.errors import AlreadyExistsError, InvalidValueError, StorageError, VolstreamError
from volstream.spark.session import SparkGateway
from volstream.tables.delta import places

__all__ = ["azurite", "cloud", "gcs", "localstack", "moto", "oss", "seaweedfs"]

USERS: list[dict[str, Any]] = [{"id": "user1", "name": 'Simba, "the" cat', "age": 3}, {"id": "user2", "name": None, "age": 40}]


def csv_text(users: list[dict[str, Any]]) -> str:
    def cell(value: Any) -> str:
        return "" if value is None else '"' + str(value).replace('"', '""') + '"'

    return "\n".join([",".join(users[0]), *(",".join(map(cell, user.values())) for user in users)]) + "\n"


def write_avro(path: Path) -> None:
    fields = [{"name": "id", "type": "string"}, {"name": "name", "type": ["null", "string"]}, {"name": "age", "type": "long"}]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "user", "fields": fields}, USERS)


WRITERS: dict[str, Callable[[Path], object]] = {
    "users.csv": lambda path: path.write_text(csv_text(USERS)),
    "users.csv.gz": lambda path: path.write_bytes(gzip.compress(csv_text(USERS).encode())),
    "users.json": lambda path: path.write_text(json.dumps(USERS, indent=1)),
    "users.jsonl": lambda path: path.write_text("\n".join(map(json.dumps, USERS))),
    "users.parquet": lambda path: pq.write_table(pa.Table.from_pylist(USERS), path),
    "users.orc": lambda path: pa.orc.write_table(pa.Table.from_pylist(USERS), path),
    "users.avro": write_avro,
    "_a#b?c:{d}*.csv": lambda path: path.write_text(csv_text(USERS)),
}

#: The others are long.
_TRIED = ("_a#b?c:{d}*.csv",)


@pytest.fixture
def session(settings: Settings, gateway: SparkGateway) -> Iterator[Session]:
    with session_on(gateway, settings.model_copy(update={"upload_hosts": ("127.0.0.1",)})) as session:
        yield session


@pytest.mark.long
@pytest.mark.parametrize("name", [name if name in _TRIED else pytest.param(name, marks=pytest.mark.long) for name in WRITERS])
def test_rows_of_a_file_are_found_by_key(session: Session, tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    table = session.connector.upload_file(str(tmp_path / name), name="users", primary_key="id")
    assert {key: dict(table.get(key) or {}) for key in ("user1", "user2", "user3")} == {
        "user1": USERS[0],
        "user2": USERS[1],
        "user3": {},
    }
    assert places.inside(f"{session.home.warehouse}/_staging") == []
    assert session.connector.upload_file(str(tmp_path / name), name="users", primary_key="id").versions == [1]
    with Session(session.home.settings) as later:  # another program, without an engine
        assert dict(later.source.get_table("users").get("user1") or {}) == USERS[0]


_NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([_NOON + timedelta(microseconds=one) for one in (0, 999, 1000, 123_456)], pa.timestamp("us", "UTC")),
        *(
            pytest.param(keys, marks=pytest.mark.long)
            for keys in (
                pa.array(
                    [_NOON.replace(year=1, microsecond=999_999), _NOON.replace(year=9999, microsecond=1)],
                    pa.timestamp("us", "UTC"),
                ),
                pa.array([-(2**63), -1, 0, 2**63 - 1], pa.int64()),
                pa.array([-128, 127], pa.int8()),
                pa.array([date(1, 1, 1), date(9999, 12, 31)]),
                pa.array([Decimal("-0.0000000001"), Decimal("9" * 28 + ".9999999999")], pa.decimal128(38, 10)),
                pa.array(["", "a" * 40, "a" * 40 + "b", "\U0010ffff" * 40, "\uffff", "\x00", "é", "z"]),
            )
        ),
    ],
    ids=lambda keys: str(keys.type),
)
def test_the_row_of_every_key_is_found_also_at_the_ends_of_statistics(session: Session, tmp_path: Path, keys: pa.Array) -> None:
    pq.write_table(pa.table({"k": keys, "v": range(len(keys))}), tmp_path / "x.parquet")
    table = session.connector.upload_file(str(tmp_path / "x.parquet"), name=f"x{len(keys)}", primary_key="k")
    found = [dict(table.get(key) or {}).get("v") for key in keys.to_pylist()]
    assert found == [*range(len(keys))]


@pytest.mark.long
def test_a_changed_file_is_another_version_and_the_same_one_is_not(session: Session, tmp_path: Path) -> None:
    file = tmp_path / "staff.csv"
    upload = session.connector.upload_file

    def staff(version: int | None = None) -> Any:
        return upload(f"file://{file}", name="staff", primary_key="ID", version=version)

    file.write_text("id,name\n1,Ada\n2,Bo\n")
    table = staff(1)
    assert staff(1).versions == [1]
    file.write_text("id,name\n1,Ada\n2,Bob\n")
    with pytest.raises(AlreadyExistsError, match="Version 1 of staff exists with other data"):
        staff(1)
    file.write_text("id,born,name\n2,1990,Bob\n3,2000,Cy\n")
    staff()
    assert staff().versions == [1, 2]
    assert (table.get(1), table.get(2)) == (None, {"id": 2, "name": "Bob", "born": 1990})
    assert (table.get(1, version=1), table.get(3, 1)) == ({"id": 1, "name": "Ada"}, None)
    found = session.sql("SELECT id, name, born FROM staff ORDER BY id").collect()
    assert [tuple(row) for row in found] == [(2, "Bob", 1990), (3, "Cy", 2000)]
    file.write_text("id,name\n1,Ada\n2,Bob\n")  # it lacks a column that the table has
    assert (staff(3).versions, staff().versions) == ([1, 2, 3], [1, 2, 3])


def many(write: Callable[[pa.Table, pa.BufferOutputStream], object]) -> bytes:
    """A small file of 78,643,200 rows."""
    sink = pa.BufferOutputStream()
    write(pa.table({"id": pa.nulls(300 << 18, pa.int8())}), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", "id,n\n1,1\n2,2\n1,3\n", "id is not unique: 1"),
        pytest.param("a.csv", "id,n\n1,1\n,2\n", "rows without a value for id", marks=pytest.mark.long),
        pytest.param("a.csv", "name,n\nx,1\n", "has no column id", marks=pytest.mark.long),
        pytest.param("a.csv", "id,n\n1,1,1\n", "has a row with values that fit no column: .*_c2", marks=pytest.mark.long),
        ("a.json", '{"id": 1}\n{"id": \n', "fit no column: .*_corrupt_record"),
        pytest.param("a.parquet", "not Parquet", "cannot be read as parquet", marks=pytest.mark.long),
        pytest.param("a.avro", "not Avro", "not an Avro file", marks=pytest.mark.long),
        (
            "a.csv.zst",
            pa.compress((b"x" * 9999 + b"\n") * 30_000, codec="zstd", asbytes=True),
            r"a\.csv\.zst cannot be read as csv: The file has .* and expands to 272",
        ),
        pytest.param(
            "a.parquet",
            partial(many, pq.write_table),
            "cannot be read as parquet: The file has .* and expands to 300",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "a.orc",
            partial(many, partial(pa.orc.write_table, compression="zstd")),
            "cannot be read as orc: The file has .* and expands to 300",
            marks=pytest.mark.long,
        ),
        ("a.txt", "", "format of .* is unknown"),
        ("missing.csv", None, "cannot be read: No such file"),
        ("pipe.csv", os.mkfifo, "is not a regular file"),
    ],
)
def test_a_file_that_cannot_be_stored_leaves_nothing_behind(
    session: Session, tmp_path: Path, name: str, content: str | bytes | Callable[..., bytes | None] | None, reason: str
) -> None:
    if content is os.mkfifo:
        os.mkfifo(tmp_path / name)
    elif content is not None:
        made = content() if callable(content) else content
        assert made is not None
        (tmp_path / name).write_bytes(made.encode() if isinstance(made, str) else made)
    with pytest.raises(InvalidValueError, match=reason):
        session.connector.upload_file(str(tmp_path / name), name="broken", primary_key="id")
    assert session.source.list() == []
    assert places.inside(f"{session.home.warehouse}/tables/public") == []
    assert places.inside(f"{session.home.warehouse}/_staging") == []


def test_files_are_fetched_from_hosts_that_are_allowed(session: Session, tmp_path: Path) -> None:
    WRITERS["users.csv"](tmp_path / "users.csv")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with serving(QuietServer(("127.0.0.1", 0), handler)) as address:
        table = session.connector.upload_file(f"{address}/users.csv", "fetched", "id")
        assert table.get("user2") == USERS[1]
        with pytest.raises(VolstreamError, match="404"):
            session.connector.upload_file(f"{address}/none.csv", "fetched2", "id")
    with pytest.raises(InvalidValueError, match=r"not fetched from example\.com"):
        session.connector.upload_file("https://example.com/users.csv", "fetched2", "id")
    with pytest.raises(InvalidValueError, match="ftp:// is not supported"):
        session.connector.upload_file("ftp://example.com/users.csv", "fetched2", "id")


class Odd(http.server.BaseHTTPRequestHandler):
    """Redirects to the same server under another name, or sends less than it announces."""

    def do_GET(self) -> None:
        body = b"id\n1\n"
        if self.path == "/moved.csv":
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.headers['Host'].rpartition(':')[2]}/users.csv")
        elif self.path == "/nowhere.csv":
            self.send_response(302)
            self.send_header("Location", "http://[of no host/users.csv")
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + 10))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def test_no_redirect_leads_to_a_host_that_is_not_allowed_and_half_a_file_is_none(session: Session) -> None:
    with serving(QuietServer(("127.0.0.1", 0), Odd)) as address:
        with pytest.raises(InvalidValueError, match="not fetched from localhost"):
            session.connector.upload_file(f"{address}/moved.csv", "moved", "id")
        with pytest.raises(StorageError, match="redirects to what is not a URL"):
            session.connector.upload_file(f"{address}/nowhere.csv", "nowhere", "id")
        with pytest.raises(VolstreamError, match="ended 10 bytes too early"):
            session.connector.upload_file(f"{address}/users.csv", "half", "id")


def test_a_redirect_does_not_leave_https(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, key = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    hosts = {"upload_hosts": ("127.0.0.1", "localhost")}
    server = QuietServer(("127.0.0.1", 0), Odd)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with (
        serving(server),
        session_on(session.home.gateway, session.home.settings.model_copy(update=hosts)) as allowed,
        pytest.raises(InvalidValueError, match="localhost redirects from https:// to http://"),
    ):
        allowed.connector.upload_file(f"https://localhost:{server.server_port}/moved.csv", "moved", "id")


@pytest.mark.long
def test_a_file_is_read_within_limits_of_size_and_memory(session: Session, tmp_path: Path) -> None:
    (tmp_path / "large.csv").write_text("id\n" + "1\n" * 2000)
    repeated = pa.table({"id": pa.array([["x" * 1_000_000] * 1500])})
    pq.write_table(repeated, tmp_path / "bomb.parquet", compression="zstd", write_statistics=False)
    limits = {"upload_max_bytes": 4000, "function_memory": 500 << 20}
    with session_on(session.home.gateway, session.home.settings.model_copy(update=limits)) as limited:
        with pytest.raises(InvalidValueError, match=r"large\.csv has more than 3\.9 KiB \(setting upload_max_bytes\)"):
            limited.connector.upload_file(str(tmp_path / "large.csv"), "large", "id")
        with pytest.raises(InvalidValueError, match=r"takes more than 500\.0 MiB of memory \(setting function_memory\)"):
            limited.connector.upload_file(str(tmp_path / "bomb.parquet"), "bomb", "id")


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("http://[x/users.csv", "neither a path nor a URL"),
        ("http://127.0.0.1:x/users.csv", "cannot be fetched: nonnumeric port"),
        ("http://127.0.0.1/u sers.csv", "cannot be fetched"),
        ("/tmp/a\0b.csv", "is not a path"),
        ("~nobody-of-this-name/users.csv", "No such file"),
    ],
)
def test_what_is_no_place_of_a_file_is_told(session: Session, uri: str, reason: str) -> None:
    with pytest.raises(InvalidValueError, match=reason):
        session.connector.upload_file(uri, "odd", "id")


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("http://127.0.0.1:1/users.csv?X-Amz-Signature=T0PS3CR3T", r"http://127\.0\.0\.1:1/users\.csv cannot be read"),
        ("http://127.0.0.1/u sers.csv?X-Amz-Signature=T0PS3CR3T", r"/u sers\.csv cannot be fetched"),
        ("http://127.0.0.1/users?X-Amz-Signature=T0PS3CR3T", r"format of http://127\.0\.0\.1/users is unknown"),
        ("http://[x/users.csv?X-Amz-Signature=T0PS3CR3T", "neither a path nor a URL"),
        ("http://me:T0PS3CR3T@127.0.0.1/users.csv", r"http://127\.0\.0\.1/users\.csv has a user or a password"),
        ("s3://key:T0PS3CR3T@bucket/users.csv", "'s3://bucket' does not name a bucket"),
    ],
)
def test_no_error_of_an_upload_shows_what_signs_its_url(session: Session, uri: str, reason: str) -> None:
    with pytest.raises(VolstreamError, match=reason) as caught:
        session.connector.upload_file(uri, "signed", "id")
    assert "T0PS3CR3T" not in f"{caught.value} {caught.value.remedy}"


@pytest.mark.long
def test_fields_of_objects_have_any_name(session: Session, tmp_path: Path) -> None:
    rows = [{"id": "1", "of": {"x-y": 1, "a.b": "text", "c`d": None, "e:int>": True}}]
    columns = pa.struct([("x-y", pa.int64()), ("a.b", pa.string()), ("c`d", pa.string()), ("e:int>", pa.bool_())])
    pq.write_table(pa.Table.from_pylist(rows, pa.schema([("id", pa.string()), ("of", columns)])), tmp_path / "odd.parquet")
    table = session.connector.upload_file(str(tmp_path / "odd.parquet"), "odd", "id")
    assert dict(table.get("1") or {}) == rows[0]


def test_a_name_that_is_taken_is_refused(session: Session, tmp_path: Path) -> None:
    WRITERS["users.csv"](tmp_path / "users.csv")
    session.source.create_stream("taken")
    with pytest.raises(InvalidValueError, match="taken is not a table of uploaded files"):
        session.connector.upload_file(str(tmp_path / "users.csv"), "taken", "id")


@pytest.mark.long
@pytest.mark.parametrize(
    "cloud",
    ["moto", *(pytest.param(name, marks=pytest.mark.long) for name in ("oss", "gcs", "localstack", "seaweedfs", "azurite"))],
    indirect=True,
)
def test_files_of_object_stores_are_fetched_by_a_connection(
    cloud: Cloud, settings: Settings, gateway: SparkGateway, tmp_path: Path
) -> None:
    access, bucket = cloud.access, unused_name()
    provider = access.provider
    options: dict[str, str] = {"endpoint": str(access.endpoint), **({"region": access.region} if access.region else {})}
    given = settings
    if access.keys is not None:
        keys = {"c": {"access_key_id": access.keys.id, "access_key_secret": access.keys.secret}}
        given = config.load(settings.home, credentials=keys)
        options["credentials"] = "static"
    cloud.make_bucket(bucket)
    cloud.put(bucket, "in/users.csv", csv_text(USERS).encode())
    with session_on(gateway, given) as session:
        session.connections.create("c", provider, **options)  # type: ignore[arg-type]  # words that it accepts
        uri = f"{provider}://{bucket}/in/users.csv"
        table = session.connector.upload_file(uri, f"users_in_{bucket.replace('-', '_')}", "id", connection="c")
        assert table.get("user1") == USERS[0]
        with pytest.raises(VolstreamError, match=r"none\.csv"):
            session.connector.upload_file(uri.replace("users", "none"), "other", "id", connection="c")
