"""``session.source.create_table``: items by key, versions that stay, and projections.

All tests share one engine, whose catalog knows tables by name: each that uses SQL has names of its own.
"""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.integration.ingest.sources import projected
from tests.interrupts import interrupted
from tests.tails import no_spark
from volstream.api.objects.items import ItemTable
from volstream.api.session import Session
from volstream.base.model.names import Name
from volstream.errors import AlreadyExistsError, InvalidStateError, InvalidValueError, VolstreamError
from volstream.ingest.sources.versions import VersionReader
from volstream.tables.delta import places
from volstream.tables.delta.opened import newest_version
from volstream.tables.tails.lookup import Lookup
from volstream.tables.tails.writer import commit_tail

SIMBA = {"id": "user1", "first_name": "simba", "last_name": "khadder"}


def test_the_snippets_of_the_document_run(without_engine: Session) -> None:
    table = without_engine.source.create_table(name="MyTable", primary_key="id")
    table.insert(SIMBA)
    assert table.get("user1") == SIMBA
    table = without_engine.source.create_table(name="Another", primary_key="id", data=[SIMBA], immutable=True, version=1)
    assert table.get("user1") == SIMBA


@pytest.mark.long
def test_the_newest_item_of_a_key_is_found_wherever_it_is(session: Session) -> None:
    table = session.source.create_table("newest", "id")
    table.insert_all({"id": number, "n": 0} for number in range(3000))
    session.sql("OPTIMIZE newest").collect()
    table.insert({"id": 7, "n": 1})
    assert table.get(7) == table.get("7") == {"id": 7, "n": 1}
    commit(session, "newest")
    assert [table.get(number) for number in (6, 7, 3000)] == [{"id": 6, "n": 0}, {"id": 7, "n": 1}, None]
    table.delete(6)
    table.insert({"id": 7, "n": 2})
    assert [table.get(number) for number in (6, 7)] == [None, {"id": 7, "n": 2}]
    commit(session, "newest")
    assert [table.get(number) for number in (6, 7)] == [None, {"id": 7, "n": 2}]
    assert session.sql("SELECT count(*) AS n FROM newest").collect()[0].n == 2999


def commit(session: Session, name: str = "t") -> int:
    return commit_tail(f"{session.home.warehouse}/tables/public/{name}", lambda: session.home.gateway)


def test_two_commits_at_once_are_one(session: Session) -> None:
    table = session.source.create_table("contended", "id")
    for turn in range(2):
        table.insert_all({"id": number, "turn": turn} for number in range(200))
        with ThreadPoolExecutor(2) as pool:
            counts = list(pool.map(lambda _: commit(session, "contended"), range(2)))
        assert max(counts) == 200
    found = session.sql("SELECT count(*) AS n, count(DISTINCT id) AS ids FROM contended").collect()
    assert (found[0].n, found[0].ids, table.get(7)) == (200, 200, {"id": 7, "turn": 1})


@pytest.mark.long
@hypothesis_settings(
    max_examples=hypothesis_settings().max_examples // 6, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.sampled_from(["insert", "delete", "many"]), st.sampled_from("abcdefgh")), min_size=1, max_size=12))
def test_a_table_of_items_agrees_with_a_dict(without_engine: Session, steps: list[tuple[str, str]]) -> None:
    without_engine.source.drop("t", if_exists=True)
    table, model = without_engine.source.create_table("t", "k"), dict[str, dict[str, object]]()
    for number, (step, key) in enumerate(steps):
        match step:
            case "insert":
                table.insert({"k": key, "n": number})
                model[key] = {"k": key, "n": number}
            case "delete":
                table.delete(key)
                model.pop(key, None)
            case "many":
                some = [{"k": one, "n": number} for one in (key, "a", key)]
                table.insert_all(some)
                model |= {str(one["k"]): dict(one) for one in some}
        assert {one: table.get(one) for one in "abcdefgh"} == {one: model.get(one) for one in "abcdefgh"}


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"name": "x"}, "has no 'id'"),
        ({"id": None}, "id cannot be None"),
        ({"id": 1.5}, "id cannot be 1.5"),
        ({"id": True}, "id cannot be True"),
        ({"id": 1, "n": {1, 2}}, "cannot be stored as JSON"),
        ("id", "An item is a dict, not str"),
        ({"id": 10**5000}, "id cannot be an integer of thousands of digits"),
        ({"id": "\ud800"}, r"id cannot be '\\ud800'\. It contains a lone surrogate"),
    ],
)
def test_an_item_that_cannot_be_stored_is_refused(without_engine: Session, item: dict[str, object], reason: str) -> None:
    table = without_engine.source.create_table("t", "id")
    with pytest.raises(InvalidValueError, match=reason):
        table.insert_all([{"id": 1}, item])
    assert table.get(1) is None


