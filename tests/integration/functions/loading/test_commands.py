"""``volstream load``, and what other commands say about its job."""

from __future__ import annotations

import json

from tests.commands import Shell


def test_a_job_that_loads_is_created_with_the_columns_of_the_files(shell: Shell) -> None:
    (shell.files / "c.tsv").write_text("id\tname\n1\tx\n")
    said = shell.ok("load", "v", "--into", "rows", "--on-change", "--new-columns", "rescue")
    assert "Job load_rows -> table rows (id BIGINT, name STRING, _rescued_data STRING)" in " ".join(said.split())
    assert "on change, under the daemon" in " ".join(said.split())
    made = json.loads(shell.ok("describe", "job", "load_rows", "--format", "json"))
    assert made["arguments"] == {"new_columns": "rescue", "inferred": "id"}
    altered = shell.ok("alter-job", "load_rows", "--arg", "delimiter=tab")
    assert "Job load_rows changed." in altered


def test_its_options_reach_the_job(shell: Shell) -> None:
    (shell.files / "a.txt").write_text("1;ü\n", encoding="latin-1")
    made = json.loads(
        shell.ok(
            *["load", "v", "--into", "rows", "--name", "j", "--file-format", "csv", "--delimiter", ";", "--no-header"],
            *["--encoding", "latin-1", "--schema", "n INT", "--where", "size > 0", "--every", "1m", "--comment", "c"],
            *["--format", "json"],
        )
    )
    assert made["arguments"] == {"format": "csv", "header": "false", "delimiter": ";", "encoding": "iso8859-1"}
    assert (made["returns"], made["where"], made["comment"]) == ("n INT, _rescued_data STRING", "size > 0", "c")


def test_mistakes_are_told(shell: Shell) -> None:
    for arguments, code, message in (
        (["load", "nowhere", "--into", "t"], 3, "There is no volume nowhere"),
        (["load", "v", "--into", "t", "--delimiter", "ab"], 2, "The delimiter cannot be 'ab'"),
        (["load", "v", "--into", "t", "--file-format", "xml"], 2, "xml"),
        (["load", "v", "--into", "t", "--file-format", "parquet"], 3, "none of 2 files can be read"),
        (["load", "v", "--into", "nowhere.t"], 3, "There is no schema nowhere"),
    ):
        found, _, err = shell(*arguments)
        assert found == code, err
        assert message in " ".join(err.split())
