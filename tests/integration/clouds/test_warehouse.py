"""A warehouse in a bucket: everything that needs no engine, through the code and the command."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.clouds import Cloud, unused_name
from tests.e2e.homes import VOLSTREAM
from tests.processes import race
from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import QueueType
from volstream.changes.directory import table
from volstream.changes.directory.keeper import DirectoryKeeper
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.directory.writer import DirectoryWriter
from volstream.errors import FencedError, InvalidStateError, StorageError
from volstream.tables.delta import places
from volstream.tables.delta.native import NativeTable, TableSpec
from volstream.tables.delta.warehouse import register_options

_SPEC = """
import json, sys
import pyarrow as pa
from volstream.tables.delta.warehouse import register_options
from volstream.tables.delta.native import NativeTable, TableSpec
from volstream.errors import FencedError
location, options = sys.argv[1:]
register_options(location, json.loads(options))
spec = TableSpec(location, pa.schema([pa.field("n", pa.int64(), nullable=False)]), ("n",), ("app",))
"""


@dataclass
class Home:
    """A home whose warehouse is in a bucket, and a volume on a folder."""

    folder: Path
    warehouse: str
    options: dict[str, str]

    @property
    def files(self) -> Path:
        return self.folder / "files"

    def session(self, **settings: Any) -> Session:
        return Session(
            config.load(
                self.folder / "home", warehouse=self.warehouse, warehouse_options=self.options, settle_seconds=0.01, **settings
            )
        )

    def command(self, *arguments: str) -> Any:
        """Runs the command in its own process; its output as JSON."""
        environment = os.environ | {
            "VOLSTREAM_HOME": str(self.folder / "home"),
            "VOLSTREAM_WAREHOUSE": self.warehouse,
            "VOLSTREAM_WAREHOUSE_OPTIONS": json.dumps(self.options),
            "VOLSTREAM_SETTLE_SECONDS": "0.01",
        }
        done = subprocess.run(
            [VOLSTREAM, *arguments, "--format", "json"], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "s3-long-lived-secret" not in done.stdout + done.stderr
        return json.loads(done.stdout)


def _home_in(cloud: Cloud, region: str, folder: Path) -> Home:
    """A home whose warehouse is in a bucket of its own, by the protocol of S3."""
    bucket, keys = unused_name(), cloud.access.keys
    cloud.make_bucket(bucket)
    assert keys is not None
    assert cloud.access.endpoint is not None
    made = Home(
        folder,
        f"s3://{bucket}/some/prefix",
        {
            "AWS_ENDPOINT_URL": cloud.access.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": region,
            "AWS_ACCESS_KEY_ID": keys.id,
            "AWS_SECRET_ACCESS_KEY": keys.secret,
        },
    )
    made.files.mkdir()
    return made


@pytest.fixture
def home(s3: Cloud, tmp_path: Path) -> Iterator[Home]:
    made = _home_in(s3, "eu-west-1", tmp_path)
    yield made
    register_options(made.warehouse, {})


def _shown(session: Session) -> dict[str, int]:
    volume = session.volumes.get("v")
    snapshot = Snapshot.open(table.directory_location(session.home.warehouse, volume.id), volume.id)
    assert snapshot is not None
    return {row["relative_path"]: row["size"] for rows in snapshot.at() for row in rows.to_pylist()}


@pytest.mark.long
def test_a_directory_is_listed_refreshed_compacted_trimmed_and_swept(home: Home) -> None:
    with home.session(directory_versions=1) as session:
        for number in range(30):
            (home.files / f"{number:02}.txt").write_text("x")
        volume = session.volumes.create("v", str(home.files), queue_type=QueueType.NONE)
        session.volumes.refresh("v")
        keeper = DirectoryKeeper(volume, session.home.catalog, session.home.settings)
        for number in range(17):  # as many commits as make small files be put together
            (home.files / f"{number:02}.txt").write_text("x" * (number + 2))
            assert keeper.reconcile().counts.updated == 1
        (home.files / "29.txt").unlink()
        keeper.reconcile()
        keeper.maintain()
        writer = DirectoryWriter(volume, session.home.catalog, session.home.warehouse, 1)
        assert not writer.maintain()
        snapshot = writer.open()
        assert snapshot.through == snapshot.newest == 19
        assert snapshot.floor == 18
        assert len(snapshot.tail.files) == 1
        writer.sweep()

        assert _shown(session) == {f"{number:02}.txt": number + 2 if number < 17 else 1 for number in range(29)}
        assert keeper.reconcile().commit is None


def test_a_table_gets_a_checkpoint_and_is_opened_from_it(home: Home) -> None:
    register_options(home.warehouse, home.options)
    spec = TableSpec(f"{home.warehouse}/t", pa.schema([pa.field("n", pa.int64(), nullable=False)]), ("n",), ("app",))
    writer = NativeTable(spec)
    for number in range(12):
        writer.commit(writer.open(), {"app": number})
    filesystem, path = places.filesystem_of(f"{spec.location}/_delta_log/_last_checkpoint")
    assert json.loads(filesystem.open_input_stream(path).read())["version"] == 10
    found = spec.view()
    assert found is not None
    assert found.transactions == {"app": 11}


@pytest.mark.long
def test_the_commands_that_need_no_engine_work(home: Home) -> None:
    (home.files / "a.txt").write_text("a")
    home.command("create-volume", "v", str(home.files), "--queue-type", "none")
    assert home.command("refresh", "v")["inserted"] == 1
    (home.files / "a.txt").write_text("aa")
    (home.files / "b.txt").write_text("b")
    report = home.command("refresh", "v")
    assert (report["inserted"], report["updated"], report["deleted"]) == (1, 1, 0)
    assert home.command("describe", "volume", "v")
    assert len(home.command("list", "volumes")) == 1
    rows = home.command("sql", "SHOW VOLUME DIRECTORY v")
    assert sorted((row["relative_path"], row["size"]) for row in rows) == [("a.txt", 2), ("b.txt", 1)]
    assert home.command("explain-file", "v", "a.txt")
    checks = {check["what"]: check for check in home.command("doctor")}
    assert checks["warehouse"]["state"] == "ok"


@pytest.mark.long
def test_one_of_two_processes_committing_on_the_same_version_is_refused(home: Home) -> None:
    code = (
        _SPEC
        + """