@pytest.mark.long
def test_each_version_of_an_immutable_table_stays(session: Session) -> None:
    source = session.source
    table = source.create_table("versioned", "id", [{"id": "a", "n": 1}, {"id": "b"}], immutable=True)
    assert source.create_table("versioned", "id", [{"id": "b"}, {"id": "a", "n": 1}], immutable=True, version=1).versions == [1]
    with pytest.raises(AlreadyExistsError, match="Version 1 of versioned exists with other data"):
        source.create_table("versioned", "id", [{"id": "a", "n": 2}], immutable=True, version=1)
    source.create_table("versioned", "id", [{"id": "a", "n": 2}], immutable=True)
    assert (table.versions, table.get("a"), table.get("b")) == ([1, 2], {"id": "a", "n": 2}, None)
    assert (table.get("a", version=1), table.get("b", version=1)) == ({"id": "a", "n": 1}, {"id": "b"})
    assert [row.id for row in session.sql("SELECT id FROM versioned").collect()] == ["a"]
    session.sql("VACUUM versioned").collect()
    assert source.get_table("versioned").get("b", 1) == {"id": "b"}
    for wrong, reason in (
        (lambda: table.get("a", 3), "has no version 3"),
        (lambda: source.create_table("u", "id", [{"id": 1}], version=1), "Only immutable tables have versions"),
        (lambda: source.create_table("u", "id", immutable=True), "needs its data"),
        (lambda: source.create_table("u", "id", [{"id": 1}, {"id": 1}], immutable=True), "id is not unique: '1'"),
        (lambda: source.create_table("u", "item", []), "cannot be called 'item'"),
    ):
        with pytest.raises(InvalidValueError, match=reason):
            wrong()
    assert [str(one.name) for one in source.list()] == ["versioned"]


def test_a_key_of_another_type_is_refused(without_engine: Session) -> None:
    without_engine.source.create_table("kept", "id", [{"id": "a"}], immutable=True)
    assert without_engine.source.create_table("kept", "id", [{"id": "a"}], immutable=True).versions == [1]
    reader = VersionReader(without_engine.home, Name.parse("kept"))
    with pytest.raises(InvalidValueError, match="id cannot be 5"):
        reader.get(5)


@pytest.mark.long
def test_a_reader_keeps_what_few_versions_need(without_engine: Session) -> None:
    table = without_engine.source.create_table("kept", "id")
    home, name = without_engine.home, Name.parse("kept")
    location = places.table_location(home.warehouse, name)
    commits: dict[str, int | None] = {}
    for number in range(1, 12):
        table.insert({"id": "a", "n": number})
        commit_tail(location, no_spark)
        commits[str(number)] = newest_version(location)
    home.catalog.sources.change(table.source, options={"versions": commits}, immutable=True)
    before = _lookups()
    reader = VersionReader(home, name)
    for version in (1, *range(1, 12), 11):
        assert (reader.get("a", version) or {})["item"] == f'{{"id":"a","n":{version}}}'
    assert _lookups() - before == 4


def _lookups() -> int:
    """How many versions are open in this process."""
    gc.collect()
    return sum(isinstance(item, Lookup) for item in gc.get_objects())


@pytest.mark.long
def test_a_table_is_made_immutable_with_all_that_was_inserted(session: Session) -> None:
    table = session.source.create_table("frozen", "id", data=[{"id": 1, "n": 1}])
    with pytest.raises(InvalidValueError, match="has no versions"):
        table.get(1, version=1)
    table.insert({"id": 2})
    table.make_immutable(version=1)
    assert (table.get(1), table.get(2, version=1), table.versions) == ({"id": 1, "n": 1}, {"id": 2}, [1])
    with pytest.raises(InvalidStateError, match="is immutable"):
        table.insert({"id": 3})
    with pytest.raises(InvalidStateError, match="is immutable"):
        table.delete(1)
    with pytest.raises(InvalidStateError, match="is immutable already"):
        table.make_immutable()
    session.source.create_table("frozen", "id", [{"id": 1, "n": 5}], immutable=True, version=2)
    assert (table.get(1), table.get(1, 1)) == ({"id": 1, "n": 5}, {"id": 1, "n": 1})


@pytest.mark.long
def test_a_projection_follows_its_table(session: Session) -> None:
    people = session.source.create_table("people", "id")
    people.insert_all([{"id": 1, "name": "Ada", "age": 36}, {"id": 2, "name": "Bo", "age": 7}])
    commit(session, "people")
    people.project("grown", projected.adults, primary_key="name")
    people.project("ages", "SELECT id, get_json_object(item, '$.age') AS age FROM people")

    def grown() -> list[tuple[str, str]]:
        return [(row.name, row.item) for row in session.sql("SELECT name, item FROM grown ORDER BY name").collect()]

    assert grown() == [("Ada", '{"name":"Ada","born":1990}')]
    people.insert({"id": 2, "name": "Bo", "age": 18})
    people.delete(1)
    commit(session, "people")
    for name in ("grown", "ages"):
        session.dynamic_tables.refresh(name)
    assert grown() == [("Bo", '{"name":"Bo","born":2008}')]
    assert [(row.id, row.age) for row in session.sql("SELECT * FROM ages").collect()] == [("2", "18")]
    with pytest.raises(VolstreamError, match="An item has no name"):
        people.project("broken", projected.nameless, primary_key="name")
    people.project("same", lambda item: item, primary_key="id")
    assert session.sql("SELECT id FROM same").collect() == session.sql("SELECT id FROM people").collect()


def test_a_version_whose_maker_died_before_it_noted_it_is_found(without_engine: Session) -> None:
    source = without_engine.source

    def create(number: int, version: int | None = None) -> ItemTable:
        return source.create_table("v", "id", data=[{"id": number}], immutable=True, version=version)

    with interrupted("call", "volstream.ingest.sources.versions.note"):
        create(1, version=1)
    table = create(2)
    with interrupted("call", "volstream.ingest.sources.versions.note"):
        create(3, version=3)
    create(4)
    assert [table.get(number, version=number) for number in (1, 2, 3, 4)] == [{"id": number} for number in (1, 2, 3, 4)]
    create(1, version=1)  # as before
    with pytest.raises(AlreadyExistsError):
        create(2, version=1)
    create(10, version=10)
    with pytest.raises(InvalidValueError, match="would come after version 10"):
        create(7, version=7)
