"""Which class archive fits."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest

from volstream.spark.jvm import install
from volstream.spark.jvm.install import Java

JAVA = Java(Path("/usr/bin/java"), 17, "17.0.15")


def test_an_archive_belongs_to_one_java_one_set_of_options_unchanged_jars_and_one_volstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"1")
    first = install.archive_path(tmp_path, JAVA, "", [jar])
    assert install.archive_path(tmp_path, JAVA, "", [jar]) == first
    others = {
        install.archive_path(tmp_path, Java(JAVA.executable, 17, "17.0.16"), "", [jar]),
        install.archive_path(tmp_path, JAVA, "-XX:+UseG1GC", [jar]),
    }
    jar.write_bytes(b"12")
    others.add(install.archive_path(tmp_path, JAVA, "", [jar]))
    assert len(others | {first}) == 4
    monkeypatch.setattr(metadata, "version", lambda _: "0.0.0")
    others.add(install.archive_path(tmp_path, JAVA, "", [jar]))
    assert len(others | {first}) == 5


def test_a_missing_archive_is_not_requested(tmp_path: Path) -> None:
    assert install.options_to_use(tmp_path / "cds-1.jsa") == []
    (tmp_path / "cds-1.jsa").touch()
    assert f"-XX:SharedArchiveFile={tmp_path / 'cds-1.jsa'}" in install.options_to_use(tmp_path / "cds-1.jsa")


def test_only_long_unused_archives_are_removed(tmp_path: Path) -> None:
    ours, recent, old = (tmp_path / f"cds-{name}.jsa" for name in ("ours", "recent", "old"))
    for path in (ours, recent, old):
        path.touch()
    os.utime(ours, (0, 0))
    os.utime(old, (0, 0))
    install.remove_unused_archives(tmp_path, keep=ours)
    assert sorted(tmp_path.iterdir()) == [ours, recent]
