"""No statement of the SQL page makes Spark open, list or call anything but the home's relations: seen by baits."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.baits import Baits, baits
from tests.integration.conftest import Place
from volstream.errors import VolstreamError
from volstream.server.console.queries import Queries

#: Relations that are no table: ``#`` is the folder of the bait, ``&`` the same from the tables of the home, ``@`` its port.
RELATIONS = [
    *(f"{source}.`#`" for source in ("csv", "json", "text", "parquet", "orc", "avro", "xml", "binaryFile", "delta")),
    "CSV.`#/secret.csv`",
    "`csv`.`file:#`",
    "`csv`.`file://#/s*`",
    "spark_catalog.csv.`#`",
    "spark_catalog.delta.`#`",
    "`org.apache.spark.sql.execution.datasources.csv.CSVFileFormat`.`#`",
    "`com.databricks.spark.csv`.`#`",
    "csv /* x */ . /* y */ `#`",
    "iceberg.`#`",
    "csv.`#` WITH (header = true, sep = '~', lineSep = '!')",
    "$ WITH (path = '#')",
    "$ WITH (`fs.file.impl` = 'org.apache.hadoop.fs.http.HttpFileSystem')",
    "csv.`webhdfs://127.0.0.1:@/x`",
    "json.`http://127.0.0.1:@/x`",
    "parquet.`s3a://127.0.0.1:@/x`",
    "table_changes_by_path('#', 0)",
    "table_changes('csv.`#`', 0)",
    "IDENTIFIER('csv.`#`')",
    "IDENTIFIER('csv' || '.`#`')",
    "STREAM csv.`#`",
    "jdbc.`jdbc:derby:#`",
]

#: Where a relation may stand in a query: ``%``.
POSITIONS = [
    "SELECT * FROM %",
    "SELECT nope FROM %",
    "TABLE %",
    "FROM % |> WHERE nope > 3",
    "SELECT * FROM $ JOIN % ON true",
    "SELECT * FROM $, LATERAL (SELECT * FROM %)",
    "SELECT (SELECT first(nope) FROM %) FROM $",
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM %)",
    "SELECT 1 WHERE 1 IN (SELECT nope FROM %)",
    "WITH a AS (SELECT * FROM %) SELECT count(*) FROM a",
    "WITH a AS (SELECT 1), b AS (WITH c AS (SELECT * FROM %) TABLE c) SELECT * FROM b, a",
    "WITH RECURSIVE a AS (SELECT 1 x UNION ALL SELECT x + 1 FROM a, %) SELECT * FROM a",
    "SELECT 1 UNION SELECT nope FROM %",
    "SELECT * FROM $ TIMESTAMP AS OF (SELECT max(nope) FROM %)",
    "SELECT * FROM $ VERSION AS OF (SELECT 0 FROM %)",
    "SELECT * FROM explode(TABLE(SELECT * FROM %))",
    "SELECT * FROM range((SELECT max(nope) FROM %))",
    "SELECT transform(array(1), x -> (SELECT max(nope) FROM %)) FROM $",
    "SELECT sum(1) OVER (ORDER BY (SELECT max(nope) FROM %)) FROM $",
    "SELECT * FROM $ PIVOT (sum(n) FOR n IN (1)) JOIN % ON true",
    "SELECT * FROM VALUES ((SELECT max(nope) FROM %))",
    "SELECT 1 -- \\\n' \n FROM % -- '",
    "SELECT /*+ BROADCAST(x) */ 1 /* /* */ ' */ FROM % /* ' */",
    "SELECT r'\\', (SELECT count(*) FROM %), '\\''",
    'SELECT "\\"", (SELECT count(*) FROM %), \'"\'',
    "SELECT '' FROM % x LIMIT (SELECT 1)",
    "SELECT * FROM % TABLESAMPLE (1 ROWS)",
    "SELECT * FROM (FROM %)",
    "SELECT * FROM % CHANGES FROM VERSION 0",
    "SELECT 1\nVOLSTREAM READS\n, (SELECT 1 FROM %)\nVOLSTREAM READS\n`x`",
    "DESCRIBE QUERY SELECT * FROM %",
    "DESC (SELECT * FROM %)",
    "DESC WITH a AS (SELECT * FROM %) SELECT * FROM a",
    "EXPLAIN SELECT * FROM %",
    "DESCRIBE %",
    "DESCRIBE EXTENDED %",
    "DESCRIBE FORMATTED % nope",
    "DESCRIBE EXTENDED % AS JSON",
    "DESCRIBE HISTORY %",
    "DESCRIBE DETAIL %",
    "SHOW COLUMNS IN %",
    "SHOW COLUMNS FROM %",
    "SHOW CREATE TABLE %",
    "SHOW TBLPROPERTIES %",
    "SHOW PARTITIONS %",
    "SHOW TABLES IN %",
    "SHOW VIEWS IN %",
    "SHOW TABLE EXTENDED IN % LIKE '*'",
    "DESCRIBE SCHEMA %",
    "DESCRIBE FUNCTION %",
    "SELECT * FROM DIRECTORY(VOLUME %)",
]

#: Statements that name paths otherwise.
OTHERS = [
    "DESCRIBE HISTORY '#'",
    "DESCRIBE DETAIL '#'",
    "DESC HISTORY r'#'",
    'DESCRIBE DETAIL "#"',
    "SELECT * FROM VALUES ('x') t(x) LATERAL VIEW `csv.#`(x)",
    "SELECT TRANSFORM(1) USING 'cat #/secret.csv' AS (x STRING)",
    "SELECT from_xml('<a><b>1</b></a>', 'b INT', map('rowValidationXSDPath', '#/secret.csv'))",
    "SELECT from_avro(X'00', '\"int\"', map('avroSchemaUrl', 'http://127.0.0.1:@/x'))",
    "SELECT xpath_string('<!DOCTYPE a SYSTEM \"file:#/secret.csv\"><a>&e;</a>', 'a')",
    "SELECT xpath_string('<!DOCTYPE a SYSTEM \"http://127.0.0.1:@/x\"><a>&e;</a>', 'a')",
    "SELECT reflect('java.nio.file.Files', 'readString', '#/secret.csv')",
    "SELECT `reflect`('java.nio.file.Files', 'readString', '#/secret.csv')",
    "SELECT `file_content.v`('#/secret.csv')",
    "BEGIN SELECT * FROM csv.`#`; END",
    "SELECT 1; SELECT * FROM csv.`#`",
    "CREATE TEMPORARY VIEW v USING csv OPTIONS (path '#')",
    "CACHE TABLE x AS SELECT * FROM csv.`#`",
    "LIST FILES '#/secret.csv'",
    "ADD JAR '#/secret.csv'",
    "SET spark.sql.x = 1",
    "EXECUTE IMMEDIATE 'SELECT * FROM csv.`#`'",
    "DECLARE x = (SELECT first(nope) FROM csv.`#`)",
    "FROM csv.`#` INSERT INTO $ SELECT 1",
    "SELECT * FROM python_worker_logs()",
    "REFRESH '#'",
    "ANALYZE TABLE csv.`#` COMPUTE STATISTICS",
    "SHOW TABLES IN `&`",
    "SHOW TABLES FROM `&` LIKE '*'",
    "SHOW TABLES IN `&/secret.csv`",
    "SHOW COLUMNS IN t IN `&`",
]


@pytest.fixture
def bait(tmp_path: Path) -> Iterator[Baits]:
    with baits(tmp_path / "bait") as found:
        yield found


def statements(positions: Sequence[str]) -> list[str]:
    return [position.replace("%", relation) for position, relation in itertools.product(positions, RELATIONS)]


@pytest.mark.parametrize(
    "some",
    [
        [position.replace("%", RELATIONS[at % len(RELATIONS)]) for at, position in enumerate(POSITIONS)]
        + [POSITIONS[0].replace("%", relation) for relation in RELATIONS]
        + OTHERS,
        pytest.param(statements(POSITIONS), marks=pytest.mark.long),
    ],
    ids=["each once", "all pairs"],
)
def test_no_statement_opens_lists_or_calls_anything(place: Place, bait: Baits, some: Sequence[str]) -> None:
    table = f"t{uuid.uuid4().hex[:8]}"
    place.session.sql(f"CREATE TABLE {table} (n INT)").collect()
    queries = Queries(place.session)
    beside = os.path.relpath(bait.folder, f"{place.session.home.warehouse}/tables")
    wrong = []
    for template in some:
        statement = template.replace("$", table).replace("#", str(bait.folder)).replace("@", str(bait.port))
        statement = statement.replace("&", beside)
        try:
            answer = str(queries.run(statement, 10))
        except VolstreamError as error:
            answer = str(error)
        taken = bait.taken()
        if taken or "s3cret" in answer:
            wrong.append((statement, taken, answer))
    queries.stop()
    assert wrong == []


@pytest.mark.parametrize(
    ("statement", "taken"),
    [
        ("SELECT nope FROM csv.`#`", "secret.csv"),
        pytest.param("SELECT nope FROM json.`#/inside`", "part.csv", marks=pytest.mark.long),
        pytest.param("DESC SELECT * FROM csv.`#/secret.csv` WITH (header = true)", "secret.csv", marks=pytest.mark.long),
        pytest.param("SELECT nope FROM csv.`webhdfs://127.0.0.1:@/x`", "the port", marks=pytest.mark.long),
    ],
)
def test_without_the_guard_the_baits_are_taken(place: Place, bait: Baits, statement: str, taken: str) -> None:
    text = statement.replace("#", str(bait.folder)).replace("@", str(bait.port))
    with pytest.raises(Exception, match=r"."):  # whatever Spark says of a column that is not there
        place.session.spark.sql(text).select("nope").collect()
    assert taken in bait.taken()
