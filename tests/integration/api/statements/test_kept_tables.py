"""What a job keeps equal to its files, or to its query, is not written by others, unless they insist."""

from __future__ import annotations

import pytest

from tests.integration.conftest import COUNT, Home, Place
from volstream.base.definitions import Write
from volstream.base.model.names import Name
from volstream.errors import InvalidStateError
from volstream.ingest.local import LocalTables

WRITES = (
    "DELETE FROM t$ WHERE n = 1",
    "UPDATE t$ SET n = 2",
    "INSERT INTO t$ (_file_path) VALUES ('x')",
    "INSERT OVERWRITE t$ SELECT * FROM t$",
    "MERGE INTO t$ USING (SELECT 1 AS i) s ON n = s.i WHEN MATCHED THEN DELETE",
    "INSERT WITH SCHEMA EVOLUTION INTO t$ SELECT * FROM t$",
    "MERGE WITH SCHEMA EVOLUTION INTO t$ USING (SELECT 1 AS i) s ON n = s.i WHEN MATCHED THEN DELETE",
    "FROM t$ INSERT INTO other$ SELECT n INSERT INTO t$ SELECT *",
    "WITH one AS (SELECT * FROM t$) INSERT INTO t$ SELECT * FROM one",
    "TRUNCATE TABLE t$",
    "RESTORE TABLE t$ TO VERSION AS OF 0",
    "CREATE OR REPLACE TABLE t$ AS SELECT 1 AS n",
    "ALTER TABLE t$ RENAME COLUMN n TO m",
    "ALTER TABLE t$ DROP COLUMN n",
    "ALTER TABLE t$ REPLACE COLUMNS (n INT)",
    "INSERT INTO t$ (_file_path) SELECT relative_path FROM s$",
)


def filled(place: Place, **options: object) -> Home:
    """A home whose job has written a file's row into ``t$``."""
    home = Home(place.session)
    home.sql(f"CREATE SCHEMA {home.schema}")
    code = place.folder.parent / "job.py"
    code.write_text(COUNT)
    place.session.jobs.create("j", f"{code}:f", home.name("t"), volume="v", returns="n INT", **options)  # type: ignore[arg-type]
    place.put("a", "1")
    place.refresh()
    place.run()
    return home


@pytest.mark.long
def test_rows_of_a_jobs_table_are_written_by_the_job(place: Place) -> None:
    home = filled(place)
    home.session.streams.create(home.name("s"), "v")
    for statement in WRITES:
        with pytest.raises(InvalidStateError, match="may write the table"):
            home.sql(statement)
    with pytest.raises(InvalidStateError, match="may write the table"):
        home.session.jobs.create("other", statement=home.own(WRITES[-1]))
    tables = LocalTables(home.session.home)
    with pytest.raises(InvalidStateError, match="may write the table"):
        tables.table(Name.parse(home.name("t")))
    tables.close()
    assert home.rows("SELECT _file_path, n FROM t$") == [("a", 1)]

    with pytest.raises(InvalidStateError, match="cannot be moved"):
        home.sql("ALTER TABLE t$ RENAME TO u$")
    home.sql("EXPLAIN DELETE FROM t$; OPTIMIZE t$")
    home.sql("ALTER TABLE t$ SET PROPERTIES ('volstream.writers' = 'any'); DELETE FROM t$ WHERE n = 1")
    assert home.rows("SELECT * FROM t$") == []


@pytest.mark.long
def test_a_file_replaces_rows_of_its_path_that_were_restored(place: Place) -> None:
    home = filled(place)
    home.sql("ALTER TABLE t$ SET PROPERTIES ('volstream.writers' = 'any')")
    place.delete("a")
    place.refresh()
    place.run()
    assert home.rows("SELECT * FROM t$") == []
    home.sql("RESTORE TABLE t$ TO VERSION AS OF 1")
    assert home.rows("SELECT _file_path, n FROM t$") == [("a", 1)]
    place.put("a", "22")
    place.refresh()
    place.run()
    assert home.rows("SELECT _file_path, n FROM t$") == [("a", 2)]


@pytest.mark.long
def test_a_job_adds_no_columns_to_a_table_in_use_unless_it_may(place: Place) -> None:
    home = Home(place.session)
    home.sql(f"CREATE SCHEMA {home.schema}; CREATE TABLE empty$ (id INT); CREATE TABLE fits$ AS SELECT 1 AS N")
    home.tracked("read", "id INT")
    home.sql("CREATE TABLE rows$ AS SELECT 1 AS id")
    code = place.folder.parent / "job.py"
    code.write_text(COUNT)

    def create(into: str) -> None:
        jobs = place.session.jobs
        jobs.create("j", f"{code}:f", home.name(into), volume="v", returns="n INT", or_replace=True)

    for table in ("rows", "read"):
        with pytest.raises(InvalidStateError, match="would add columns to it: n"):
            create(table)
    create("empty")
    create("fits")
    home.sql("ALTER TABLE rows$ SET PROPERTIES ('volstream.writers' = 'any')")
    create("rows")
    create("later")
    home.sql("CREATE TABLE later$ AS SELECT 1 AS id")
    with pytest.raises(InvalidStateError, match="would add columns to it: n"):
        place.run()


def test_a_dynamic_table_is_written_by_its_refresh(home: Home) -> None:
    home.sql("CREATE TABLE e$ (id INT) TBLPROPERTIES ('change_tracking' = 'true')")
    home.sql("CREATE DYNAMIC TABLE d$ AS SELECT id FROM e$")
    with pytest.raises(InvalidStateError, match="may write the table"):
        home.sql("INSERT INTO d$ VALUES (1)")


@pytest.mark.long
@pytest.mark.parametrize("write", [pytest.param(one, marks=() if one is Write.UPSERT else pytest.mark.long) for one in Write])
def test_a_log_of_versions_and_the_table_of_a_dropped_job_are_free(place: Place, write: Write) -> None:
    home = filled(place, write=write)
    if write is Write.UPSERT:
        place.session.jobs.drop("j")
    home.sql("INSERT INTO t$ (_file_path) VALUES ('x')")
    assert len(home.rows("SELECT * FROM t$")) == 2
