"""``sql --format csv``."""

from __future__ import annotations

import csv

from tests.commands import Shell


def test_rows_are_written_as_csv_with_a_head(shell: Shell) -> None:
    shell.ok("alter-volume", "v", "--comment", 'a, "b"')
    head, row = csv.reader(shell.ok("sql", "--format", "csv", "SHOW VOLUMES").splitlines())
    assert head == ["name", "location", "queue_type", "virtual_cluster", "recursive", "comment", "created_on"]
    shown = dict(zip(head, row, strict=True))
    assert (shown["name"], shown["recursive"], shown["comment"]) == ("v", "true", 'a, "b"')
    code, _, said = shell("sql", "--format", "csv", "SHOW VOLUMES; SHOW JOBS")
    assert (code, "A csv has the rows of one statement." in said) == (3, True)
