"""Real-time streams into real tails: who flushes when, what is refused, and what happens to rows that cannot be sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tests import tails
from tests.interrupts import interrupted
from tests.waiting import eventually
from volstream.errors import DiskError, InvalidStateError, InvalidValueError, NotFoundError, StorageError, TailFullError
from volstream.ingest import (
    BufferFullError,
    FlushMode,
    RealtimeOperation,
    RealtimeOptions,
    RealtimeStream,
    RetryStatus,
    RowOperator,
    RowsNotSentError,
)
from volstream.ingest.local import LocalTable
from volstream.tables.tails.writer import Flush, TailWriter

SYNC, MANUAL = FlushMode.AUTO_FLUSH_SYNC, FlushMode.MANUAL_FLUSH


class Recorded(LocalTable):
    """A real tail that records what arrives, and fails as it is told to."""

    def __init__(self, location: str) -> None:
        super().__init__(TailWriter(location), lambda: None)
        self.arrived: list[list[int]] = []  #: rows of each batch, by request
        self.failures: list[Exception] = []  #: raised by the next requests
        self.lost = False  #: failures come after the rows have arrived
        self.gate = threading.Event()
        self.gate.set()

    def append(self, batches: Sequence[Flush]) -> None:
        self.gate.wait()
        if self.failures and self.lost:
            super().append(batches)
        if self.failures:
            raise self.failures.pop(0)
        super().append(batches)
        self.arrived.append([batch.rows.num_rows for batch in batches])


@pytest.fixture
def table(tmp_path: Path) -> Recorded:
    return Recorded(tails.create(tmp_path))


@pytest.fixture
def keyed(tmp_path: Path) -> Recorded:
    return Recorded(tails.create(tmp_path, ["id"]))


def append(table: Recorded, **options: object) -> RealtimeStream:
    given = {"request_failed_retry_internal_ms": 1, **options}
    return RealtimeStream(table, "t", RealtimeOperation.APPEND_ONLY, RealtimeOptions(**given))  # type: ignore[arg-type]


def change(table: Recorded, mode: FlushMode = SYNC) -> RealtimeStream:
    return RealtimeStream(table, "t", RealtimeOperation.CDC, RealtimeOptions(flush_mode=mode))


def test_a_row_is_refused_while_the_stream_is_closed(table: Recorded) -> None:
    stream = append(table, flush_mode=SYNC)
    apply(stream, "a")
    table.gate.clear()
    closing = threading.Thread(target=stream.close)
    closing.start()
    eventually(lambda: stream._closing)
    with pytest.raises(InvalidStateError, match="is closed"):
        apply(stream, "b")
    table.gate.set()
    closing.join()
    assert ids(table) == ["a"]
    assert stream.statistics.applied == stream.statistics.sent == 1


def test_with_manual_flushes_all_rows_of_arrow_are_taken_or_none(table: Recorded) -> None:
    stream = append(table, flush_mode=MANUAL, mutation_buffer_max_num=3, mutation_buffer_lines_num=2)
    rows = pa.table({"id": ["b", "c", "d", "e", "f", "g"], "n": [1] * 6})
    apply(stream, "a")
    with pytest.raises(BufferFullError, match="are full"):
        stream.apply_arrow(rows)
    with pytest.raises(BufferFullError, match="need 4 buffers"):
        stream.apply_arrow(pa.concat_tables([rows, rows.slice(0, 1)]))
    stream.flush()
    stream.apply_arrow(rows)
    stream.close()
    assert sorted(ids(table)) == ["a", "b", "c", "d", "e", "f", "g"]


def test_rows_of_arrow_follow_others_at_once_where_each_buffer_is_sent(table: Recorded) -> None:
    stream = append(table, flush_mode=SYNC, mutation_buffer_max_num=1, flush_interval=3_600_000)
    apply(stream, "a")
    stream.apply_arrow(pa.table({"id": ["b"], "n": [1]}))
    assert ids(table) == ["a", "b"]
    stream.close()


def test_a_column_twice_is_refused_in_any_spelling(table: Recorded) -> None:
    stream = append(table, flush_mode=MANUAL)
    for names in (["id", "ID"], ["id", "id"]):
        with pytest.raises(InvalidValueError, match="more than once"):
            stream.apply_arrow(pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=names))
    stream.close()


def apply(stream: RealtimeStream, *ids: str, operator: RowOperator | None = None, n: int | None = 1) -> None:
    for one in ids:
        row = stream.create_row(operator)
        row.set_values({"id": one, "n": n})
        stream.apply(row)


def ids(table: Recorded) -> list[str]:
    return [row["id"] for row in tails.everything(table._writer.target)]


def test_a_buffer_is_sent_when_it_has_its_rows(table: Recorded) -> None:
    with append(table, flush_mode=SYNC, mutation_buffer_lines_num=3) as stream:
        apply(stream, *"abcdefg")
        assert table.arrived == [[3], [3]]
        assert ids(table) == [*"abcdef"]
    assert ids(table) == [*"abcdefg"]
    assert (stream.statistics.applied, stream.statistics.sent, stream.statistics.flushes) == (7, 7, 3)


def test_a_buffer_is_sent_when_its_values_take_their_space(table: Recorded) -> None:
    with append(table, flush_mode=SYNC, mutation_buffer_space=100) as stream:
        apply(stream, "x" * 91)
        assert table.arrived == []
        apply(stream, "y")
        assert table.arrived == [[2]]


@pytest.mark.parametrize("mode", [SYNC, FlushMode.AUTO_FLUSH_BACKGROUND])
def test_a_row_is_sent_when_it_is_old_enough(table: Recorded, mode: FlushMode) -> None:
    with append(table, flush_mode=mode, flush_interval=50) as stream:
        apply(stream, "a")
        eventually(lambda: table.arrived == [[1]])
        apply(stream, "b")
        eventually(lambda: table.arrived == [[1], [1]])


def test_in_the_background_apply_waits_only_while_all_buffers_wait(table: Recorded) -> None:
    table.gate.clear()
    with append(table, mutation_buffer_lines_num=1, mutation_buffer_max_num=2) as stream:
        apply(stream, *"ab")  # one of them is being sent, or both
        done = threading.Event()

        def wait() -> None:
            apply(stream, "c")
            done.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not done.wait(0.2)
        table.gate.set()
        waiting.join()
    assert ids(table) == [*"abc"]


def test_buffers_that_wait_are_sent_together_and_in_order(table: Recorded) -> None:
    table.gate.clear()
    with append(table, mutation_buffer_lines_num=1) as stream:
        apply(stream, *(f"{number:02}" for number in range(40)))
        table.gate.set()
    assert ids(table) == [f"{number:02}" for number in range(40)]
    assert len(table.arrived) <= 2


def test_no_more_than_32_mib_are_sent_together(table: Recorded) -> None:
    table.gate.clear()
    with append(table, mutation_buffer_lines_num=1) as stream:
        apply(stream, *(f"{number}" * (9 << 20) for number in range(7)))
        table.gate.set()
    assert max(map(len, table.arrived)) == 3


def test_manual_flushes_are_the_only_ones_and_full_buffers_are_an_error(table: Recorded) -> None:
    stream = append(table, flush_mode=MANUAL, flush_interval=1, mutation_buffer_lines_num=2, mutation_buffer_max_num=2)
    apply(stream, *"abcd")
    time.sleep(0.05)
    assert table.arrived == []
    with pytest.raises(BufferFullError, match=r"All 2 buffers .* full\. Call flush"):
        apply(stream, "e")
    stream.flush()
    apply(stream, "e")
    assert ids(table) == [*"abcd"]
    stream.close()
    assert ids(table) == [*"abcde"]


def test_a_flush_returns_when_everything_before_it_has_arrived(table: Recorded) -> None:
    with append(table) as stream:
        apply(stream, *"abc")
        stream.flush()
        assert ids(table) == [*"abc"]
        stream.flush()
        assert len(table.arrived) == 1


def test_a_closed_stream_takes_no_rows_and_can_be_closed_again(table: Recorded) -> None:
    stream = append(table)
    stream.close()
    stream.close()
    with pytest.raises(InvalidStateError, match="The stream on t is closed"):
        apply(stream, "a")
    with pytest.raises(InvalidStateError, match="closed"):
        stream.flush()


def test_the_newest_row_of_a_key_wins_and_deletes_of_missing_keys_are_ignored(keyed: Recorded) -> None:
    with change(keyed) as stream:
        apply(stream, *"abc")
        apply(stream, "a", n=2)
        apply(stream, "b", "z", operator=RowOperator.DELETE_IGNORE)
    assert tails.everything(keyed._writer.target) == [{"id": "a", "n": 2}, {"id": "c", "n": 1}]


def test_a_table_with_a_key_is_flushed_by_the_caller_with_a_warning(keyed: Recorded) -> None:
    with pytest.warns(UserWarning, match="AUTO_FLUSH_SYNC is used instead"):
        stream = change(keyed, FlushMode.AUTO_FLUSH_BACKGROUND)
    assert stream.options.flush_mode is SYNC
    stream.close()


def test_the_operation_must_be_the_tables(table: Recorded, tmp_path: Path) -> None:
    with pytest.raises(InvalidStateError, match=r"has no primary key.*APPEND_ONLY"):
        change(table)
    (tmp_path / "other").mkdir()
    with pytest.raises(InvalidStateError, match=r"has a primary key.*CDC"):
        append(Recorded(tails.create(tmp_path / "other", ["id"])))


@pytest.mark.parametrize("operator", [RowOperator.UPSERT, RowOperator.DELETE_IGNORE])
def test_rows_of_another_operation_are_refused(table: Recorded, operator: RowOperator) -> None:
    with append(table) as stream, pytest.raises(InvalidValueError, match=r"Use RowOperator\.INSERT"):
        stream.create_row(operator)


def test_what_is_wrong_with_a_row_is_an_error_at_once(table: Recorded) -> None:
    with append(table) as stream:
        row = stream.create_row()
        with pytest.raises(InvalidValueError, match=r"t has no column m\. Its columns: id, n"):
            row.set_value("m", 1)
        with pytest.raises(InvalidValueError, match="Column id cannot be None: it is NOT NULL"):
            row.set_value("id", None)
        with pytest.raises(InvalidValueError, match="Column n cannot be 'x'"):
            row.set_value("n", "x")
        with pytest.raises(InvalidValueError, match="no value for id, which is NOT NULL"):
            stream.apply(row)
        with pytest.raises(InvalidValueError, match="name the column n more than once"):
            row.set_values({"id": "a", "n": 1, "N": 2})
        row.set_value("ID", "a")
        stream.apply(row)
    assert tails.everything(table._writer.target) == [{"id": "a", "n": None}]


def test_a_row_is_for_any_stream_on_the_same_columns(table: Recorded, tmp_path: Path) -> None:
    (folder := tmp_path / "other").mkdir()
    wider = Recorded(tails.create(folder, columns=tails.COLUMNS.append(pa.field("m", pa.int64()))))
    with append(table) as one, append(table) as same, append(wider) as other:
        row = one.create_row()
        row.set_value("id", "a")
        same.apply(row)
        with pytest.raises(InvalidStateError, match="other columns"):
            other.apply(row)
    assert ids(table) == ["a"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TailFullError("full"), RetryStatus.THROTTLED),
        (StorageError("away"), RetryStatus.FAILED),
        (DiskError("full"), RetryStatus.FAILED),
        (NotFoundError("gone"), RetryStatus.PRECHECK_FAILED),
        (RuntimeError("bug"), RetryStatus.INTERNAL_ERROR),
    ],
)
def test_a_failure_is_retried_if_its_status_is_listed(table: Recorded, error: Exception, status: RetryStatus) -> None:
    table.failures = [error]
    with append(table, request_failed_retry_status=frozenset({status})) as stream:
        apply(stream, "a")
    assert (ids(table), stream.statistics.retries) == (["a"], 1)
    table.failures = [error]
    stream = append(table, request_failed_retry_status=frozenset(RetryStatus) - {status})
    apply(stream, "b")
    with pytest.raises(RowsNotSentError):
        stream.close()
    assert (ids(table), stream.statistics.retries) == (["a"], 0)


@pytest.mark.parametrize(
    "options", [{"request_failed_retry_times": 2}, {"request_failed_retry_enable": False}], ids=["times", "enable"]
)
def test_after_the_last_retry_the_rows_are_in_the_error(table: Recorded, options: dict[str, object]) -> None:
    retries = 2 if "request_failed_retry_times" in options else 0
    table.failures = [StorageError("The store is away.")] * (retries + 1)
    stream = append(table, flush_mode=MANUAL, mutation_buffer_lines_num=2, **options)
    apply(stream, *"abc")
    with pytest.raises(RowsNotSentError, match=r"3 rows for t could not be sent: The store is away\.") as failed:
        stream.flush()
    assert stream.statistics.retries == retries
    with pytest.raises(RowsNotSentError):
        apply(stream, "d")
    with pytest.raises(RowsNotSentError):
        stream.flush()
    stream.close()  # which has nothing new to tell
    with append(table) as other:
        other.apply(*failed.value.rows)
    assert ids(table) == [*"abc"]


@pytest.mark.parametrize("mode", FlushMode)
def test_rows_with_a_time_that_python_lacks_fail_like_others(tmp_path: Path, mode: FlushMode) -> None:
    columns = pa.schema([pa.field("id", pa.string(), nullable=False), ("at", pa.timestamp("us", "UTC"))])
    (folder := tmp_path / "times").mkdir()
    table = Recorded(tails.create(folder, columns=columns))
    table.failures = [StorageError("away")]
    stream = append(table, flush_mode=mode, request_failed_retry_enable=False)
    far = pa.table({"id": ["a"], "at": pa.array([1 << 60], columns.field("at").type)})

    def send() -> None:
        stream.apply_arrow(far)
        stream.flush()

    with pytest.raises(RowsNotSentError, match="1 row for t could not be sent") as failed:
        send()
    assert failed.value.rows == []
    stream.close()


def test_in_the_background_the_next_use_raises_what_could_not_be_sent(table: Recorded) -> None:
    table.failures = [StorageError("away")]
    stream = append(table, mutation_buffer_lines_num=1, request_failed_retry_enable=False)
    apply(stream, "a")
    eventually(lambda: not table.failures)
    with pytest.raises(RowsNotSentError) as failed:
        stream.close()
    assert [row.as_dict() for row in failed.value.rows] == [{"id": "a", "n": 1}]


def test_retries_pause_as_long_as_they_are_told_to(table: Recorded) -> None:
    table.failures = [StorageError("away")] * 2
    began = time.monotonic()
    with append(table, request_failed_retry_internal_ms=60) as stream:
        apply(stream, "a")
    assert time.monotonic() - began >= 0.12


@pytest.mark.parametrize("logged", [True, False])
def test_retries_are_logged_if_asked_for(table: Recorded, logged: bool, capsys: pytest.CaptureFixture[str]) -> None:
    table.failures = [StorageError("away")]
    with append(table, request_failed_retry_log_debug_enable=logged) as stream:
        apply(stream, "a")
    lines = [line for line in capsys.readouterr().err.splitlines() if "retrying" in line]
    assert ["status=FAILED" in line for line in lines] == ([True] if logged else [])


def test_a_lost_acknowledgement_doubles_nothing(table: Recorded) -> None:
    table.failures, table.lost = [StorageError("The answer was lost.")] * 3, True
    with append(table, mutation_buffer_lines_num=1) as stream:
        apply(stream, *"abc")
    assert ids(table) == [*"abc"]


def test_text_that_is_cut_is_counted(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.string(), metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(2)"})])
    columns = Recorded(tails.create(tmp_path, columns=pa.schema([*schema, ("n", pa.int64())])))
    columns.columns = pa.schema([schema.field(0).with_metadata({"characters": "varchar(2)"}), ("n", pa.int64())], {})
    with append(columns) as stream:
        apply(stream, "abc", "d")
    assert (ids(columns), stream.statistics.truncated) == (["ab", "d"], 1)
    with append(columns, truncate=False) as stream, pytest.raises(InvalidValueError, match="3 characters"):
        apply(stream, "abc")
    with append(columns) as stream:
        stream.apply_arrow(pa.table({"id": ["efg", "h"]}))
    assert (ids(columns)[2:], stream.statistics.truncated) == (["ef", "h"], 1)
    with append(columns, truncate=False) as stream, pytest.raises(InvalidValueError, match="1 values have more than 2"):
        stream.apply_arrow(pa.table({"id": ["efg", "h"]}))


def test_arrow_rows_are_taken_as_they_are(table: Recorded) -> None:
    with append(table, mutation_buffer_lines_num=2) as stream:
        apply(stream, "0")
        stream.apply_arrow(pa.table({"N": pa.array([1, None, 3], pa.int8()), "ID": ["a", "b", "c"]}))
        with pytest.raises(InvalidValueError, match="has no column m"):
            stream.apply_arrow(pa.table({"id": ["x"], "m": [1]}))
        with pytest.raises(InvalidValueError, match="without a value for id"):
            stream.apply_arrow(pa.table({"id": ["x", None]}))
        with pytest.raises(InvalidValueError, match="Column n"):
            stream.apply_arrow(pa.table({"id": ["x"], "n": ["y"]}))
    assert tails.everything(table._writer.target) == [
        {"id": "0", "n": 1},
        {"id": "a", "n": 1},
        {"id": "b", "n": None},
        {"id": "c", "n": 3},
    ]


def test_several_threads_share_a_stream(table: Recorded) -> None:
    with append(table, mutation_buffer_lines_num=7, mutation_buffer_max_num=2) as stream:
        rows = {first: [f"{first}{number:03}" for number in range(100)] for first in "abcd"}
        threads = [threading.Thread(target=apply, args=(stream, *mine)) for mine in rows.values()]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert ids(table) == [one for mine in rows.values() for one in mine]


def test_an_interrupted_close_ends_the_retries_in_the_background(table: Recorded) -> None:
    table.failures = [StorageError("The store is away.")] * 9
    stream = append(
        table, flush_mode=FlushMode.AUTO_FLUSH_BACKGROUND, mutation_buffer_lines_num=1, request_failed_retry_internal_ms=600_000
    )
    apply(stream, "a")
    eventually(lambda: stream.statistics.retries == 1)
    with interrupted("call", "volstream.ingest.stream.RealtimeStream._drain"):
        stream.close()
    assert stream.statistics.retries == 1


@pytest.mark.parametrize("text", ["", "__HIVE_DEFAULT_PARTITION__", "a\0b", "x" * 300])
@pytest.mark.parametrize("operation", [RealtimeOperation.APPEND_ONLY, RealtimeOperation.CDC])
def test_a_text_that_cannot_be_a_partition_value_is_refused_before_it_blocks_all_commits(
    tmp_path: Path, text: str, operation: RealtimeOperation
) -> None:
    location = tails.create_partitioned(tmp_path, ("day",) if operation is RealtimeOperation.CDC else ())
    receiver = Recorded(location)
    with RealtimeStream(receiver, "t", operation, RealtimeOptions(flush_mode=MANUAL)) as stream:
        with pytest.raises(InvalidValueError, match=r"Column day cannot be .*partition"):
            stream.create_row().set_value("DAY", text)
        with pytest.raises(InvalidValueError, match=r"Column day cannot be .*partition"):
            stream.apply({"day": text, "id": 1})
        with pytest.raises(InvalidValueError, match=r"Column day: .*partition"):
            stream.apply_arrow(pa.table({"id": [1, 1], "day": ["a", text]}))
        stream.apply({"day": "b", "id": 1})
    assert receiver.arrived == [[1]]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.decimal128(38, 0), pa.array([str(2**128 + 5)])),
        (pa.list_(pa.decimal128(38, 38)), pa.array([["32770"]])),
        (pa.int64(), pa.array(["0x10"])),
        (pa.int64(), pa.array([5], pa.time32("s"))),
        (pa.int64(), pa.array([True])),
        (pa.float64(), pa.array(["1e400"])),
        (pa.timestamp("us", "UTC"), pa.array([5])),
        (pa.timestamp("us", "UTC"), pa.array([5], pa.timestamp("us"))),
        (pa.list_(pa.timestamp("us", "UTC")), pa.array([[5]], pa.list_(pa.timestamp("us")))),
    ],
    ids=str,
)
def test_values_of_arrow_that_a_column_cannot_hold_are_refused(tmp_path: Path, kind: pa.DataType, values: pa.Array) -> None:
    receiver = Recorded(tails.create(tmp_path, (), pa.schema([("v", kind)])))
    with RealtimeStream(receiver, "t", RealtimeOperation.APPEND_ONLY, RealtimeOptions(flush_mode=MANUAL)) as stream:
        with pytest.raises(InvalidValueError, match="Column v"):
            stream.apply_arrow(pa.table({"v": values}))
        stream.apply_arrow(pa.table({"v": pa.nulls(1)}))
    assert len(receiver.arrived) == 1


def test_rows_that_an_older_client_sends_are_checked_too_and_empty_texts_of_a_nullable_column_are_null(tmp_path: Path) -> None:
    location = tails.create_partitioned(tmp_path, nullable=True)
    rows = {"__operation": ["insert"] * 2, "id": pa.array([1, 2], pa.int64())}
    receiver = Recorded(location)
    with pytest.raises(InvalidValueError, match=r"Column day: .*NUL"):
        receiver.append([Flush("s", 1, pa.table({**rows, "day": ["", "a\0b"]}))])
    receiver.append([Flush("s", 1, pa.table({**rows, "day": ["", "a"]}))])
    assert [row["day"] for row in tails.everything(location)] == [None, "a"]
    with RealtimeStream(receiver, "t", RealtimeOperation.APPEND_ONLY, RealtimeOptions(flush_mode=MANUAL)) as stream:
        stream.apply({"id": 3, "day": ""})
        stream.apply_arrow(pa.table({"id": [4, 5], "day": ["__HIVE_DEFAULT_PARTITION__", None]}))
        assert [row["day"] for row in tails.everything(location)] == [None, "a"]
        stream.flush()
        assert [row["day"] for row in tails.everything(location)] == [None, "a", None, None, None]
