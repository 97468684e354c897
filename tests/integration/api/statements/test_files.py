"""Files of a volume as rows of a statement."""

from __future__ import annotations

import gzip

import pytest

from tests.integration.conftest import Place
from volstream.errors import InvalidValueError, NotFoundError, SqlError
from volstream.spark.errors import as_sql_errors


def test_a_statement_reads_files_of_a_volume_as_a_job_that_loads_does(place: Place) -> None:
    place.put("a.csv", "id;n\n1;1,5\n2;x\n")
    place.put("d/b.csv", "id;n\n3;2,5\n")
    place.put("c.json", '{"Records": [{"id": 4, "at": "2026-01-01T00:00:00Z"}]}')
    (place.folder / "z.csv").write_bytes(gzip.compress(b"id;n\n9;9\n"))
    place.refresh()
    options = "OPTIONS (delimiter ';', decimal ',')"
    rows = place.rows(
        f"SELECT id, v.n, _file_path FROM VOLUME v USING csv {options} FILES ('d/b.csv', 'z.csv') WHERE id > 1 ORDER BY id"
    )
    assert rows == [{"id": 3, "n": 2.5, "_file_path": "d/b.csv"}, {"id": 9, "n": 9.0, "_file_path": "z.csv"}]
    schema = "OPTIONS (delimiter ';', decimal ',', schema 'id INT, n DECIMAL(3,1)')"
    whole = place.rows(
        f"SELECT count(*) AS c, sum(x.n) AS s, max(_rescued_data) AS r FROM VOLUME v USING csv {schema} FILES ('a.csv') x"
    )
    assert [(row["c"], str(row["s"]), row["r"]) for row in whole] == [(2, "1.5", '{"n":"x"}')]
    place.rows(
        "CREATE TABLE made AS SELECT id, at FROM VOLUME v OPTIONS (records 'Records', schema 'id INT, at TIMESTAMP') FILES ('c.json')"
    )
    assert place.rows("SELECT id, year(at) AS y FROM made") == [{"id": 4, "y": 2026}]
    assert place.session.jobs.list() == []


#: Files of a statement, and which are found.
PATTERNS = [
    ("'d/**', 'a.csv'", ["a.csv", "d/b.csv", "d/e/c.csv"]),
    ("'x[1].csv'", ["x[1].csv"]),  # a file of that name
    ("'*.csv'", ["a.csv", "d/b.csv", "d/e/c.csv", "x1.csv", "x[1].csv"]),
    ("'d/*.csv'", ["d/b.csv"]),
    ("'x[12].csv'", ["x1.csv"]),
]


@pytest.mark.long
@pytest.mark.parametrize("patterns", [PATTERNS[:2], pytest.param(PATTERNS[2:], marks=pytest.mark.long)], ids=["some", "others"])
def test_files_are_named_by_patterns_too(place: Place, patterns: list[tuple[str, list[str]]]) -> None:
    for path in ("a.csv", "d/b.csv", "d/e/c.csv", "x[1].csv", "x1.csv"):
        place.put(path, f"p\n{path}\n")
    place.put("c.json", '{"p": "json"}')
    place.refresh()
    for files, found in patterns:
        rows = place.rows(f"SELECT p FROM VOLUME v USING csv FILES ({files}) ORDER BY p")
        assert [row["p"] for row in rows] == found, files
    with pytest.raises(NotFoundError, match=r"No file of the volume v matches '\*\.tsv'"):
        place.rows("SELECT * FROM VOLUME v USING csv FILES ('*.tsv')")


def test_what_cannot_be_read_is_an_error_that_names_it(place: Place) -> None:
    place.put("a.csv", "id\n1\n")
    place.put("b.csv", "# x\nid,n\n1,2\n")
    place.put(".hidden.csv", "id\n1\n")
    place.refresh()
    for query, error, message in (
        ("VOLUME v USING csv FILES ('c.csv')", NotFoundError, r"no file 'c\.csv' in the volume v"),
        ("VOLUME v USING csv FILES ('.hidden.csv')", NotFoundError, "no file '.hidden.csv'"),
        ("VOLUME w USING csv", NotFoundError, "no volume w"),
        ("VOLUME v USING cvs FILES ('a.csv')", InvalidValueError, "Did you mean 'csv'"),
        ("VOLUME v USING csv OPTIONS (sep ';')", InvalidValueError, "no load option 'sep'"),
        ("VOLUME v USING csv FILES ('b.csv')", InvalidValueError, r"seems to be a comment.*skip_rows=1"),
        ("VOLUME v USING csv OPTIONS (schema 'id INT')", SqlError, r"^The file b\.csv cannot be read: The first row of the file"),
        ("VOLUME v WHERE id = 1", SqlError, "Add USING or FILES"),
    ):
        with pytest.raises(error, match=message), as_sql_errors():  # as for a command
            place.rows(f"SELECT * FROM {query}")
    with pytest.raises(SqlError, match="A dynamic table cannot read files"):
        place.session.sql("CREATE DYNAMIC TABLE d AS SELECT id FROM VOLUME v USING csv")
