"""Why a JVM ended, by its status and its logs."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from volstream.base import processes
from volstream.spark.jvm import log_file
from volstream.spark.jvm.address import EngineAddress, RemoteAddress
from volstream.spark.jvm.log_file import cause_of, note, noted_cause

_OVERFLOW = "2026-01-01T00:00:00.000 ERROR SparkUncaughtExceptionHandler: Uncaught exception\njava.lang.StackOverflowError\n"


@pytest.mark.parametrize(
    ("status", "jvm", "spark", "cause"),
    [
        (-9, "", "", "it was killed by signal 9 (SIGKILL)"),
        (143, "", "", "it was killed by signal 15 (SIGTERM)"),
        (
            3,
            "Terminating due to java.lang.OutOfMemoryError: Java heap space\n",
            "",
            "its heap was exhausted (setting driver_memory)",
        ),
        (52, "", "", "its heap was exhausted (setting driver_memory)"),
        (50, "", _OVERFLOW + "\tat x\n" * 300, "its stack overflowed (StackOverflowError)"),
        (50, "", "something else\n", "it was ended by an uncaught error"),
        (-6, "", "", "its JVM crashed"),
        (1, "Error: no such option\n", "", "its JVM ended with status 1"),
    ],
)
def test_the_status_and_the_logs_reveal_the_cause(tmp_path: Path, status: int, jvm: str, spark: str, cause: str) -> None:
    log_file.jvm_log(tmp_path).write_text(jvm)
    log_file.spark_log(tmp_path).write_text(spark)
    assert cause_of(status, tmp_path) == cause


def test_a_client_finds_the_cause_recorded_by_the_owner_even_if_the_next_jvm_runs(tmp_path: Path) -> None:
    me = os.getpid()
    address = EngineAddress(1, "t", "daemon", me, processes.name_of_start(me), 2**22 - 1, "", logs=str(tmp_path))
    log_file.jvm_log(tmp_path).write_text("last words\n")
    note(tmp_path, address.jvm_pid, "it was killed by signal 9 (SIGKILL)")
    assert noted_cause(address) == "it was killed by signal 9 (SIGKILL)"
    log_file.begin(tmp_path).write_text("the next one's words\n")
    assert noted_cause(address) == "it was killed by signal 9 (SIGKILL)"


def test_no_cause_is_given_for_a_running_orphaned_or_remote_jvm(tmp_path: Path) -> None:
    me = os.getpid()
    lives = EngineAddress(1, "t", "daemon", me, processes.name_of_start(me), me, processes.name_of_start(me), logs=str(tmp_path))
    gone = dataclasses.replace(lives, jvm_pid=2**22 - 1, engine_pid=2**22 - 1)
    assert [noted_cause(one) for one in (lives, gone, RemoteAddress("sc://x:1"))] == [None, None, None]
