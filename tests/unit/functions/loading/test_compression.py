"""Compressed files and archives, known by their content."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import shutil
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.loading import Files
from volstream.functions.loading import content as loading_content
from volstream.functions.rejection import FileRejectedError

TEXT = b"a,b\n1,2\n3,4\n"
ROWS = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


def snappy(content: bytes) -> bytes:
    import cramjam

    return bytes(cramjam.snappy.compress(content))


COMPRESSED = {
    "gz": gzip.compress(TEXT),
    "bz2": bz2.compress(TEXT),
    "zst": pa.compress(TEXT, codec="zstd", asbytes=True),
    "lz4": pa.compress(TEXT, codec="lz4", asbytes=True),
    "xz": lzma.compress(TEXT),
    "sz": snappy(TEXT),
}


def zipped(entries: Mapping[str, bytes] | Sequence[tuple[str, bytes]]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items() if isinstance(entries, Mapping) else entries:
            archive.writestr(name, content)
    return target.getvalue()


def tarred(entries: Mapping[str, bytes] | Sequence[tuple[str, bytes | str]], mode: str = "w") -> bytes:
    """A tar file; text instead of content is the name to which an entry is a hard link."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode) as archive:  # type: ignore[call-overload]  # the mode is one of them
        for name, content in entries.items() if isinstance(entries, Mapping) else entries:
            entry = tarfile.TarInfo(name)
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.LNKTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


@pytest.mark.parametrize("extension", COMPRESSED)
def test_a_compressed_file_is_read_whatever_its_name_says(files: Files, extension: str) -> None:
    content = COMPRESSED[extension]
    for name in (f"x.csv.{extension}", "x.csv", "x.csv.gz"):
        assert files.rows(name, content) == ROWS
    with pytest.raises(FileRejectedError, match="cannot be decompressed"):
        files.rows("x.csv", content[:-5], "a INT, b INT")


def test_a_file_that_was_decompressed_or_compressed_again_on_its_way_is_read(files: Files) -> None:
    assert files.rows("x.csv.gz", TEXT) == ROWS
    assert files.rows("x.csv.gz", gzip.compress(gzip.compress(TEXT))) == ROWS


def test_compressed_files_of_columns_are_read(files: Files) -> None:
    sink, records = io.BytesIO(), io.BytesIO()
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), sink)
    fastavro.writer(records, {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}, [{"a": 1}])
    assert files.rows("x.parquet.gz", gzip.compress(sink.getvalue())) == [{"a": 1, "b": "x"}]
    assert files.rows("x.avro.xz", lzma.compress(records.getvalue())) == [{"a": 1}]


ENTRIES = {
    "day=1/a.csv": b"a\n1\n",
    "b.json.gz": gzip.compress(b'{"a": 2}'),
    "_SUCCESS": b"",
    "__MACOSX/._a.csv": b"?",
    "empty.csv": b"",
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.zip", zipped(ENTRIES)),
        ("x.tar", tarred(ENTRIES)),
        ("x.tgz", tarred(ENTRIES, "w:gz")),
        ("x.csv", tarred(ENTRIES, "w:xz")),
        ("x.tar.zst", pa.compress(tarred(ENTRIES), codec="zstd", asbytes=True)),
    ],
    ids=["zip", "tar", "tgz", "csv", "tar.zst"],  # the same in each process: contents have the time in them
)
def test_entries_of_an_archive_are_rows_that_know_their_entry(files: Files, name: str, content: bytes) -> None:
    rows = files.rows(name, content, "a INT, day STRING, _entry_path STRING")
    assert rows == [{"a": 1, "day": "1", "_entry_path": "day=1/a.csv"}, {"a": 2, "day": None, "_entry_path": "b.json.gz"}]
    assert files.columns((name, content)) == "a BIGINT, _entry_path STRING, day BIGINT"


