"""Temporary views of streams do not accumulate in a long-lived session."""

from __future__ import annotations

import gc

import pytest

from tests.integration.conftest import Home


def views(home: Home) -> set[str]:
    spark = home.session.spark
    return {row["viewName"] for row in spark.sql("SHOW VIEWS").collect() if row["viewName"].startswith("volstream_")}


@pytest.mark.long
def test_views_of_collected_frames_are_dropped_and_others_stay(home: Home) -> None:
    home.tracked()
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1)")
    of_others = views(home)  # of other tests in this session
    kept = home.session.table(home.name("s")).select("id")
    gc.collect()
    home.sql("SELECT 1")
    before = views(home) - of_others
    assert before
    for _ in range(3):
        home.sql("SELECT * FROM s$")
    gc.collect()
    home.sql("SELECT 1")
    assert views(home) - of_others == before
    assert [row["id"] for row in kept.collect()] == [1]
    kept.createOrReplaceTempView("of_the_user")
    del kept
    gc.collect()
    home.sql("SELECT 1")
    assert views(home) <= of_others
    assert [row["id"] for row in home.session.sql("SELECT * FROM of_the_user").collect()] == [1]
    home.sql("DROP VIEW of_the_user")
