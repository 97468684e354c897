"""Errors of PySpark and gRPC, translated into ours."""

from __future__ import annotations

import grpc
import pytest
from pyspark.errors.exceptions import connect as raised

from volstream.errors import DiskError, EngineError, EngineLostError, SqlError
from volstream.spark.errors import condition_of, is_conflict, map_spark_errors, sql_error


def transport(status: grpc.StatusCode) -> raised.SparkConnectGrpcException:
    return raised.SparkConnectGrpcException("failed", grpc_status_code=status)


@pytest.mark.parametrize(
    "error",
    [
        transport(grpc.StatusCode.UNAVAILABLE),
        transport(grpc.StatusCode.CANCELLED),
        raised.SparkConnectException(errorClass="NO_ACTIVE_SESSION", messageParameters={}),
        raised.SparkException("gone", errorClass="INVALID_HANDLE.SESSION_CHANGED", messageParameters={}),
        ValueError("Cannot invoke RPC on closed channel!"),
        ValueError("Cannot invoke RPC: Channel closed!"),
    ],
)
def test_a_broken_connection_is_a_lost_engine(error: Exception) -> None:
    with pytest.raises(EngineLostError) as caught, map_spark_errors():
        raise error
    assert caught.value.__cause__ is error
    assert caught.value.transient


def test_a_refused_token_is_not_a_lost_engine() -> None:
    with pytest.raises(EngineError, match="token") as caught, map_spark_errors():
        raise transport(grpc.StatusCode.UNAUTHENTICATED)
    assert not isinstance(caught.value, EngineLostError)


@pytest.mark.parametrize(
    "error",
    [
        raised.SparkException("Job aborted: java.io.IOException: No space left on device"),
        raised.SparkException("Job aborted", server_stacktrace="x\nCaused by: java.io.IOException: Disk quota exceeded"),
    ],
)
def test_a_full_disk_is_recognised_in_the_message_and_in_the_causes(error: Exception) -> None:
    with pytest.raises(DiskError), map_spark_errors():
        raise error


@pytest.mark.parametrize(
    "error", [raised.AnalysisException("no table"), ValueError("yours"), OSError("yours"), KeyError("yours")]
)
def test_other_errors_pass_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, map_spark_errors():
        raise error
    assert caught.value is error


def test_the_condition_is_given_by_spark_or_by_the_start_of_the_message() -> None:
    said = raised.UnknownException("x", errorClass="DELTA_CONCURRENT_APPEND.WITHOUT_HINT", messageParameters={})
    written = raised.UnknownException("[DELTA_METADATA_CHANGED] The metadata was changed.")
    assert condition_of(said) == "DELTA_CONCURRENT_APPEND.WITHOUT_HINT"
    assert condition_of(written) == "DELTA_METADATA_CHANGED"
    assert condition_of(ValueError("[NOT_SPARK] x")) is None


def test_the_condition_of_our_own_error_is_that_of_its_cause() -> None:
    ours = DiskError("full")
    ours.__cause__ = raised.UnknownException("[DELTA_CONCURRENT_WRITE] x")
    assert condition_of(ours) == "DELTA_CONCURRENT_WRITE"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("DELTA_CONCURRENT_APPEND.WITHOUT_HINT", True),
        ("DELTA_CONCURRENT_DELETE_READ", True),
        ("DELTA_METADATA_CHANGED", True),
        ("DELTA_CONCURRENT_TRANSACTION", False),
        ("TABLE_OR_VIEW_NOT_FOUND", False),
        (None, False),
    ],
)
def test_only_conflicts_that_a_retry_can_resolve_count_as_conflicts(condition: str | None, expected: bool) -> None:
    assert is_conflict(condition) is expected


def test_an_sql_error_is_shown_without_plan_and_stack() -> None:
    message = "[UNRESOLVED_COLUMN] No column `a`. SQLSTATE: 42703; line 1 pos 7;\n'Project ['a]\n+- OneRowRelation"
    error = sql_error(raised.AnalysisException(message, server_stacktrace="at x", display_server_stacktrace=True))
    assert isinstance(error, SqlError)
    assert error.message == "[UNRESOLVED_COLUMN] No column `a`. SQLSTATE: 42703; line 1 pos 7"


