"""The Delta jars, with scripts in place of Java and without a network."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from volstream.errors import JavaError
from volstream.spark.jvm import install
from volstream.spark.jvm.install import Java


def script(tmp_path: Path, body: str) -> Java:
    executable = tmp_path / "java"
    executable.write_text(f"#!/bin/sh\n{body}\n")
    executable.chmod(0o755)
    return Java(executable, 17, "")


def test_missing_jars_are_named_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    with pytest.raises(JavaError, match=r"delta-storage-4\.4\.0\.jar") as caught:
        install.cached_jars(tmp_path)
    assert "volstream setup" in caught.value.remedy


def test_a_failed_download_shows_what_ivy_said(tmp_path: Path) -> None:
    java = script(tmp_path, "echo 'UNRESOLVED DEPENDENCIES: no route to host'; exit 1")
    with pytest.raises(JavaError, match="no route to host"):
        install.fetch_jars(tmp_path / "cache", java)


def test_a_jar_with_the_wrong_checksum_is_not_kept(tmp_path: Path) -> None:
    names = " ".join(jar.name for jar in install.DELTA)
    java = script(tmp_path, f"mkdir jars && cd jars && for name in {names}; do echo '<html>' > $name; done")
    with pytest.raises(JavaError, match="is not the jar"):
        install.fetch_jars(tmp_path / "cache", java)
    assert list((tmp_path / "cache" / "jars").iterdir()) == []


def test_a_jar_changed_since_setup_is_not_run(tmp_path: Path) -> None:
    jar = install.Jar("org", "thing", "1", hashlib.sha256(b"tested").hexdigest())
    path = tmp_path / "jars" / jar.name
    path.parent.mkdir()
    path.write_bytes(b"tested")
    assert install.cached_jars(tmp_path, [jar]) == [path]
    path.write_bytes(b"tampered")
    with pytest.raises(JavaError, match=r"differ from those that volstream was built with: thing-1\.jar"):
        install.cached_jars(tmp_path, [jar])


def test_a_cache_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JavaError, match=r"cannot be created: .* Set VOLSTREAM_CACHE"):
        install.create_cache(tmp_path / "file" / "cache")
