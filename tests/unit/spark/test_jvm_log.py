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
