"""Reading the end of a log."""

from __future__ import annotations

from pathlib import Path

from volstream.spark import jvm_log


def test_only_the_last_lines_after_a_point_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("before\na\nb\nc\n")
    assert jvm_log.last_lines(path, count=2) == "b\nc"
    assert jvm_log.last_lines(path, since=len("before\n")) == "a\nb\nc"
    assert jvm_log.last_lines(tmp_path / "none") == ""


def test_the_log_of_the_jvm_before_is_kept_beside(tmp_path: Path) -> None:
    jvm_log.begin(tmp_path).write_text("first")
    assert not jvm_log.begin(tmp_path).exists()
    assert (tmp_path / "jvm.log.1").read_text() == "first"


def test_the_log_of_a_jvm_that_runs_is_emptied_and_goes_on(tmp_path: Path) -> None:
    with jvm_log.begin(tmp_path).open("ab", buffering=0) as log:
        log.write(b"x" * 90)
        jvm_log.roll(tmp_path, most=100)
        log.write(b"y" * 20)
        jvm_log.roll(tmp_path, most=100)
        log.write(b"end")
    assert jvm_log.jvm_log(tmp_path).read_bytes() == b"end"
    assert (tmp_path / "jvm.log.1").read_bytes() == b"x" * 90 + b"y" * 20