def test_an_entry_that_cannot_be_read_rejects_the_file_unless_it_is_left_out(files: Files) -> None:
    content = zipped({"a.csv": b"a\n1\n", "README": b"Hello"})
    with pytest.raises(FileRejectedError, match=r"The entry 'README' of the file: Unknown file format.*\(entries\)"):
        files.rows("x.zip", content, "a INT, _entry_path STRING")
    assert files.rows("x.zip", content, "a INT, _entry_path STRING", entries="*.csv,*.tsv") == [{"a": 1, "_entry_path": "a.csv"}]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (tarred({"a.csv": TEXT, "b.csv": TEXT})[:1024], "cut off"),
        (tarred({"a.csv": TEXT, "b.csv": TEXT})[:1200], "cut off"),
        (tarred({"a.csv": TEXT, "b.csv": TEXT})[:1540], "unexpected end of data|cut off"),
        (tarred({"a.csv": TEXT}) + tarred({"b.csv": TEXT}), "cut off, or has a broken entry"),
        (tarred([("b.csv", "a.csv"), ("a.csv", TEXT)]), "'b.csv' is a hard link to 'a.csv', which is not before it"),
        (zipped({"a.csv": TEXT * 9})[:-30], "zip"),
        (zipped({"a.csv": TEXT}) + zipped({"b.csv": TEXT}), r"\d+ bytes before the entries .* like zip files that were joined"),
        (zipped({"a.csv": TEXT}) + zipped({}), "bytes before the entries"),
        (zipped({"a.csv": TEXT}) + zipped({"b.csv": TEXT})[:-30], "bytes after the entries"),
        (zipped({}) + TEXT, "12 bytes after the entries"),
        (zipped({"a.csv": TEXT}).replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"), "encrypted"),
        (zipped({"[Content_Types].xml": b"", "xl/x.xml": b""}), "a document of an office program"),
        (zipped({"b.zip": zipped({"a.csv": TEXT})}), "Unknown file format"),
    ],
    ids=[
        *("begin", "header", "entry", "two", "link", "zip", "joined", "joined to none", "joined to a part", "more"),
        *("encrypted", "office", "nested"),
    ],
)
def test_a_broken_archive_loses_no_entry_in_silence(files: Files, content: bytes, reason: str) -> None:
    with pytest.raises(FileRejectedError, match=reason):
        files.rows("x.zip", content, "a INT, b INT, _entry_path STRING")


@pytest.mark.long
def test_entries_of_an_archive_may_not_expand_too_far_together(files: Files) -> None:
    many = zipped({f"{number}.csv": b"a\n1\n" + b"\n" * (140 << 20) for number in range(2)})
    with pytest.raises(FileRejectedError, match="expands to"):
        files.rows("x.zip", many, "a INT, _entry_path STRING")


def of_many_entries(entries: int) -> bytes:
    """A zip file whose directory lists one entry many times, without the time that it takes to write it."""
    one = zipped({"_": b""})
    at = one.index(b"PK\x01\x02")
    listed = one[at : one.index(b"PK\x05\x06")] * entries
    zip64 = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, entries, entries, len(listed), at)
    end = struct.pack("<IIQI4s8xIIH", 0x07064B50, 0, at + len(listed), 1, b"PK\x05\x06", 2**32 - 1, 2**32 - 1, 0)
    return one[:at] + listed + zip64 + end


def of_attributes(number: int, entries: int) -> bytes:
    """A tar file whose entries share attributes, each of which Python copies for each entry."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", pax_headers={f"a{at}": "x" for at in range(number)}) as archive:
        for at in range(entries):
            archive.addfile(tarfile.TarInfo(f"_{at}"))
    return target.getvalue()


def of_headers(number: int) -> bytes:
    """A tar file with headers before headers, which Python reads by recursion."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    return (header.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(512, b"\0")) * number


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (of_many_entries(1_001), "more than 1,000 entries"),
        (tarfile.TarInfo("_").tobuf() * 1_001 + bytes(10_240), "more than 1,000 entries"),
        (of_attributes(30_000, 4), "attributes"),
        (of_attributes(90_000, 1), "attributes"),
        (of_headers(900), "recursion"),
    ],
    ids=["zip", "tar", "shared attributes", "long attributes", "headers"],
)
def test_an_archive_with_too_many_entries_is_rejected_before_they_take_memory(
    files: Files, monkeypatch: pytest.MonkeyPatch, content: bytes, reason: str
) -> None:
    monkeypatch.setattr(loading_content, "_MAX_ENTRIES", 1_000)
    monkeypatch.setattr(loading_content, "_MAX_ATTRIBUTES", 100_000)
    with pytest.raises(FileRejectedError, match=reason):
        files.rows("x.zip", content, "a INT, _entry_path STRING")


def test_an_archive_may_have_as_many_entries_as_the_limit(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading_content, "_MAX_ENTRIES", 1_000)
    for content in (of_many_entries(1_000), tarfile.TarInfo("_").tobuf() * 1_000 + bytes(10_240)):
        with pytest.raises(FileRejectedError, match="no entry to load"):
            files.rows("x.zip", content, "a INT, _entry_path STRING")


