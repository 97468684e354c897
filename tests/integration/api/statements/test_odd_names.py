"""Names with a special meaning to Spark when written into SQL: variables, quotes, escapes."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from tests.corpus import HOSTILE
from tests.integration.conftest import COUNT, Home, Place
from volstream.api.objects.sql import run_statement
from volstream.base.definitions import OnMove
from volstream.errors import SqlError
from volstream.ops.inspection.file_history import tell
from volstream.spark.frames import guarded
from volstream.spark.jvm.command import LEXING
from volstream.spark.session import SparkGateway
from volstream.sql.text import literal

#: A batch takes seconds where the machine is busy, and there are six.
pytestmark = pytest.mark.timeout(240)


#: As Spark writes its variables, the SQL standard its quotes, and Spark its escapes.
ODD = ["${env:HOME}", "${spark.app.name}", "${x}", "$", "$x", "\\u0024{x}", "it's", 'a "b" `c`', "a\\b", "%_", "a\nb"]
ODD += ["z\nVOLSTREAM READS\n.txt"]  # and the engine its guards


@pytest.mark.long
def test_files_with_odd_names_are_added_changed_and_removed(place: Place) -> None:
    plain = [("0", 1), ("z", 1)]
    for name in ("0", *ODD, "z"):
        place.put(name, "1")
    place.job(COUNT, max_files=4)
    place.run()
    place.session.jobs.alter("j", max_files=None)
    bounds = [batch.until_path for batch in place.session.home.catalog.reports.batches_of()]
    assert "${spark.app.name}" in bounds
    assert place.table() == sorted([*plain, *((name, 1) for name in ODD)])
    for name in ODD:
        place.put(name, "22")
    place.refresh()
    place.run()
    assert place.table() == sorted([*plain, *((name, 2) for name in ODD)])
    for name in ODD:
        place.delete(name)
    place.refresh()
    place.run()
    assert place.table() == plain


@pytest.mark.long
def test_rows_follow_files_moved_between_odd_names(place: Place) -> None:
    for name in ODD:
        place.put(name, name)
    place.job(COUNT, on_move=OnMove.REKEY)
    place.run()
    for name in ODD:
        (place.folder / name).rename(place.folder / f"{name} {name}")
    place.refresh()
    place.run()
    assert place.table() == sorted((f"{name} {name}", len(name)) for name in ODD)


@pytest.mark.long
def test_a_failed_file_with_an_odd_name_is_retried_and_its_history_shown(place: Place) -> None:
    for name in ODD:
        place.put(name, "1")
    flag = place.folder.parent / "flag"
    place.job(f"import os\ndef f(file):\n    os.stat({str(flag)!r})\n    return {{'n': 1}}\n")
    place.run()
    flag.touch()
    place.session.jobs.retry("j")
    place.run()
    assert place.table() == sorted((name, 1) for name in ODD)
    what = [event.what for event in tell(place.session.home, "v", ODD[0])]
    assert (what[0], what[-1]) == ("in the directory", "exists now")
    assert "has result rows" in what


def test_a_directory_below_an_odd_name_is_shown(place: Place) -> None:
    names = [f"{name}/{number}" for name in ODD for number in range(2)]
    for name in names:
        place.put(name)
    place.refresh()
    shown = place.rows("SHOW VOLUME DIRECTORY v SUBDIRECTORY '${env:HOME}'")
    assert [row["relative_path"] for row in shown] == ["${env:HOME}/0", "${env:HOME}/1"]


def test_variables_are_not_substituted_in_statements(home: Home) -> None:
    home.sql("CREATE TABLE t$ (v STRING)")
    home.sql("INSERT INTO t$ VALUES ('${env:HOME}'), ('${spark.app.name}')")
    assert home.rows("SELECT * FROM t$") == [("${env:HOME}",), ("${spark.app.name}",)]


@pytest.mark.filterwarnings("ignore:The SQL config")
def test_no_setting_makes_spark_read_other_names_than_volstream(home: Home, gateway: SparkGateway) -> None:
    home.sql("CREATE TABLE t$ (v STRING)")
    for key in LEXING:
        for statement in (f"SET {key}=true", f"SET `{key}` = `TRUE`"):
            with pytest.raises(SqlError, match=f"{key} must stay false: volstream would misread"):
                home.sql(statement)
        home.sql(f"SET {key}=false")
        home.sql(f"SET {key}")
        home.session.spark.conf.set(key, "true")
        with gateway.copied(home.session.spark) as copied:
            assert copied.conf.get(key) == "false"
        for read_only in (False, True):
            with pytest.raises(SqlError, match=f"Run RESET {key}"):
                run_statement(home.session, home.own("SELECT * FROM t$"), read_only=read_only)
        home.sql(f"RESET {key}")
        assert home.rows("SELECT * FROM t$") == []
    home.session.spark.conf.set("spark.sql.variable.substitute", "true")
    home.sql("RESET")
    assert home.rows("SELECT * FROM t$") == []


def test_spark_reads_every_literal_as_its_text_also_if_it_substitutes_variables(gateway: SparkGateway) -> None:
    query = f"SELECT array({', '.join(map(literal, HOSTILE))}) AS texts"
    with gateway.fresh() as session:
        session.conf.set("spark.sql.variable.substitute", "true")
        (row,), (also,) = session.sql(query).collect(), session.sql(guarded(query)).collect()
    assert row["texts"] == also["texts"] == HOSTILE


def test_a_text_that_looks_like_a_guard_is_none_unless_names_alone_follow(gateway: SparkGateway) -> None:
    with gateway.fresh() as session:
        (row,) = session.sql("SELECT 'zzz\nVOLSTREAM READS\n.txt' AS a, 1 AS `b\nVOLSTREAM READS\n`").collect()
        assert [*row] == ["zzz\nVOLSTREAM READS\n.txt", 1]
        with pytest.raises(PySparkException, match="is not a table, stream or directory of this home"):
            session.sql("SELECT '\nVOLSTREAM READS\n' FROM nowhere\nVOLSTREAM READS\n`x`").collect()
