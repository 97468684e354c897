"""Reading inventory reports: manifests and files of each format."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import resource
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.inventories import COLUMNS, WRITERS, Reported, report
from tests.memory import MemoryStore
from volstream.errors import InvalidValueError, StorageError
from volstream.files.storage.inventory import MAX_MANIFEST, Manifest, ReportedObject, ReportFile, download, objects

TAKEN = datetime(2026, 3, 1, 1, 30, tzinfo=UTC)
BEFORE = datetime(2026, 2, 1, 12, 0, 1, tzinfo=UTC)

ODD_KEYS = ("in/a b", "in/a+b", "in/a%2Bb", "in/ü 中", 'in/a,b"c', "null", "in/e\u0301", "in/new\nline")


def _mostly(format_: str) -> list[Any]:
    """Parameters: one format, and the others for the long tests, because a process reads each file."""
    return [pytest.param(one, marks=() if one == format_ else pytest.mark.long) for one in WRITERS]


def manifest_of(files: dict[str, bytes]) -> Manifest:
    key, text = list(files.items())[-1]
    return Manifest.parse(text, key)


def read(folder: Path, files: dict[str, bytes]) -> Sequence[ReportedObject]:
    manifest, found = manifest_of(files), []
    for file in manifest.files:
        path = folder / "file"
        path.write_bytes(files[file.key])
        found += [one for group in objects(manifest, str(path), file.key) for one in group]
    return found


@pytest.mark.parametrize("format_", WRITERS)
def test_current_objects_are_read_with_their_keys_as_they_are(tmp_path: Path, format_: str) -> None:
    reported = [Reported(key, size, BEFORE, f"etag-{size}") for size, key in enumerate(ODD_KEYS)]
    old = [
        Reported("in/old", is_latest=False),
        Reported("in/gone", None, BEFORE, None, is_delete_marker=True),
        Reported("in/gone", 3, BEFORE, "x", is_latest=False),
    ]
    found = read(tmp_path, report("b", TAKEN, [[*old, *reported[:3]], reported[3:]], format_))
    assert found == [ReportedObject(key, size, BEFORE, f"etag-{size}") for size, key in enumerate(ODD_KEYS)]


@pytest.mark.parametrize("format_", _mostly("Parquet"))
def test_reports_of_current_versions_only_have_no_such_columns(tmp_path: Path, format_: str) -> None:
    fields = ("Bucket", "Key", "ETag", "LastModifiedDate", "Size")
    found = read(tmp_path, report("b", TAKEN, [[Reported("k", 7, BEFORE, "t")]], format_, fields=fields))
    assert found == [ReportedObject("k", 7, BEFORE, "t")]


@pytest.mark.parametrize("format_", _mostly("ORC"))
def test_a_missing_field_is_named(tmp_path: Path, format_: str) -> None:
    fields = [field for field in COLUMNS if field not in ("Size", "ETag")]
    with pytest.raises(InvalidValueError, match="Add Size and ETag to the optional fields of the inventory"):
        read(tmp_path, report("b", TAKEN, [[Reported("k")]], format_, fields=fields))


@pytest.mark.parametrize("format_", _mostly("CSV"))
def test_a_file_without_objects_has_none(tmp_path: Path, format_: str) -> None:
    assert read(tmp_path, report("b", TAKEN, [[], [Reported("k")], []], format_)) == [
        ReportedObject("k", 1, datetime(2026, 1, 1, tzinfo=UTC), "e")
    ]


@pytest.mark.parametrize("format_", _mostly("Parquet"))
def test_many_rows_are_read_in_groups(tmp_path: Path, format_: str) -> None:
    files = report("b", TAKEN, [[Reported(f"{number:07}") for number in range(60_000)]], format_)
    path = tmp_path / "file"
    path.write_bytes(files["reports/data/0." + format_.lower()])
    groups = [len(group) for group in objects(manifest_of(files), str(path), "f")]
    assert sum(groups) == 60_000
    assert max(groups) < 60_000


def test_times_of_both_providers_are_understood(tmp_path: Path) -> None:
    written = ("2026-02-01T12:00:01.000Z", "2026-02-01T12:00:01Z", "2026-02-01 12:00:01", "2026-02-01T12-00-01Z")
    text = gzip.compress("".join(f'"b","k","1","{one}","t"\n' for one in written).encode())
    path = tmp_path / "file"
    path.write_bytes(text)
    manifest = Manifest("b", TAKEN, "CSV", ["Bucket", "Key", "Size", "LastModifiedDate", "ETag"], [])
    assert [one.modified for group in objects(manifest, str(path), "f") for one in group] == [BEFORE] * len(written)


@pytest.mark.parametrize("format_", _mostly("ORC"))
def test_a_file_that_is_something_else_is_an_error(tmp_path: Path, format_: str) -> None:
    files = report("b", TAKEN, [[Reported("k")]], format_)
    files[f"reports/data/0.{format_.lower()}"] = b"something else"
    with pytest.raises(StorageError, match="cannot be read"):
        read(tmp_path, files)


def test_a_few_bytes_that_stand_for_gigabytes_are_an_error_and_take_no_memory_here(tmp_path: Path) -> None:
    one = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), pa.array(["k" * (16 << 20)]))
    others = {"size": [1], "last_modified_date": pa.array([0], pa.timestamp("ms")), "e_tag": ["e"]}
    bomb = pa.table({"key": one, **{name: pa.repeat(pa.array(value)[0], 3000) for name, value in others.items()}})
    pq.write_table(bomb, tmp_path / "bomb", compression="zstd")
    assert (tmp_path / "bomb").stat().st_size < 5000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StorageError, match="expands to more than a report needs"):
        list(objects(Manifest("b", TAKEN, "Parquet", [], []), str(tmp_path / "bomb"), "f"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_key_longer_than_any_provider_allows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="a value of key has more than 4096 bytes"):
        read(tmp_path, report("b", TAKEN, [[Reported("k" * 5000)]], "Parquet"))


def test_a_manifest_of_gigabytes_is_not_parsed() -> None:
    with pytest.raises(InvalidValueError, match=r"m is larger than 16\.0 MiB"):
        Manifest.parse(b"[" * (MAX_MANIFEST + 1), "m")


def test_a_csv_whose_rows_have_other_columns_is_an_error(tmp_path: Path) -> None:
    files = report("b", TAKEN, [[Reported("k")]], fields=("Bucket", "Key", "Size", "LastModifiedDate", "ETag"))
    other = report("b", TAKEN, [[Reported("k")]])
    with pytest.raises(StorageError, match="cannot be read"):
        read(tmp_path, {**files, "reports/data/0.csv": other["reports/data/0.csv"]} | {"m": list(files.values())[-1]})


@pytest.mark.parametrize("provider", ["s3", "oss"])
def test_the_time_of_a_report_is_understood_in_seconds_and_in_milliseconds(provider: str) -> None:
    manifest = manifest_of(report("b", TAKEN, [[Reported("k")]], provider=provider))
    assert (manifest.bucket, manifest.taken_on) == ("b", TAKEN)


@pytest.mark.parametrize(
    "change",
    [
        {"files": None},
        {"creationTimestamp": "soon"},
        {"creationTimestamp": "9" * 40},
        {"sourceBucket": ...},
        {"files": [{"key": "k"}]},
        {"fileFormat": "XML"},
    ],
)
def test_what_is_no_manifest_is_refused(change: dict[str, Any]) -> None:
    said = json.loads(list(report("b", TAKEN, []).values())[-1]) | change
    text = json.dumps({key: value for key, value in said.items() if value is not ...})
    with pytest.raises(InvalidValueError, match=r"m\.json"):
        Manifest.parse(text.encode(), "m.json")
    for other in (b"", b"\xff", b"[]", b"{}", text[:-5].encode()):
        with pytest.raises(InvalidValueError, match=r"m\.json"):
            Manifest.parse(other, "m.json")


def test_a_damaged_or_missing_file_is_noticed_when_it_is_downloaded() -> None:
    store = MemoryStore("memory://reports")
    content = b"as it was written"
    good = ReportFile("data/f", len(content), hashlib.md5(content, usedforsecurity=False).hexdigest())
    store.put("data/f", content)
    download(store, good, copy := io.BytesIO())
    assert copy.getvalue() == content
    for damaged in (content[:-1], content + b".", content.upper()):
        store.put("data/f", damaged)
        with pytest.raises(StorageError, match="is damaged"):
            download(store, good, io.BytesIO())
    store.delete("data/f")
    with pytest.raises(StorageError, match="is missing"):
        download(store, good, io.BytesIO())
