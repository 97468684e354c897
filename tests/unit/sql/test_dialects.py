"""Words of other platforms: each is answered with what volstream has in its place."""

from __future__ import annotations

import pytest

from volstream.errors import SqlError
from volstream.sql import grammar
from volstream.sql.grammar import FOREIGN, ForeignConstruct, check, found_in
from volstream.sql.statement import SparkStatement


@pytest.mark.parametrize(
    ("one", "word"),
    [(one, word) for one in FOREIGN for word in one.examples],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_words_of_other_platforms_are_answered_with_ours(one: ForeignConstruct, word: str) -> None:
    with pytest.raises(SqlError) as caught:
        check(one.examples[word].lower())
    assert caught.value.message == f"volstream has no {one.words.format(word=word.lower())}."
    assert caught.value.remedy == one.remedy.replace("{word}", word.lower())
    if one.ours is not None:
        assert grammar.owned(SparkStatement(one.ours).words)
        grammar.parse(one.ours)
        assert found_in(one.ours) is None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'COPY INTO t', \"read_files(\" AS `LIST @` FROM s WHERE at > 1",
        "CREATE TABLE clone (pipe INT, task STRING)",
        "CREATE TABLE a SHALLOW CLONE b",
        "SELECT public.read_files(a) FROM t VERSION AS OF 3",
        "SHOW COLUMNS IN t",
        "SHOW STREAMS IN schema",
        "SELECT flatten(a), sample(3) FROM DIRECTORY(VOLUME v) TABLESAMPLE (10 PERCENT)",
        "CREATE TABLE t (data_retention_days INT, change_tracking BOOLEAN)",
        "ALTER TABLE t SET PROPERTIES ('data_retention_days' = '3')",
        "SELECT * FROM csv.`s3://b/x`, delta.`/data/x`",
        "LIST JARS",
        "SELECT a, stream b, cloudfiles.c FROM stream WHERE a > 1",
        "SHOW DYNAMIC TABLE REFRESH HISTORY WHERE name = 'd'",
        "UPDATE t SET a = (SELECT max(b) FROM s), c = extract(DAY FROM d)",
        "UPDATE t SET a = 1 WHERE b IS DISTINCT FROM c",
        "DELETE FROM t WHERE using > 1",
        "SELECT a * exclude, top FROM t",
        "BEGIN SELECT 1; END",
    ],
)
def test_such_words_as_names_and_texts_mean_nothing(text: str) -> None:
    check(text)