@pytest.mark.parametrize("name", ["csv.gz", "parquet"])
def test_what_entries_of_an_archive_expand_to_counts_together(files: Files, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [None] * 10_000}, pa.schema([("a", pa.int32())])), sink)
    one = gzip.compress(b"a\n" + b"\n" * 40_000) if name == "csv.gz" else sink.getvalue()
    monkeypatch.setattr(loading_content, "_MAX_EXPANDED", 100_000)
    monkeypatch.setattr(loading_content, "_MAX_FACTOR", 1)
    for number, is_too_much in ((2, False), (3, True)):
        content = zipped({f"{at}.{name}": one for at in range(number)})
        with pytest.raises(FileRejectedError, match="expands to") if is_too_much else nullcontext():
            files.rows("x.zip", content, "a INT, _entry_path STRING")


def test_an_entry_that_would_fill_the_disk_is_rejected(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    content = zipped({"a.csv": b"a\n1\n" + b"\n" * (20 << 20)})
    free = {"bytes": 60 << 20}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, free["bytes"]))
    assert [row["a"] for row in files.rows("x.zip", content, "a INT, _entry_path STRING")] == [1]
    free["bytes"] = 30 << 20
    with pytest.raises(FileRejectedError, match="more than half of the 30"):
        files.rows("x.zip", content, "a INT, _entry_path STRING")


@pytest.mark.parametrize("times", [300, pytest.param(20_000, marks=pytest.mark.long)])
def test_broken_bytes_reject_the_file_and_raise_nothing_else(files: Files, times: int) -> None:
    chance, archives = random.Random(times), [zipped(ENTRIES), tarred(ENTRIES), tarred(ENTRIES, "w:gz"), *COMPRESSED.values()]
    for _ in range(times):
        content = bytearray(chance.choice(archives))
        for _ in range(chance.choice((1, 2, 5))):
            at = chance.randrange(len(content) + 1)
            content[at : at + chance.choice((0, 1, 1, 9))] = bytes(chance.randrange(256) for _ in range(chance.choice((0, 1, 4))))
        with suppress(FileRejectedError):
            files.rows("x.csv", bytes(content), "a INT, day STRING, _entry_path STRING", new_columns="rescue")


def test_streams_of_an_xz_file_are_read_with_the_zeros_between_them_and_nothing_else(files: Files) -> None:
    first, second = lzma.compress(b"a,b\n1,2\n"), lzma.compress(b"3,4\n")
    for between in (b"", bytes(8), bytes(512)):
        assert files.rows("x.csv.xz", first + between + second) == ROWS
        assert files.rows("x.csv.xz", first + between + second + between) == ROWS
    damaged = second[:20] + bytes([second[20] ^ 1]) + second[21:]
    for broken in (first + damaged, first + b"garbage", first + second[:-3], first + bytes(4) + b"x"):
        with pytest.raises(FileRejectedError, match="cannot be decompressed"):
            files.rows("x.csv.xz", broken, "a INT, b INT")


def test_a_hard_link_in_a_tar_file_is_what_the_name_has_by_then(files: Files) -> None:
    content = tarred([("one.csv", b"a\n1\n"), ("two.csv", "./one.csv"), ("three.csv", "two.csv"), ("one.csv", b"a\n2\n")])
    found = files.rows("x.tar", content, "a INT, _entry_path STRING")
    assert {row["_entry_path"]: row["a"] for row in found} == {"one.csv": 2, "two.csv": 1, "three.csv": 1}
    assert len(found) == 3


@pytest.mark.parametrize("archived", [zipped, tarred])
def test_of_entries_that_would_be_extracted_to_one_path_the_last_one_is_loaded(
    files: Files, archived: Callable[[list[tuple[str, bytes]]], bytes]
) -> None:
    content = archived([("a.csv", b"a\n1\n"), ("b.csv", b"a\n5\n"), ("./a.csv", b"a\n2\n"), ("../a.csv", b"a\n3\n")])
    assert sorted(row["a"] for row in files.rows("x.zip", content, "a INT, _entry_path STRING")) == [2, 3, 5]


def test_zeros_after_a_zip_file_and_a_comment_in_it_are_no_content(files: Files) -> None:
    target = io.BytesIO(zipped({"a.csv": b"a\n1\n"}))
    with zipfile.ZipFile(target, "a") as archive:
        archive.comment = b"made by hand"
    assert [row["a"] for row in files.rows("x.zip", target.getvalue() + bytes(512), "a INT, _entry_path STRING")] == [1]


