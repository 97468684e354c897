"""Inventory reports in buckets: the command reads the one that it is given, the daemon the newest one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.clouds import Cloud, unused_name
from tests.inventories import WRITERS, Reported, report
from tests.keeping import keeping
from tests.waiting import eventually
from volstream.api.session import Session
from volstream.base import config
from volstream.base.model.paths import FileInfo, Selection
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.leases import lease, of_volume
from volstream.changes.directory import table
from volstream.changes.directory.keeper import DirectoryKeeper
from volstream.changes.directory.snapshot import Snapshot
from volstream.cli.objects import describe_command
from volstream.cli.volume import refresh_command
from volstream.errors import InvalidStateError, InvalidValueError, NotFoundError, StorageError
from volstream.files.volumes.access import policies, store_of

KEYS = ("a b", "a+b", "a%2Bb", "ü/中", "plain/x.txt", "%", 'quo"te', "null")

#: Objects of the tests are older than reports of this time.
LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=10)


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the run has taken, it is still to come."""
    monkeypatch.setitem(globals(), "LATER", datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=10))


class Home:
    """A session, a volume ``v`` in a bucket, and a bucket for reports about it."""

    def __init__(self, folder: Path, cloud: Cloud) -> None:
        self.cloud, self.bucket, self.reports = cloud, unused_name(), unused_name()
        self.scheme = cloud.access.provider
        keys = cloud.access.keys
        assert keys is not None
        (folder / "volstream.toml").write_text(
            f'[credentials.c]\naccess_key_id = "{keys.id}"\naccess_key_secret = "{keys.secret}"\n'
        )
        self.folder = folder
        self.session = Session(config.load(folder))
        for bucket in (self.bucket, self.reports):
            cloud.make_bucket(bucket)
        access = cloud.access
        self.session.connections.create(
            "c", access.provider, region=access.region, endpoint=access.endpoint, credentials="static"
        )
        self.session.volumes.create("v", f"{self.scheme}://{self.bucket}/in", connection="c", queue_type="none")

    def put(self, *keys: str) -> None:
        for key in keys:
            self.cloud.put(self.bucket, f"in/{key}", key.encode())

    def reported(self) -> Sequence[Reported]:
        """The volume's objects as a report has them: listings and reports must agree on all."""
        listed = self.store().list("", Selection(ignores=()))
        files = [one for one in listed if isinstance(one, FileInfo)]
        return [
            Reported(f"in/{one.relative_path}", one.size, one.last_modified_time, one.etag) for one in sorted(files, reverse=True)
        ]

    def publish(self, taken_on: datetime, *parts: Sequence[Reported], **options: Any) -> str:
        """Writes a report; the URI of its manifest."""
        files = report(self.bucket, taken_on, parts, provider=self.scheme, **options)
        for key, content in files.items():
            self.cloud.put(self.reports, key, content)
        return f"{self.scheme}://{self.reports}/{list(files)[-1]}"

    def store(self) -> Any:
        return store_of(self.session.volumes.get("v"), self.session.home.catalog, self.session.home.settings)

    def keeper(self) -> DirectoryKeeper:
        home = self.session.home
        return DirectoryKeeper(self.session.volumes.get("v"), home.catalog, home.settings)

    def directory(self) -> Mapping[str, str]:
        """Path and etag of each row."""
        id_ = self.session.volumes.get("v").id
        snapshot = Snapshot.open(table.directory_location(self.session.home.settings.warehouse_path, id_), id_)
        assert snapshot is not None
        rows = pa.concat_tables([table.FILES.empty_table(), *snapshot.at()])
        return dict(zip(rows["relative_path"].to_pylist(), rows["etag"].to_pylist(), strict=True))

    def command(self, *arguments: str) -> dict[str, Any]:
        done = CliRunner().invoke(
            refresh_command, ["v", *arguments, "--home", str(self.folder), "--format", "json"], catch_exceptions=False
        )
        said: dict[str, Any] = json.loads(done.stdout)
        return said


