"""Files of a pipeline with what Spark makes: tables, jobs of statements, dynamic tables."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.integration.conftest import Place
from volstream.api.pipelines.apply import apply, plan_of
from volstream.api.pipelines.definitions import Verb
from volstream.api.pipelines.export import existing, to_toml
from volstream.errors import InvalidStateError, SqlError

PIPELINE = """
[tables."$.people"]
columns = "id BIGINT NOT NULL, name VARCHAR(20), score DECIMAL(10,2)"
primary_key = ["id"]
properties = { change_tracking = true, "delta.appendOnly" = false }

[tables."$.log"]
columns = "id BIGINT, day DATE"
partitioned_by = ["day"]

[streams."$.changes"]
table = "$.people"

[jobs."$.audit"]
statement = "INSERT INTO $.log SELECT id, current_date() FROM $.changes WHERE __change_type = 'INSERT'"
every = "1m"

[functions."$.twice"]
function = "f.py:twice"
returns = "BIGINT"

[dynamic_tables."$.sums"]
query = "SELECT name, sum($.twice(id)) AS n FROM $.people GROUP BY name"
cron = "0 * * * *"

[jobs."$.count"]
volume = "v"
function = "f.py:count"
returns = "n INT"
into = "$.people_files"
"""


@pytest.fixture
def schema() -> str:
    """The schema of the pipeline's objects: all tests share one engine."""
    return f"p{uuid.uuid4().hex[:8]}"


@pytest.fixture
def file(place: Place, schema: str, tmp_path: Path) -> Path:
    """The pipeline's file, beside its code."""
    del place  # has the volume v
    (tmp_path / "f.py").write_text("def twice(n): return n * 2\ndef count(file): return {'n': file.size}\n")
    written = tmp_path / "pipeline.toml"
    written.write_text(PIPELINE.replace("$", schema))
    return written


@pytest.mark.long
@pytest.mark.timeout(240)
def test_tables_and_what_is_on_them_are_made_altered_and_exported(place: Place, schema: str, file: Path) -> None:
    objects = place.session
    assert {action.verb for action in apply(objects, file).actions} == {Verb.CREATE}
    assert plan_of(objects, file).changes == []

    # They work.
    place.session.sql(f"INSERT INTO {schema}.people VALUES (1, 'Ann', 2.5), (2, 'Ann', 1)")
    place.session.jobs.run(f"{schema}.audit")
    assert place.rows(f"SELECT id FROM {schema}.log ORDER BY id") == [{"id": 1}, {"id": 2}]
    place.session.dynamic_tables.refresh(f"{schema}.sums")
    assert place.rows(f"SELECT * FROM {schema}.sums") == [{"name": "Ann", "n": 6}]

    # Columns come, statements and triggers change, and the stream goes on where it was.
    text = file.read_text()
    for before, after in [
        ("score DECIMAL(10,2)", "score DECIMAL(10,2), city STRING"),
        ("current_date()", "DATE'2026-01-01'"),
        ('"delta.appendOnly" = false', '"delta.checkpointInterval" = 20'),
        ("0 * * * *", "5 * * * *"),
    ]:
        text = text.replace(before, after)
    file.write_text(text)
    altered = {action.definition.title for action in apply(objects, file).changes}
    assert altered == {f"table {schema}.people", f"job {schema}.audit", f"dynamic table {schema}.sums"}
    assert plan_of(objects, file).changes == []
    place.session.sql(f"INSERT INTO {schema}.people VALUES (3, 'Bob', 0, 'Oslo')")
    place.session.jobs.run(f"{schema}.audit")
    assert place.rows(f"SELECT id FROM {schema}.log WHERE day = '2026-01-01'") == [{"id": 3}]

    # A table that a job fills is not part of an export, one that is followed is.
    place.put("a.txt", "text")
    place.session.jobs.run(f"{schema}.count")
    exported = to_toml(existing(place.session.home, None))
    assert 'people_files"]' not in exported
    assert "city STRING" in exported
    file.write_text(exported)
    assert plan_of(objects, file, prune=True).changes == []

    # What cannot be done is refused, and changes nothing.
    file.write_text(exported.replace("name STRING, ", "", 1))
    with pytest.raises(InvalidStateError, match="the table has a column name, which the file lacks"):
        apply(objects, file)
    file.write_text(exported.replace("sum(", "count("))
    with pytest.raises(InvalidStateError, match=r"dynamic table .* query cannot be altered"):
        apply(objects, file)


@pytest.mark.long
def test_defaults_and_comments_of_columns_are_exported(place: Place, schema: str, file: Path) -> None:
    place.session.sql(f"CREATE SCHEMA {schema}")
    place.session.sql(
        f"CREATE TABLE {schema}.t (id BIGINT, state STRING DEFAULT 'it''s new' COMMENT 'of \"it\"', at DATE, "
        "year INT GENERATED ALWAYS AS (YEAR(at))) TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"
    )
    exported = to_toml(existing(place.session.home, None))
    file.write_text(exported)
    assert plan_of(place.session, file).changes == []
    place.session.sql(f"DROP TABLE {schema}.t")
    apply(place.session, file)
    assert to_toml(existing(place.session.home, None)) == exported
    place.session.sql(f"INSERT INTO {schema}.t (id, at) VALUES (1, DATE'2026-01-01')")
    assert place.rows(f"SELECT state, year FROM {schema}.t") == [{"state": "it's new", "year": 2026}]


@pytest.mark.long
@pytest.mark.timeout(120)
def test_what_only_spark_finds_wrong_says_what_was_done_before(place: Place, file: Path) -> None:
    text = file.read_text().replace("sum(", "nonsense(")
    file.write_text(text)
    with pytest.raises(SqlError, match=r"(?s)dynamic table .*nonsense.* were created and remain"):
        apply(place.session, file)
    file.write_text(text.replace("nonsense(", "sum("))
    assert Verb.CREATE in {action.verb for action in apply(place.session, file).actions}
    assert plan_of(place.session, file).changes == []