def test_a_spark_error_is_shown_without_the_java_stack() -> None:
    said = "Job aborted: Lost task 0.0: java.lang.IllegalStateException: no\n\tat a.b.c(D.java:1)\n\tat e.f\n\nDriver stacktrace:"
    assert sql_error(raised.SparkException(said)).message == "Job aborted: Lost task 0.0: java.lang.IllegalStateException: no"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "(io.delta.kernel.exceptions.KernelException) file:/w/tables/public/t: The provided timestamp 978307200000 ms "
            "(2001-01-01T00:00:00Z) is before the earliest available version 0.",
            "The provided timestamp 2001-01-01T00:00:00Z is before the earliest available version 0.",
        ),
        ("(java.io.IOException) Incomplete HDFS URI", "Incomplete HDFS URI"),
        ("(java.nio.file.NoSuchFileException) /tmp/a.tmp", "NoSuchFileException: /tmp/a.tmp"),
        ("java.net.UnknownHostException: data", "UnknownHostException: data"),
        ("a.b: c", "a.b: c"),
    ],
)
def test_an_error_without_a_condition_is_shown_without_javas_class(said: str, shown: str) -> None:
    assert sql_error(raised.SparkException(said)).message == shown


def test_a_long_message_is_shortened_to_one_line() -> None:
    assert SqlError("one\ntwo").brief == "one"
    assert len(SqlError("x" * 2000).brief) == 160


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "[DELTA_VERSION_NOT_FOUND] Cannot time travel Delta table to version 99. Available versions: [0, 1].",
            "The table has no version 99. Its history goes from 0 to 1.",
        ),
        (
            "[DELTA_TIMESTAMP_EARLIER_THAN_COMMIT_RETENTION] The provided timestamp (2020-01-01 00:00:00.0) is before the earliest "
            "version available to\nthis table (2026-11-24 15:02:14.804). Please use a timestamp after 2026-11-24 15:02:14.",
            "The history of the table begins after that time. Give a later time, or a version: see DESCRIBE HISTORY.",
        ),
        (
            "[DELTA_TIMESTAMP_GREATER_THAN_COMMIT] Timestamp 2026-11-24 15:40:20.938 is after the table's latest version "
            "(2026-11-24 15:23:23.233). Use a timestamp at or before 2026-11-24 15:23:23.",
            "The newest version of the table is older than that time. Give an earlier time, or leave it out.",
        ),
        (
            "[DELTA_CONCURRENT_APPEND.WITHOUT_HINT] ConcurrentAppendException: Files were added by a concurrent update.",
            "Other writers kept changing the table while the statement ran. Run it again, if need be when fewer writers are active.",
        ),
        (
            "[DELTA_REPLACE_WHERE_MISMATCH] Written data does not conform to partial table overwrite condition or constraint "
            "'p = 1'.\n[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated for column: n.\n",
            'A row has no value for the column n, which is NOT NULL. In a job, --expect "n IS NOT NULL" makes only the files of '
            "such rows fail.",
        ),
        ("[USER_RAISED_EXCEPTION] No such\nthing. SQLSTATE: P0001", "No such\nthing."),
        (
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'VOLSTREAM'. SQLSTATE: 42601 (line 2, pos 0)",
            "The Spark server does not have volstream's extension, which keeps queries from reading files. "
            "Add volstream.NoReflection to its spark.sql.extensions, or use volstream sql.",
        ),
    ],
    ids=["version", "early", "late", "race", "null", "raised", "unguarded"],
)
def test_some_messages_are_worded_as_elsewhere(said: str, shown: str) -> None:
    assert str(sql_error(raised.AnalysisException(said))) == shown


@pytest.mark.parametrize(
    ("file", "shown", "remedy"),
    [
        ("file:///w/tables/t/part-1.parquet", "The file /w/tables/t/part-1.parquet cannot be read", "verify JOB --fix"),
        ("s3a://b/w/t/part-1.parquet", "The file s3a://b/w/t/part-1.parquet cannot be read", "DYNAMIC TABLE"),
        (
            "file:/w/directories/e7dda503-b3ec-405c-8710-cca7741de1c9/files/part-1.parquet",
            "missing or damaged, in /w/directories/e7dda503-b3ec-405c-8710-cca7741de1c9.",
            "volstream refresh VOLUME",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_named(file: str, shown: str, remedy: str) -> None:
    said = f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {file}.  SQLSTATE: KD001"
    error = sql_error(raised.SparkException(said))
    assert shown in error.message
    assert remedy in error.remedy
