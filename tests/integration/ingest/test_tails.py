"""Tails: what has arrived is in the tail or in the table, once, whatever is done in whichever order by whomever."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tails
from tests.interrupts import interrupted, meanwhile
from tests.tails import committed, everything, no_spark
from tests.waiting import eventually
from volstream.errors import DependencyError, FencedError, InvalidStateError, NotFoundError, TailFullError
from volstream.ingest.local import LocalTable
from volstream.tables.delta import durable
from volstream.tables.tails import writer
from volstream.tables.tails.tail import DELETE, INSERT, UPSERT, TailedTable, existing_tail
from volstream.tables.tails.writer import Flush, MovePlanner, TailWriter, commit_tail


def batch(sequence: int, *ids: str, stream: str = "s", operation: str = INSERT) -> Flush:
    rows = {"__operation": [operation] * len(ids), "id": list(ids), "n": [sequence] * len(ids)}
    return Flush(stream, sequence, pa.table(rows))


def following(after: int, sequence: int, *ids: str) -> Flush:
    return replace(batch(sequence, *ids), after=after)


def ids(rows: list[dict[str, object]]) -> list[object]:
    return [row["id"] for row in rows]


@pytest.fixture
def location(tmp_path: Path) -> str:
    return tails.create(tmp_path)


def test_rows_move_from_the_tail_to_the_table_and_are_never_in_both(location: str) -> None:
    tail = TailWriter(location)
    tail.append([batch(1, "a", "b"), batch(2, "c")])
    assert (ids(everything(location)), ids(committed(location))) == (["a", "b", "c"], [])
    assert commit_tail(location, no_spark) == 3
    tail.append([batch(3, "d")])
    assert (ids(everything(location)), ids(committed(location))) == (["a", "b", "c", "d"], ["a", "b", "c"])
    assert commit_tail(location, no_spark) == 1
    assert commit_tail(location, no_spark) == 0
    assert ids(committed(location)) == ["a", "b", "c", "d"]


def test_a_batch_that_was_appended_is_not_appended_again_even_after_it_moved(location: str) -> None:
    tail = TailWriter(location)
    tail.append([batch(1, "a")])
    tail.append([batch(1, "a"), batch(2, "b")])
    commit_tail(location, no_spark)
    TailWriter(location).append([batch(1, "a"), batch(2, "b")])
    assert ids(everything(location)) == ["a", "b"]


def test_of_two_writers_of_one_stream_that_must_follow_each_other_one_is_refused(location: str) -> None:
    first, second = TailWriter(location), TailWriter(location)
    first.append([following(0, 2, "a", "b"), following(2, 3, "c")])
    second.append([following(0, 2, "a", "b")])
    assert second.newest(["s", "t"])[1] == {"s": 3, "t": 0}
    with pytest.raises(FencedError, match=r"up to 3 .*rows after 2"):
        second.append([batch(1, "x", stream="t"), following(2, 5, "c", "d", "e")])
    second.append([following(3, 4, "d")])
    with pytest.raises(FencedError, match="rows after 4"):
        TailWriter(location).append([following(4, 6, "e"), following(4, 7, "f")])
    assert ids(everything(location)) == ["a", "b", "c", "d"]


def test_writers_that_must_follow_each_other_and_write_at_once_write_everything_once(location: str) -> None:
    def write() -> None:
        mine = TailWriter(location)
        while (newest := mine.newest(["s"])[1]["s"]) < 20:
            with suppress(FencedError):
                mine.append([following(newest, newest + 1, f"{newest:02}")])

    threads = [threading.Thread(target=write) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert ids(everything(location)) == [f"{number:02}" for number in range(20)]


@pytest.mark.long
def test_many_small_flushes_leave_few_files(location: str) -> None:
    tail = TailWriter(location)
    for number in range(1, 140):
        tail.append([batch(number, f"{number:03}")])
    found = TailedTable.open(location)
    assert found is not None
    assert len(found.tail.view.files) < 70
    assert ids(everything(location)) == [f"{number:03}" for number in range(1, 140)]
    commit_tail(location, no_spark)
    assert ids(committed(location)) == [f"{number:03}" for number in range(1, 140)]


def test_writers_and_committers_at_once_lose_and_double_nothing(location: str) -> None:
    def write(stream: str) -> None:
        mine = TailWriter(location)
        for number in range(1, 16):
            mine.append([batch(number, f"{stream}{number:02}", stream=stream)])

    def commit() -> None:
        while not done.is_set():
            commit_tail(location, no_spark)

    done = threading.Event()
    writing = [threading.Thread(target=write, args=(stream,)) for stream in "abc"]
    committing = [threading.Thread(target=commit) for _ in range(2)]
    for one in (*writing, *committing):
        one.start()
    for one in writing:
        one.join()
    done.set()
    for one in committing:
        one.join()
    wanted = [f"{stream}{number:02}" for stream in "abc" for number in range(1, 16)]
    assert ids(everything(location)) == wanted
    commit_tail(location, no_spark)
    assert ids(committed(location)) == wanted


def test_rows_that_keep_arriving_do_not_hold_up_a_commit(location: str) -> None:
    tail = TailWriter(location)
    tail.append([batch(1, "a")])
    planner = MovePlanner(location)
    with meanwhile("call", "volstream.tables.tails.writer.MovePlanner._commit", lambda: tail.append([batch(2, "b")])):
        planned = planner.plan()
    assert planned is not None
    assert planned[1].until == 1  # the plan stands, and was not made again for more rows
    commit_tail(location, no_spark)
    assert ids(committed(location)) == ["a", "b"]


def test_a_sealed_tail_refuses_rows_those_in_flight_included(location: str) -> None:
    tail = TailWriter(location)
    tail.append([batch(1, "a")])
    with (
        meanwhile("call", "volstream.tables.tails.writer.TailWriter._append", lambda: TailWriter(location).seal()),
        pytest.raises(InvalidStateError, match="takes no more rows"),
    ):
        tail.append([batch(2, "b")])
    TailWriter(location).seal()
    assert ids(everything(location)) == ["a"]
    assert commit_tail(location, no_spark) == 1
    assert ids(committed(location)) == ["a"]


def test_two_writers_that_begin_at_once_share_one_tail(location: str) -> None:
    def other() -> None:
        TailWriter(location).append([batch(1, "b", stream="other")])

    with meanwhile("call", "volstream.tables.delta.native.NativeTable._create", other):
        TailWriter(location).append([batch(1, "a")])
    assert ids(everything(location)) == ["a", "b"]


def test_a_tail_is_created_once_however_many_writers_begin_at_once(tmp_path: Path) -> None:
    for number in range(10):
        (folder := tmp_path / str(number)).mkdir()
        location, found, start = tails.create(folder), list[str](), threading.Barrier(4)

        def create(location: str = location, found: list[str] = found, start: threading.Barrier = start) -> None:
            writer = TailWriter(location)
            start.wait()
            found.append(writer.newest([])[0])

        threads = [threading.Thread(target=create) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert len(set(found)) == 1
        assert len(found) == 4


def test_what_has_arrived_is_moved_in_parts_that_fit_into_memory(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tail = TailWriter(location)
    for number in range(1, 8):
        tail.append([batch(number, f"a{number}")])
    found = TailedTable.open(location)
    assert found is not None
    monkeypatch.setattr(writer, "_MOVE_BYTES", found.tail.view.bytes // 3)
    assert commit_tail(location, no_spark) == 7
    assert DeltaTable(location).version() in (3, 4)
    assert ids(committed(location)) == [f"a{number}" for number in range(1, 8)]


@pytest.mark.parametrize(
    "function",
    [
        "volstream.tables.tails.writer.MovePlanner._commit",
        "volstream.tables.delta.direct.commit",
        "volstream.tables.tails.writer._TailCommit.run",
        "volstream.tables.tails.writer.MovePlanner.trim",
    ],
)
def test_an_interrupted_move_is_completed_by_the_next_one(location: str, function: str) -> None:
    tail = TailWriter(location)
    tail.append([batch(1, "a")])
    with interrupted("return", function):
        commit_tail(location, no_spark)
    assert ids(everything(location)) == ["a"]
    tail.append([batch(2, "b")])
    assert ids(everything(location)) == ["a", "b"]
    commit_tail(location, no_spark)
    assert ids(committed(location)) == ids(everything(location)) == ["a", "b"]


OPERATIONS: st.SearchStrategy[tuple[str, list[str]]] = st.one_of(
    st.tuples(st.sampled_from([UPSERT, DELETE]), st.lists(st.sampled_from("abcde"), min_size=1, max_size=6)),
    st.tuples(st.just("move"), st.just([])),
    st.tuples(st.just("reopen"), st.just([])),
)


@settings(max_examples=settings().max_examples // 4)
@given(steps=st.lists(OPERATIONS, max_size=12))
def test_a_table_with_a_key_agrees_with_a_dict(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[str]]]
) -> None:
    location = tails.create(tmp_path_factory.mktemp("keyed"), ["id"])
    tail, model = TailWriter(location), dict[str, int]()
    for sequence, (what, keys) in enumerate(steps, 1):
        if what == "move":
            commit_tail(location, no_spark)
            assert {row["id"]: row["n"] for row in committed(location)} == model
        elif what == "reopen":
            tail = TailWriter(location)
        else:
            tail.append([batch(sequence, *keys, operation=what)])
            for key in keys:
                if what == UPSERT:
                    model[key] = sequence
                else:
                    model.pop(key, None)
        found = everything(location)
        assert {row["id"]: row["n"] for row in found} == model
        assert len(found) == len(model)


def test_rows_have_arrived_even_if_upkeep_after_them_fails(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error would make the caller send them again, in another flush."""
    tail, failures = TailWriter(location), list[str]()

    def checkpoint(where: str, table: DeltaTable) -> None:
        durable.sync(where, str(table.metadata().id), table.version())
        failures.append(where)
        raise DeltaError("Object at location 00000000000000000007.json not found")  # another process was faster

    monkeypatch.setattr(durable, "checkpoint", checkpoint)
    for number in range(1, 31):
        tail.append([batch(number, str(number))])
    assert failures
    assert len(everything(location)) == 30


