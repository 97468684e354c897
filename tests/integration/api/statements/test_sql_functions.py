"""Python functions that statements call by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from tests.integration.conftest import Home, Place
from volstream.errors import AlreadyExistsError, FunctionLoadError, InvalidValueError, NotFoundError, SqlError

_CODE = """
import models_beside

def fc_image_to_text(task, url):
    return None if url is None else f"{task}: {models_beside.name(url)}"

def twice(n):
    return n * 2

def parts(text):
    return text.split("/")

def fails(n):
    raise ValueError("this one is bad")
"""

_BESIDE = """
def name(url):
    import models_beside
    return url.rsplit("/", 1)[-1]
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "my code"
    folder.mkdir()
    (folder / "models_beside.py").write_text(_BESIDE)
    (folder / "f.py").write_text(_CODE)
    return folder / "f.py"


@pytest.mark.long
def test_the_recognition_example_of_the_source_document_runs_verbatim(place: Place, code: Path) -> None:
    place.put("soup.jpg")
    place.put("notes.txt")
    place.refresh()
    home = Home(place.session)
    home.sql(
        f"CREATE SCHEMA {home.schema}; CREATE FUNCTION public.fc_image_to_text AS '{code}:fc_image_to_text' RETURNS VARCHAR;"
        "CREATE TABLE results$ (file_path VARCHAR COMMENT 'p', file_url VARCHAR, file_size BIGINT, last_modified_time TIMESTAMP,"
        " recognized_content VARCHAR, change_type VARCHAR, commit_version BIGINT, processed_at TIMESTAMP);"
        "CREATE STREAM s$ ON VOLUME v WITH PROPERTIES ('TABLE_STREAM_MODE' = 'STANDARD', 'SHOW_INITIAL_ROWS' = 'TRUE')"
    )
    home.sql(
        "INSERT INTO results$ SELECT relative_path AS file_path, url AS file_url, size AS file_size, last_modified_time, "
        "public.fc_image_to_text('dish_recognition', url) AS recognized_content, __change_type AS change_type, "
        "__commit_version AS commit_version, current_timestamp() AS processed_at FROM s$ "
        "WHERE __change_type IN ('INSERT', 'UPDATE_AFTER') -- Only public.fc_image_to_text( new and replaced\n"
        "AND ( lower(relative_path) LIKE '%.jpg' OR lower(relative_path) LIKE '%.png' )"
    )
    assert home.rows("SELECT file_path, recognized_content FROM results$") == [("soup.jpg", "dish_recognition: soup.jpg")]
    assert home.rows("SELECT * FROM s$") == []


@pytest.mark.long
def test_a_function_is_called_wherever_an_expression_stands(home: Home, code: Path) -> None:
    home.sql(f"CREATE FUNCTION f$ AS '{code}:twice' RETURNS INT; CREATE FUNCTION p$ AS '{code}:parts' RETURNS ARRAY<STRING>")
    home.sql(f"CREATE FUNCTION two_times AS '{code}:twice' RETURNS BIGINT")
    assert home.rows("SELECT f$(f$(id)), 'f$(1)', two_times(id) FROM range(2) WHERE f$(id) < 3") == [
        (0, home.own("f$(1)"), 0),
        (4, home.own("f$(1)"), 2),
    ]
    assert home.rows("SELECT p$('a/b')[1]") == [("b",)]
    home.sql("CREATE TABLE t$ AS SELECT f$(CAST(id AS INT)) AS n FROM range(2)")
    home.sql("UPDATE t$ SET n = f$(n) WHERE f$(n) = 4")
    assert home.rows("SELECT n FROM t$") == [(0,), (4,)]
    assert home.session.sql(home.own("SELECT f$(1)")).columns == [home.own("f$(1)")]


@pytest.mark.long
def test_a_merge_from_a_stream_calls_it_in_conditions_and_values(home: Home, code: Path) -> None:
    home.tracked()
    home.sql(f"CREATE FUNCTION f$ AS '{code}:twice' RETURNS INT; CREATE TABLE u$ (id INT, age INT)")
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1), (2, 'b', 20)")
    home.sql(
        "MERGE INTO u$ t USING s$ s ON t.id = s.id "
        "WHEN NOT MATCHED AND f$(s.age) > 10 AND s.__change_type = 'INSERT' THEN INSERT VALUES (s.id, f$(s.age))"
    )
    assert home.rows("SELECT * FROM u$") == [(2, 40)]
    assert home.rows("SELECT * FROM s$") == []


@pytest.mark.long
def test_a_job_of_a_statement_calls_it(home: Home, code: Path) -> None:
    home.tracked()
    home.sql(f"CREATE FUNCTION f$ AS '{code}:twice' RETURNS INT; CREATE TABLE u$ (age INT)")
    home.sql("CREATE JOB j$ AS INSERT INTO u$ SELECT f$(age) FROM s$; INSERT INTO t$ VALUES (1, 'a', 21)")
    home.session.jobs.run(home.name("j"))
    assert home.rows("SELECT * FROM u$") == [(42,)]