@pytest.fixture
def home(tmp_path: Path, s3: Cloud) -> Iterator[Home]:
    made = Home(tmp_path, s3)
    yield made
    made.session.close()


@pytest.mark.parametrize("format_", WRITERS)
def test_a_report_leaves_nothing_to_find_for_a_listing(home: Home, format_: str) -> None:
    home.put(*KEYS)
    reported = home.reported()
    said = home.command("--inventory", home.publish(LATER, reported[:3], reported[3:], format_=format_))
    assert (said["inserted"], said["files"], said["as_of"]) == (len(KEYS), len(KEYS), str(LATER).replace(" ", "T"))
    assert set(home.directory()) == set(KEYS)
    said = home.command()
    assert (said["files"], said["inserted"], said["updated"], said["deleted"]) == (len(KEYS), 0, 0, 0)
    assert said["as_of"] is None


def test_reports_of_oss_are_read(tmp_path: Path, oss: Cloud) -> None:
    home = Home(tmp_path, oss)
    home.session.volumes.alter("v", ignores=())
    home.put(*KEYS)
    reported = home.reported()
    odd = Reported("in/../x")
    said = home.command("--inventory", home.publish(LATER, reported[:3], [odd, *reported[3:]]))
    assert (said["inserted"], said["findings"]) == (len(KEYS), 1)
    assert home.command()["updated"] == 0
    assert set(home.directory()) == set(KEYS)
    home.session.close()


def test_the_newest_complete_report_of_a_folder_is_read(home: Home) -> None:
    home.put("a", "b")
    reported = home.reported()
    folder = f"s3://{home.reports}/reports"
    with pytest.raises(NotFoundError, match="There is no inventory report in"):
        home.session.volumes.refresh("v", inventory=folder)
    home.publish(LATER - timedelta(days=1), reported[:1])
    home.publish(LATER, reported)
    home.cloud.put(home.reports, f"reports/{LATER + timedelta(days=1):%Y-%m-%dT%H-%MZ}/manifest.checksum", b"x")
    done = home.session.volumes.refresh("v", inventory=folder)
    assert (done.inserted, done.listing and done.listing.as_of) == (2, LATER)


def test_a_report_that_does_not_suit_is_refused(home: Home) -> None:
    home.put("a")
    refresh = home.session.volumes.refresh
    for uri in ("oss://reports/manifest.json", "/tmp/manifest.json", "memory://m"):
        with pytest.raises(InvalidValueError, match="cannot be an inventory of"):
            refresh("v", inventory=uri)
    with pytest.raises(NotFoundError, match="no report"):
        refresh("v", inventory=f"s3://{home.reports}/manifest.json")
    good = home.publish(LATER, home.reported())
    home.cloud.put(home.reports, "reports/data/0.csv", b"damaged")
    with pytest.raises(StorageError, match="is damaged"):
        refresh("v", inventory=good)
    with pytest.raises(InvalidValueError, match="whole volume"):
        refresh("v", "in", inventory=good)
    other = good.replace("reports/", "other/")
    manifest = json.loads(report("elsewhere", LATER, [])[f"reports/{LATER:%Y-%m-%dT%H-%MZ}/manifest.json"])
    home.cloud.put(home.reports, other.partition(f"{home.reports}/")[2], json.dumps(manifest).encode())
    with pytest.raises(InvalidValueError, match="about the bucket elsewhere"):
        refresh("v", inventory=other)
    refresh("v")
    with pytest.raises(InvalidStateError, match="Wait for a newer report"):
        refresh("v", inventory=home.publish(LATER - timedelta(days=1), home.reported()))


def test_a_report_on_request_is_refused_while_a_daemon_keeps_the_volume(home: Home) -> None:
    home.put("a")
    uri, volume = home.publish(LATER, home.reported()), home.session.volumes.get("v")
    with lease(home.session.home.catalog.leases, of_volume(volume.id), "another", "test", 60) as other:
        assert other is None
        with pytest.raises(InvalidStateError, match="alter-volume v --inventory FOLDER"):
            home.session.volumes.refresh("v", inventory=uri)


