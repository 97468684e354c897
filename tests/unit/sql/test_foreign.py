"""Words of other platforms: each is answered with what volstream has in its place."""

from __future__ import annotations

import pytest

from volstream.errors import SqlError
from volstream.sql import grammar, names
from volstream.sql.foreign import FOREIGN, Foreign, check, found_in
from volstream.sql.readonly import one_query


@pytest.mark.parametrize("one", FOREIGN, ids=lambda one: one.words)
def test_words_of_other_platforms_are_answered_with_ours(one: Foreign) -> None:
    with pytest.raises(SqlError) as caught:
        check(one.example.lower())
    assert caught.value.message == f"volstream has no {one.words}."
    assert caught.value.remedy == one.remedy
    if one.ours is not None:
        assert grammar.owned(names.words(one.ours))
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
        "LIST JARS",
    ],
)
def test_such_words_as_names_and_texts_mean_nothing(text: str) -> None:
    check(text)


def test_the_console_answers_them_too() -> None:
    with pytest.raises(SqlError, match="no METADATA"):
        one_query("SELECT * FROM s WHERE METADATA$ACTION = 'INSERT'")
