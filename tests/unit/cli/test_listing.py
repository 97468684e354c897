"""Lists and descriptions for people: failures by cause, jobs with what is asked first, tables with their size."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from tests.commands import Shell, shell
from tests.tails import COLUMNS
from volstream.api.session import Session
from volstream.base import config
from volstream.base.model.hints import Rejection
from volstream.base.model.names import Name
from volstream.cli.failures import by_cause
from volstream.ops.inspection import details
from volstream.tables.delta import direct
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.ownership import Marker
from volstream.tables.delta.places import own_location

__all__ = ["shell"]

LONG = f"scans/{'x' * 120}.pdf"


def failure(path: str, why: str, **values: Any) -> dict[str, Any]:
    given = {
        "job": "j",
        "unit": "file",
        "path": path,
        "kind": "raised",
        "state": "quarantined",
        "attempts": 3,
        "message": why,
        "why": why,
        "traceback": 'Traceback\n  File "f.py", line 3, in f\n    raise\n  File "g.py", line 7, in g\n    raise\nOSError',
    }
    said = {"next": "no automatic retry", "remedy": f"Fix the file, then volstream retry j {path}"}
    return {**given, **said, **values}


def test_failures_are_grouped_by_cause_and_fit_the_terminal() -> None:
    found = [
        failure("b.pdf", "OSError: no space"),
        *(failure(path, f"ValueError: '{path}' has no text, and so nothing can be found in it " * 2) for path in ("a", LONG)),
    ]
    lines = by_cause(found, 80, 5).splitlines()
    assert lines[0].startswith("2 files of job j: ValueError: 'a' has no text")
    assert "  Fix the file, then volstream retry j" in lines
    assert "  at g.py:7 in g; all of the traceback: --format json" in lines
    assert lines.index("    a") < lines.index(f"    {LONG}") < lines.index("1 file of job j: OSError: no space")
    assert lines[-1] == "        quarantined (raised), 3 failed attempts: no automatic retry"
    assert "  Fix the file, then volstream retry j b.pdf" in lines
    assert [line for line in lines if len(line) > 80] == [f"    {LONG}"], "a name is not broken"


def test_commands_are_not_broken_where_lines_end() -> None:
    for width in range(40, 100):
        path = "'a folder/with a name.pdf'"
        said = {"remedy": f"Fix the file, then volstream retry j {path}; or: volstream skip j {path}"}
        lines = by_cause([failure("a folder/with a name.pdf", "OSError: no space", **said)], width, 5).splitlines()
        for command in (f"volstream retry j {path}", f"volstream skip j {path}"):
            assert any(command in line for line in lines), (width, lines)


def test_a_rejected_message_is_cut_for_people_and_whole_for_programs(shell: Shell) -> None:
    with Session(config.load(shell.home)) as session:
        session.home.catalog.refreshes.reject(session.volumes.get("v").id, [Rejection("x" * 4096, "It is not JSON.")])
    text = shell.ok("list", "rejected")
    assert (f"{'x' * 119}…" in text, max(map(len, text.splitlines())) < 220) == (True, True)
    assert json.loads(shell.ok("list", "rejected", "--format", "json"))[0]["subject"] == "x" * 4096


def test_of_many_files_with_one_cause_five_are_named() -> None:
    found = [failure(f"f{number:02}", "OSError: no space") for number in range(20)]
    lines = by_cause(found, 80, 5).splitlines()
    assert [line.strip() for line in lines if line.startswith("    f")] == ["f00", "f01", "f02", "f03", "f04"]
    assert lines[-1] == "    and 15 more: volstream list failures --job j --all"
    assert "more" not in by_cause(found, 80, None)
    assert "more" not in by_cause(found[:6], 80, 5), "one more is named"


def test_a_job_is_described_with_what_a_person_asks_first_and_ids_last(shell: Shell) -> None:
    assert shell.job("j", "one")[0] == 0
    shell.functions.unlink()
    keys = [line.split()[0] for line in shell.ok("describe", "job", "j").splitlines()]
    assert keys[:3] == ["name", "state", "problems"]
    assert keys.index("done") < keys.index("function") < keys.index("created_on")
    assert not {"fingerprint", "clean", "id", "stream_id"} & {*keys}
    whole = [line.split()[0] for line in shell.ok("describe", "job", "j", "--all").splitlines()]
    assert (whole[: len(keys)], whole[-3:]) == (keys, ["fingerprint", "id", "stream_id"])
    found = json.loads(shell.ok("describe", "job", "j", "--format", "json"))
    assert "volstream alter-job j --function" in found["problems"][0]
    assert (found["files"], found["done"]) == (0, 0)


def test_a_volume_is_described_in_words_for_people(shell: Shell) -> None:
    shell.ok("refresh", "v")
    said = shell.ok("describe", "volume", "v")
    assert "inserted=2" in said
    assert "{" not in said
    assert "+00:00" not in said
    assert ".*, *~, *.tmp" in said


def test_durations_and_sizes_are_described_as_they_are_given(shell: Shell) -> None:
    shell.ok("alter-volume", "v", "--expect-every", "2h")
    assert ["expect_every", "2h"] in [line.split() for line in shell.ok("describe", "volume", "v").splitlines()]
    assert shell.job("j", "one", "--timeout", "90s", "--max-bytes", "1GiB")[0] == 0
    lines = [line.split() for line in shell.ok("describe", "job", "j").splitlines()]
    assert [line for line in lines if line[0] in ("timeout", "max_bytes")] == [["timeout", "90s"], ["max_bytes", "1GiB"]]
    assert json.loads(shell.ok("describe", "job", "j", "--format", "json"))["timeout"] == 90


def test_tables_are_listed_with_rows_that_are_there_and_their_size(shell: Shell) -> None:
    location = own_location(str(shell.home / "warehouse"), Name.parse("readings"))
    assert direct.create(location, COLUMNS, {})
    for number, gone in ((1, None), (2, ["a"])):
        rows = pa.table({"id": ["a", f"b{number}"], "n": [number, 1]}, schema=COLUMNS)
        assert direct.commit(location, Marker("test", number, {}), RowChanges([rows], COLUMNS, "id", gone))
    (row,) = json.loads(shell.ok("list", "tables", "--format", "json"))
    assert (row["table"], row["rows"], row["note"]) == ("readings", 3, None)
    assert row["bytes"] > 100
    assert row["written_on"] is not None
    assert "KiB" in shell.ok("list", "tables")
    said = shell.ok("describe", "table", "readings")
    assert [word for word in ("rows", "written_on", "column", "operation", "b2") if word not in said] == []
    assert shell("describe", "table", "none")[0] == 3


def test_a_list_of_jobs_asks_for_their_runs_once(shell: Shell) -> None:
    for name in "abc":
        assert shell.job(name, "one", "--into", name)[0] == 0
    with Session(config.load(shell.home)) as session:
        asked, leases = iter([session.home.catalog.leases.running_jobs]), session.home.catalog.leases
        leases.running_jobs = lambda: next(asked)()  # type: ignore[method-assign]  # a second question would raise
        assert len(details.shown(session.home, session.jobs.list())) == 3