def test_text_that_has_the_magic_of_tar_files_is_text(files: Files) -> None:
    row = b"1," + b"x" * 251
    assert files.rows("x.csv", b"a,b\n" + row + b"ustard\n2,b\n", "a INT, b STRING")[1] == {"a": 2, "b": "b"}


def test_an_archive_without_entries_has_no_rows(files: Files) -> None:
    assert files.rows("x.zip", zipped({}), "a INT, _entry_path STRING") == []


@pytest.mark.parametrize("prefix", ["./", "../", "/", "a/../", "././/"])
def test_entries_are_named_without_dots(files: Files, prefix: str) -> None:
    [row] = files.rows("x.zip", zipped({f"{prefix}b.csv": b"a\n1\n"}), "a INT, _entry_path STRING")
    assert row["a"] == 1
    assert row["_entry_path"] in ("b.csv", "a/b.csv")


@pytest.mark.parametrize(
    ("entries", "options", "reason"),
    [
        (["__MACOSX/a.csv", ".b.csv"], {}, "no entry to load: all are like '__MACOSX/a.csv', whose name begins with _ or a dot"),
        (["a.json"], {"entries": "*.csv"}, "no entry to load: all are like 'a.json', which the pattern of entries leaves out"),
    ],
)
def test_an_archive_of_which_no_entry_is_read_is_rejected(
    files: Files, entries: list[str], options: dict[str, str], reason: str
) -> None:
    with pytest.raises(FileRejectedError, match=reason):
        files.rows("x.zip", zipped(dict.fromkeys(entries, b"a\n1\n")), "a INT, _entry_path STRING", **options)


def linked(kind: int, system: int = 3) -> bytes:
    """A zip file with an entry of a kind of files, as ``zip -y`` writes them."""
    target = io.BytesIO(zipped({"a.csv": b"a\n1\n"}))
    with zipfile.ZipFile(target, "a") as archive:
        entry = zipfile.ZipInfo("latest.csv")
        entry.create_system, entry.external_attr = system, (kind | 0o777) << 16
        archive.writestr(entry, "a.csv")
    return target.getvalue()


@pytest.mark.parametrize(
    ("content", "entries"),
    [
        (linked(stat.S_IFLNK), ["a.csv"]),
        (linked(stat.S_IFLNK, system=0), ["a.csv", "latest.csv"]),  # other systems have other attributes there
        (linked(stat.S_IFREG), ["a.csv", "latest.csv"]),
        (linked(0), ["a.csv", "latest.csv"]),
    ],
    ids=["link", "not of Unix", "file", "no kind"],
)
def test_a_symbolic_link_in_a_zip_file_is_no_file(files: Files, content: bytes, entries: list[str]) -> None:
    rows = files.rows("x.zip", content, "v STRING, _entry_path STRING", header="false")
    assert sorted({row["_entry_path"] for row in rows}) == entries


def test_a_name_in_a_tar_file_that_is_no_utf_8_is_escaped(files: Files) -> None:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        for name, content in (("day=Fr\xfch/M\xfcller.csv", b"a\n1\n"), ("day=x/b.csv", b"a\n2\n")):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    columns = "a INT, day STRING, _entry_path STRING"
    assert files.rows("x.tar", target.getvalue(), columns) == [
        {"a": 1, "day": r"Fr\xfch", "_entry_path": r"day=Fr\xfch/M\xfcller.csv"},
        {"a": 2, "day": "x", "_entry_path": "day=x/b.csv"},
    ]
    assert [row["a"] for row in files.rows("x.tar", target.getvalue(), columns, entries=r"*/M\xfcller.csv")] == [1]


@pytest.mark.parametrize("archived", [zipped, tarred])
def test_a_folder_in_an_archive_does_not_replace_a_file(
    files: Files, archived: Callable[[list[tuple[str, bytes]]], bytes]
) -> None:
    if archived is zipped:
        content = zipped([("a.csv", b"a\n1\n"), ("a.csv/", b"")])
    else:
        target = io.BytesIO(tarred([("a.csv", b"a\n1\n")]))
        with tarfile.open(fileobj=target, mode="a") as archive:
            entry = tarfile.TarInfo("a.csv")
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
        content = target.getvalue()
    assert files.rows("x.zip", content, "a INT, _entry_path STRING") == [{"a": 1, "_entry_path": "a.csv"}]
