"""Reading the end of a log."""

from __future__ import annotations

from pathlib import Path

from volstream.spark.jvm import log_file


def test_only_the_last_lines_after_a_point_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("before\na\nb\nc\n")
    assert log_file.last_lines(path, count=2) == "b\nc"
    assert log_file.last_lines(path, since=len("before\n")) == "a\nb\nc"
    assert log_file.last_lines(tmp_path / "none") == ""


def test_the_log_of_the_previous_jvm_is_kept(tmp_path: Path) -> None:
    log_file.begin(tmp_path).write_text("first")
    assert not log_file.begin(tmp_path).exists()
    assert (tmp_path / "jvm.log.1").read_text() == "first"


def test_the_log_of_engines_that_do_not_start_is_bounded(tmp_path: Path) -> None:
    log = log_file.engine_log(tmp_path)
    for number in range(10):
        with log.open("ab") as output:
            output.write(str(number).encode() * 60)
        log_file.roll(tmp_path, maximum=100)
    assert log.read_bytes() == b""
    assert (tmp_path / "engine.log.1").read_bytes() == b"8" * 60 + b"9" * 60


def test_the_log_of_a_running_jvm_is_truncated_and_continues(tmp_path: Path) -> None:
    with log_file.begin(tmp_path).open("ab", buffering=0) as log:
        log.write(b"x" * 90)
        log_file.roll(tmp_path, maximum=100)
        log.write(b"y" * 20)
        log_file.roll(tmp_path, maximum=100)
        log.write(b"end")
    assert log_file.jvm_log(tmp_path).read_bytes() == b"end"
    assert (tmp_path / "jvm.log.1").read_bytes() == b"x" * 90 + b"y" * 20


def test_the_cause_is_shown_and_not_the_frames_below_it(tmp_path: Path) -> None:
    path = tmp_path / "jvm.log"
    frames = "".join(f"\tat org.example.C.m{number}(C.java:{number})\n" for number in range(30))
    path.write_text(f"java.net.BindException: taken\n{frames}Caused by: why\n{frames}\t... 12 more\n")
    assert log_file.last_lines(path) == "java.net.BindException: taken\nCaused by: why"