def test_a_full_tail_refuses_rows_until_they_are_committed(location: str) -> None:
    tail = TailWriter(location)
    rows = pa.table({"__operation": [INSERT], "id": ["x"], "n": [1]}).take(pa.array([0] * 250_000))
    for number in range(1, writer.MAX_ROWS // 250_000 + 1):
        tail.append([Flush("s", number, rows)])
    with pytest.raises(TailFullError, match=r"2,000,000 rows have arrived .* not committed yet"):
        tail.append([batch(99, "b")])
    commit_tail(location, no_spark)
    tail.append([batch(99, "b")])
    assert commit_tail(location, no_spark) == 1


def test_a_column_that_is_added_reaches_the_tail(location: str) -> None:
    TailWriter(location).append([batch(1, "a")])
    wider = pa.table({"id": ["0"], "n": [0], "m": [True]})
    write_deltalake(location, wider, mode="append", schema_mode="merge")
    assert everything(location)[-1] == {"id": "a", "n": 1, "m": None}
    rows = pa.table({"__operation": [INSERT], "id": ["b"], "n": [2], "m": [False]})
    TailWriter(location).append([Flush("s", 2, rows)])
    commit_tail(location, no_spark)
    assert committed(location)[1:] == [{"id": "a", "n": 1, "m": None}, {"id": "b", "n": 2, "m": False}]


def test_a_column_whose_type_changed_waits_for_a_commit(location: str) -> None:
    TailWriter(location).append([batch(1, "a")])
    other = pa.table({"id": ["0"], "n": ["text"]})
    write_deltalake(location, other, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(InvalidStateError, match=r"columns .* changed, and rows that arrived before"):
        TailWriter(location)


def test_a_new_tail_follows_when_the_old_one_is_committed(location: str) -> None:
    TailWriter(location).append([batch(1, "a")])
    commit_tail(location, no_spark)
    write_deltalake(location, pa.table({"id": ["0"], "n": ["text"]}), mode="overwrite", schema_mode="overwrite")
    TailWriter(location).append([Flush("s", 2, pa.table({"__operation": [INSERT], "id": ["b"], "n": ["x"]}))])
    commit_tail(location, no_spark)
    assert committed(location) == [{"id": "0", "n": "text"}, {"id": "b", "n": "x"}]


def test_no_row_is_lost_that_arrives_while_the_columns_of_a_tail_are_replaced(location: str) -> None:
    old = TailWriter(location)
    old.append([batch(1, "a")])
    commit_tail(location, no_spark)
    overwrite(location, {"id": ["0"]})
    with (
        meanwhile("call", "volstream.tables.delta.native.NativeTable.replace", lambda: old.append([batch(2, "b")])),
        pytest.raises(InvalidStateError, match="rows that arrived before are not committed yet"),
    ):
        TailWriter(location)
    found = existing_tail(location)
    assert found is not None
    view = found[0].view()
    assert view is not None
    assert view.rows == 1


def test_streams_do_not_outlive_a_change_of_columns_or_the_table(tmp_path: Path) -> None:
    location = tails.create(tmp_path)

    def drop() -> None:
        shutil.rmtree(location)
        tails.create(tmp_path)

    def retype() -> None:
        overwrite(location, {"id": ["0"], "n": ["text"]})
        TailWriter(location).append([Flush("other", 1, pa.table({"__operation": [INSERT], "id": ["x"], "n": ["x"]}))])

    changes = [retype, lambda: overwrite(location, {"id": ["0"]}), lambda: TailWriter(location).end_streams(), drop]
    for at, change in enumerate(changes):
        old = TailWriter(location)
        old.append([batch(1, "a", stream=f"old{at}")])
        commit_tail(location, no_spark)
        change()
        new = TailWriter(location)
        for number in range(1, 8):  # a new tail, too, has as many versions as the old one had at some time
            refused(old)
            new.append([Flush(f"new{at}", number, pa.table({"__operation": [INSERT], "id": [f"{number}"]}))])
            commit_tail(location, no_spark)
        assert "".join(row["id"] for row in committed(location) if row["id"].isdigit()).lstrip("0") == "1234567"
        if change is not drop:
            overwrite(location, {"id": ["0"], "n": [0]})


def test_a_change_of_columns_that_was_interrupted_is_made_by_the_next_writer(location: str) -> None:
    TailWriter(location).append([batch(1, "a")])
    commit_tail(location, no_spark)
    overwrite(location, {"id": ["0"], "m": [True]})
    for event in ("call", "return"):
        with interrupted(event, "volstream.tables.delta.native.NativeTable.replace"):
            TailWriter(location)
    TailWriter(location).append([Flush("s", 2, pa.table({"__operation": [INSERT], "id": ["b"], "m": [False]}))])
    commit_tail(location, no_spark)
    assert committed(location)[-1] == {"id": "b", "m": False}


def test_columns_that_are_added_while_others_write_lose_no_row_and_no_value(location: str) -> None:
    old = TailWriter(location)
    old.append([batch(1, "a01")])
    add = pa.schema([("id", pa.string()), ("n", pa.int64()), ("m", pa.string())]).empty_table()
    write_deltalake(location, add, mode="append", schema_mode="merge")
    with meanwhile("call", "volstream.tables.delta.native.NativeTable.add_columns", lambda: old.append([batch(2, "a02")])):
        new = TailWriter(location)
    new.append([Flush("t", 1, pa.table({"__operation": [INSERT], "id": ["b"], "n": [1], "m": ["precious"]}))])
    for number in range(3, 70):  # so many that small files are merged
        old.append([batch(number, f"a{number:02}")])
    rows = everything(location)
    assert ids(rows) == [*(f"a{number:02}" for number in range(1, 70)), "b"]
    assert rows[-1]["m"] == "precious"
    commit_tail(location, no_spark)
    assert committed(location) == rows


def test_a_column_that_is_added_during_a_move_is_in_the_next_one(location: str) -> None:
    def add() -> None:
        columns = pa.schema([("id", pa.string()), ("n", pa.int64()), ("m", pa.string())])
        write_deltalake(location, columns.empty_table(), mode="append", schema_mode="merge")
        row = pa.table({"__operation": [INSERT], "id": ["b"], "n": [1], "m": ["precious"]})
        TailWriter(location).append([Flush("t", 1, row)])

    tail = TailWriter(location)
    tail.append([batch(1, "a1")])
    MovePlanner(location).plan()  # and the process dies
    tail.append([batch(2, "a2")])
    with meanwhile("return", "volstream.tables.tails.writer._TailCommit.run", add):
        commit_tail(location, no_spark)
    commit_tail(location, no_spark)
    assert [(row["id"], row["m"]) for row in committed(location)] == [("a1", None), ("a2", None), ("b", "precious")]


def test_a_dropped_table_takes_no_rows(location: str) -> None:
    tail = TailWriter(location)
    tail.append([batch(1, "a")])
    shutil.rmtree(location)
    with pytest.raises(NotFoundError, match="no table"):
        tail.append([batch(2, "b")])
    with pytest.raises(NotFoundError, match="no table"):
        MovePlanner(location).plan() or TailWriter(location)
    assert not Path(location).exists()


def overwrite(location: str, columns: dict[str, list[object]]) -> None:
    write_deltalake(location, pa.table(columns), mode="overwrite", schema_mode="overwrite")


def refused(writer: TailWriter) -> None:
    with pytest.raises(InvalidStateError, match=r"takes no more rows\. .* open a new stream"):
        writer.append([batch(2, "b")])


def test_a_stream_that_began_before_a_column_was_added_goes_on(location: str) -> None:
    write_deltalake(location, pa.table({"id": ["0"], "n": [0], "m": [1]}), mode="append", schema_mode="merge")
    TailWriter(location).append([batch(1, "a")])
    assert everything(location)[-1] == {"id": "a", "n": 1, "m": None}


@pytest.mark.parametrize(
    ("columns", "reason"), [({"x": [1]}, "has no column x"), ({"n": ["many"]}, "The rows do not fit the table")]
)
def test_rows_that_do_not_fit_are_refused_without_those_that_wait_with_them(
    location: str, columns: dict[str, list[object]], reason: str
) -> None:
    receiver = LocalTable(TailWriter(location), lambda: None)
    errors: list[Exception] = []

    def send(flush: Flush) -> None:
        try:
            receiver.append([flush])
        except InvalidStateError as error:
            errors.append(error)

    odd = Flush("odd", 1, pa.table({"__operation": [INSERT], "id": ["x"], **columns}))
    threads = [threading.Thread(target=send, args=(one,)) for one in (odd, batch(1, "a"))]
    with receiver._turn:
        for one in threads:
            one.start()
        eventually(lambda: len(receiver._waiting) == 2)
    for one in threads:
        one.join()
    assert len(errors) == 1
    assert reason in str(errors[0])
    assert ids(everything(location)) == ["a"]


def test_a_table_that_is_older_than_its_tail_is_an_error(location: str) -> None:
    tail = TailWriter(location)
    for number in range(1, 4):
        tail.append([batch(number, "a")])
        commit_tail(location, no_spark)
    for entry in sorted(Path(location, "_delta_log").glob("*.json"))[-2:]:
        entry.unlink()
    with pytest.raises(DependencyError, match="do not match"):
        TailedTable.open(location)
    with pytest.raises(DependencyError, match="do not match"):
        MovePlanner(location).plan()


def test_a_table_that_is_missing_or_has_our_columns_has_no_tail(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="There is no table"):
        TailWriter(str(tmp_path / "none"))
    write_deltalake(str(tmp_path / "t"), pa.table({"__Arrival": [1]}))
    with pytest.raises(InvalidStateError, match="a column __arrival, which real-time streams use"):
        TailWriter(str(tmp_path / "t"))
