"""A home of the first release, kept in the folder ``first``, opens in every later version.

The first release created it in ``/srv/first``: a volume, and a job that failed on one of three files. Never regenerate it: a change
that breaks this test needs a migration.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.conftest import session_on
from volstream.base import config
from volstream.cli.main import run
from volstream.spark.session import SparkGateway

FIRST = Path(__file__).parent / "first"

#: The job's function, as it was: the catalog has its fingerprint.
COUNT = """\
def count(file):
    text = file.read_text()
    if not text:
        raise ValueError("The file is empty.")
    return {"n": len(text)}
"""


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A copy of the home and, beside it, the files of its volume and its function."""
    home, files = tmp_path / "home", tmp_path / "files"
    shutil.copytree(FIRST / "warehouse", home / "warehouse")
    shutil.copy(FIRST / "volstream.toml", home)
    (tmp_path / "count.py").write_text(COUNT)
    files.mkdir()
    for name, text in (("a.txt", "one"), ("b.txt", "seven"), ("empty.txt", "")):
        (files / name).write_text(text)
    with closing(sqlite3.connect(home / "catalog.db")) as catalog:
        catalog.executescript((FIRST / "catalog.sqlite.sql").read_text().replace("/srv/first", str(tmp_path)))
    return tmp_path


def test_a_home_of_the_first_release_shows_what_it_had(first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*command: str) -> str:
        code = run([*command, "--home", str(first / "home")])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    assert "2 of 3" in said("status")
    assert "photos" in said("list", "volumes")
    assert "sizes_stream" in said("list", "streams")
    assert "sizes" in said("list", "jobs")
    assert "empty.txt" in said("list", "failures", "--job", "sizes")
    assert "n BIGINT" in said("describe", "job", "sizes")
    assert "photos" in said("export")


def test_a_home_of_the_first_release_runs_its_job_and_reads_its_table(first: Path, gateway: SparkGateway) -> None:
    with session_on(gateway, config.load(first / "home", settle_seconds=0.05)) as session:
        table = f"SELECT _file_path, n FROM delta.`{session.home.warehouse}/tables/public/sizes` ORDER BY 1"
        assert [tuple(row) for row in session.sql(table).collect()] == [("a.txt", 3), ("b.txt", 5)]
        (first / "files" / "b.txt").unlink()
        (first / "files" / "c.txt").write_text("four")
        session.volumes.refresh("photos", accept_removals=True)
        assert session.jobs.run("sizes").progress.failed == 1
        assert [tuple(row) for row in session.sql(table).collect()] == [("a.txt", 3), ("c.txt", 4)]