writer, won, fenced = NativeTable(spec), 0, 0
writer.open()
input()
while won < 10:
    view = writer.open()
    try:
        writer.commit(view, {"app": view.transactions["app"] + 1})
        won += 1
    except FencedError:
        fenced += 1
print(fenced)
"""
    )
    location = f"{home.warehouse}/t"
    register_options(location, home.options)
    spec = TableSpec(location, pa.schema([pa.field("n", pa.int64(), nullable=False)]), ("n",), ("app",))
    NativeTable(spec).open()
    fenced = race(code, [location, json.dumps(home.options)])
    found = spec.view()
    assert found is not None
    assert (found.version, found.transactions) == (20, {"app": 20}), fenced  # none of them overwrote another one


def test_a_writer_that_read_before_another_writers_commit_is_fenced(home: Home) -> None:
    register_options(home.warehouse, home.options)
    spec = TableSpec(f"{home.warehouse}/t", pa.schema([pa.field("n", pa.int64(), nullable=False)]), ("n",), ("app",))
    slow, fast = NativeTable(spec), NativeTable(spec)
    read = slow.open()
    fast.commit(fast.open(), {"app": 1})
    with pytest.raises(FencedError):
        slow.commit(read, {"app": 1})
    slow.commit(slow.open(), {"app": 2})


@pytest.mark.long
def test_an_unreachable_store_is_a_transient_error(home: Home) -> None:
    nowhere = home.options | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    register_options(home.warehouse, nowhere | {"AWS_MAX_RETRIES": "0", "AWS_RETRY_TIMEOUT": "1s"})
    spec = TableSpec(f"{home.warehouse}/t", pa.schema([pa.field("n", pa.int64(), nullable=False)]), ("n",), ("app",))
    with pytest.raises(StorageError):
        spec.view()


def test_a_store_that_lets_a_commit_be_overwritten_is_rejected(oss: Cloud, tmp_path: Path) -> None:
    home = _home_in(oss, "cn-hangzhou", tmp_path)
    with home.session() as session:
        session.volumes.create("v", str(home.files), queue_type=QueueType.NONE)
        with pytest.raises(InvalidStateError, match="If-None-Match"):
            session.volumes.refresh("v")
    bucket = home.warehouse.split("/")[2]
    assert not [key for key in oss.service.buckets[bucket] if "_delta_log" in key or "_probe" in key]


@pytest.mark.long
def test_oss_can_hold_a_directory_if_it_honours_conditional_writes(
    oss: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oss.service, "conditions", True)
    home = _home_in(oss, "cn-hangzhou", tmp_path)
    with home.session() as session:
        (home.files / "a").write_text("a")
        (home.files / "b").write_text("b")
        volume = session.volumes.create("v", str(home.files), queue_type=QueueType.NONE)
        session.volumes.refresh("v")
        (home.files / "a").write_text("aa")
        (home.files / "b").unlink()
        session.volumes.refresh("v")
        writer = DirectoryWriter(volume, session.home.catalog, session.home.warehouse, 1)
        writer.sweep()
        assert _shown(session) == {"a": 2}