def test_who_keeps_the_volume_reads_each_new_report_once_and_lists_while_there_is_none(home: Home) -> None:
    home.session.volumes.alter("v", inventory=f"s3://{home.reports}/reports/")
    home.put("a")
    keeper = home.keeper()
    done = keeper.end_listing(keeper.begin_listing()())
    assert done is not None
    assert (done.as_of, done.counts.inserted) == (None, 1)
    home.put("b")
    home.publish(LATER, home.reported())
    done = keeper.end_listing(keeper.begin_listing()())
    assert done is not None
    assert (done.as_of, done.counts.inserted, keeper.last_listing) == (LATER, 1, LATER)
    home.put("c")
    assert keeper.end_listing(keeper.begin_listing()()) is None
    assert set(home.directory()) == {"a", "b"}
    home.publish(LATER + timedelta(minutes=1), home.reported())
    keeper.end_listing(keeper.begin_listing()())
    assert set(home.directory()) == {"a", "b", "c"}


def test_a_daemon_fills_a_new_volume_from_its_inventory_and_reads_the_next_report(home: Home) -> None:
    catalog = home.session.home.catalog
    settings = config.load(home.folder, listing_seconds=0.1)
    home.session.volumes.alter("v", inventory=f"s3://{home.reports}/reports/")
    home.put("a")
    home.publish(LATER, home.reported())
    home.put("b")
    with keeping(catalog, settings):
        eventually(lambda: home.session.volumes.get("v").last_listing == LATER)
        assert set(home.directory()) == {"a"}
        home.publish(LATER + timedelta(minutes=1), home.reported())
        eventually(lambda: set(home.directory()) == {"a", "b"})
    causes = {one.cause for one in catalog.refreshes.reconciles(home.session.volumes.get("v").id, limit=10)}
    assert causes == {"first-listing", "listing"}
    assert catalog.conditions.cause(ConditionKind.VOLUME, home.session.volumes.get("v").id) is None


def test_a_wrong_report_is_trouble_with_the_store_for_who_keeps_the_volume(home: Home) -> None:
    home.session.volumes.alter("v", inventory=f"s3://{home.reports}/reports")
    home.publish(LATER, [Reported("in/a")], fields=("Bucket", "Key"))
    with pytest.raises(StorageError, match="Add Size and LastModifiedDate and ETag"):
        home.keeper().begin_listing()()
    home.publish(datetime.now(UTC) + timedelta(days=2), [Reported("in/a")])
    with pytest.raises(StorageError, match="which is in the future"):
        home.keeper().begin_listing()()


def test_a_volume_is_listed_while_its_reports_have_nothing_of_it(home: Home) -> None:
    home.session.volumes.alter("v", inventory=f"s3://{home.reports}/reports")
    home.publish(LATER, [Reported("elsewhere")])
    listing = home.keeper().begin_listing()()
    assert listing is not None
    assert listing.as_of is None


def test_the_inventory_of_a_volume_is_described_and_in_the_policies_of_its_connection(home: Home) -> None:
    with pytest.raises(InvalidValueError, match="cannot be an inventory of"):
        home.session.volumes.alter("v", inventory="oss://reports/x")
    with pytest.raises(InvalidValueError, match="is one report"):
        home.session.volumes.alter("v", inventory=f"s3://{home.reports}/reports/manifest.json")
    home.session.volumes.alter("v", inventory=f"s3://{home.reports}/reports/")
    policy = policies(home.session.connections.get("c"), home.session.home.catalog)["permission_policy"]
    assert f"arn:aws:s3:::{home.reports}/reports/*" in json.dumps(policy)
    home.put("a")
    home.session.volumes.refresh("v", inventory=home.publish(LATER, home.reported()))
    said = CliRunner().invoke(describe_command, ["volume", "v", "--home", str(home.folder), "--format", "json"])
    described = json.loads(said.stdout)
    assert described["inventory"] == f"s3://{home.reports}/reports/"
    assert datetime.fromisoformat(described["last_listing"]) == LATER
