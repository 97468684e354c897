"""Stored output of a job: one file per batch, from the newest attempt, within bounds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from volstream.functions.printing import CapturedOutput, Line
from volstream.jobs.batches import logs
from volstream.jobs.batches.ledger import LOGS

MIB = 1 << 20
LONG_AGO = datetime(1990, 1, 1, tzinfo=UTC)


def entry(files: Sequence[str], *texts: str, time: float = 1000.0, failed: bool = False, dropped: int = 0) -> str:
    lines = [Line(time + number, "stdout", text) for number, text in enumerate(texts)]
    return CapturedOutput(files, lines, dropped).encoded(failed=failed)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return LOGS.of(str(tmp_path / "warehouse"), "job")


def keep(place: str, batch: str, *entries: str, maximum: int = MIB, age: float = 0) -> None:
    logs.write(place, batch, entries, maximum)
    moment = 1_000_000_000 - age
    os.utime(f"{place}/{batch}.jsonl", (moment, moment))


def texts(place: str, maximum: int = 100, **options: str) -> list[str]:
    return [line.text for line in logs.read(place, maximum, **options)]


def test_without_output_there_are_no_lines(place: str) -> None:
    assert texts(place) == []
    logs.trim(place, 1, LONG_AGO)


def test_the_last_lines_of_the_newest_batches_are_read_oldest_first(place: str) -> None:
    keep(place, "one", entry(["a"], "1", "2"), age=20)
    keep(place, "two", entry(["b"], "5", "6", time=2000), entry(["a"], "3", "4"), age=10)
    assert texts(place) == ["1", "2", "3", "4", "5", "6"]
    assert texts(place, 3) == ["4", "5", "6"]
    assert texts(place, 5) == ["2", "3", "4", "5", "6"]
    assert texts(place, batch="one") == ["1", "2"]
    assert texts(place, path="a") == ["1", "2", "3", "4"]
    assert texts(place, path="a", batch="two") == ["3", "4"]
    assert texts(place, path="c") == []
    (line,) = logs.read(place, 1)
    assert (line.batch, line.files, line.stream, line.time) == ("two", ["b"], "stdout", datetime.fromtimestamp(2001, UTC))


def test_a_later_attempt_at_a_batch_replaces_an_earlier_one(place: str) -> None:
    keep(place, "one", entry(["a"], "first"))
    keep(place, "one", entry(["a"], "second"))
    assert texts(place) == ["second"]


def test_output_of_several_workers_is_bounded_together_and_omissions_are_reported(place: str) -> None:
    big = entry(["x"], "x" * 1000)
    found = [big] * 8 + [entry(["failed"], "mine", failed=True)] + [big] * 8
    keep(place, "one", '{"lost": 5}', *found, maximum=5000)
    assert Path(place, "one.jsonl").stat().st_size < 5200
    lines = texts(place)
    assert lines[0].startswith("(17 calls printed more, which was not kept")
    assert "mine" in lines
    assert texts(place, path="failed") == ["mine"]


def test_lines_that_were_dropped_are_counted_where_they_were(place: str) -> None:
    keep(place, "one", entry(["a"], "the end", dropped=7))
    first, last = logs.read(place, 10)
    assert (first.stream, first.text) == (None, "(7 lines before these were not kept: see log_file_bytes)")
    assert last.text == "the end"


def test_the_newest_logs_are_kept_up_to_a_size_and_an_age(place: str) -> None:
    for number in range(5):
        keep(place, f"{number}", entry(["a"], "x" * 1000), age=number * 86400)
    logs.trim(place, 3500, LONG_AGO)
    assert sorted(path.stem for path in Path(place).iterdir()) == ["0", "1", "2"]
    logs.trim(place, MIB, datetime.fromtimestamp(1_000_000_000, UTC) - timedelta(days=1, hours=1))
    assert sorted(path.stem for path in Path(place).iterdir()) == ["0", "1"]
    # However large it is, the newest is there.
    logs.trim(place, 1, LONG_AGO)
    assert sorted(path.stem for path in Path(place).iterdir()) == ["0"]


def test_text_that_is_not_utf8_is_kept(place: str) -> None:
    keep(place, "one", entry(["a\udc80"], "b\udcff"))
    assert texts(place, path="a\udc80") == ["b\udcff"]


@pytest.fixture(params=["_logs", "_logs/job", "_logs/job/private.jsonl"])
def private(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An old file, to which a link of the warehouse leads, or to a folder above it."""
    private = tmp_path / "private" / "job" / "private.jsonl"
    private.parent.mkdir(parents=True)
    private.write_text("no log")
    os.utime(private, (0, 0))
    linked = tmp_path / "warehouse" / request.param
    linked.parent.mkdir(parents=True)
    linked.symlink_to(tmp_path / "private" / request.param.removeprefix("_logs").strip("/"))
    return private


def test_no_file_that_a_link_leads_to_is_read(place: str, private: Path) -> None:
    assert texts(place) == []


def test_no_file_that_a_link_leads_to_is_removed(place: str, private: Path) -> None:
    logs.trim(place, 0, datetime.now(UTC))
    assert private.exists()


def test_the_warehouse_may_be_a_link(tmp_path: Path, place: str) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "warehouse").symlink_to(tmp_path / "disk")
    keep(place, "one", entry(["a"], "1"))
    assert texts(place) == ["1"]
    logs.trim(place, MIB, datetime.now(UTC))
    assert texts(place) == []