def test_builtin_functions_of_spark_take_precedence_over_unqualified_names(home: Home, code: Path) -> None:
    home.sql(f"CREATE FUNCTION public.upper AS '{code}:twice' RETURNS INT")
    assert home.rows("SELECT upper('a'), public.upper(2)") == [("A", 4)]


def test_edited_code_runs_at_the_next_statement(home: Home, code: Path) -> None:
    home.sql(f"CREATE FUNCTION f$ AS '{code}:twice' RETURNS INT")
    assert home.rows("SELECT f$(id) FROM range(1, 2)") == [(2,)]
    code.write_text("def twice(n):\n    return n * 200\n")
    assert home.rows("SELECT f$(id) FROM range(1, 2)") == [(200,)]
    code.unlink()
    with pytest.raises(FunctionLoadError, match="no file"):
        home.sql("SELECT f$(1)")


@pytest.mark.long
def test_an_exception_in_the_function_is_reported_and_consumes_nothing(home: Home, code: Path) -> None:
    home.tracked()
    home.sql(f"CREATE FUNCTION f$ AS '{code}:fails' RETURNS INT; CREATE TABLE u$ (age INT)")
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1)")
    before = home.offset()
    with pytest.raises(SqlError, match="this one is bad"):
        home.sql("INSERT INTO u$ SELECT f$(age) FROM s$")
    assert home.offset() == before


def test_functions_can_be_replaced_kept_and_dropped(home: Home, code: Path) -> None:
    session = home.session
    made = session.functions.create(home.name("f"), f"{code}:twice", "int", comment="c")
    assert (made.returns, made.comment, made.function) == ("INT", "c", f"{code}:twice")
    with pytest.raises(AlreadyExistsError):
        home.sql(f"CREATE FUNCTION f$ AS '{code}:parts' RETURNS STRING")
    home.sql(f"CREATE FUNCTION IF NOT EXISTS f$ AS '{code}:parts' RETURNS ARRAY<STRING>")
    assert session.functions.get(home.name("f")) == made
    home.sql(f"CREATE OR REPLACE FUNCTION f$ AS '{code}:parts' RETURNS ARRAY<STRING> COMMENT 'parts'")
    assert [str(function.name) for function in session.functions.list()] == [home.name("f")]
    assert session.functions.get(home.name("f")).comment == "parts"
    home.sql("DROP FUNCTION f$")
    assert not session.functions.drop(home.name("f"), if_exists=True)
    with pytest.raises(NotFoundError):
        session.functions.drop(home.name("f"))
    home.sql("DROP FUNCTION IF EXISTS f$")
    with pytest.raises(SqlError):
        home.sql("DROP FUNCTION f$")


@pytest.mark.parametrize(
    ("location", "returns", "error", "said"),
    [
        ("{code}:missing", "INT", FunctionLoadError, "has no 'missing'"),
        ("/nowhere/f.py:f", "INT", FunctionLoadError, "no file"),
        ("{code}:twice", "WRONG", InvalidValueError, "is not a SQL type"),
        ("{code}:twice", "INT, b INT", InvalidValueError, "is not a SQL type"),
    ],
)
def test_unusable_functions_are_rejected_on_creation(
    home: Home, code: Path, location: str, returns: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        home.sql(f"CREATE FUNCTION f$ AS '{location.format(code=code)}' RETURNS {returns}")


def test_statements_read_the_contents_of_files(place: Place) -> None:
    place.put("a 1.txt", "one")
    place.put("gone.txt")
    place.refresh()
    (place.folder / "gone.txt").unlink()
    home = Home(place.session)
    rows = home.rows(
        "SELECT relative_path, CAST(file_content(VOLUME v, relative_path) AS STRING), length(FILE_CONTENT( VOLUME `v`, 'a 1.txt')), "
        "file_content(VOLUME v, NULL) FROM DIRECTORY(VOLUME v) WHERE file_content(VOLUME v, 'a 1.txt') = 'one' ORDER BY 1"
    )
    assert rows == [("a 1.txt", "one", 3, None), ("gone.txt", None, 3, None)]
    with pytest.raises(InvalidValueError, match=r"presigned URL"):
        home.sql("SELECT get_presigned_url(VOLUME v, relative_path, 60) FROM DIRECTORY(VOLUME v)")
    with pytest.raises(SqlError, match=r"^file_content\(VOLUME must be followed by the name of a volume, a comma and a path"):
        home.sql("SELECT file_content(VOLUME v)")
    with pytest.raises(NotFoundError, match="other"):
        home.sql("SELECT file_content(VOLUME other, 'a')")
    with (place.folder / "large.bin").open("wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(PySparkException, match=r"file_content: large\.bin is larger than 16"):
        home.rows("SELECT file_content(VOLUME v, 'large.bin')")
