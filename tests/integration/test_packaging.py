"""The wheel and the source distribution have all that volstream needs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def package(root: Path) -> set[str]:
    """The files of the package below a folder, without compiled ones."""
    found = (path.relative_to(root).as_posix() for path in (root / "volstream").rglob("*") if path.is_file())
    return {name for name in found if "__pycache__" not in name and not name.endswith(".pyc")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both distributions, built from a copy: setuptools writes beside the sources."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "volstream", copy / "volstream", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    code = "from setuptools import build_meta as b; b.build_wheel('dist'); b.build_sdist('dist')"
    made = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=copy, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return copy / "dist"


def test_the_wheel_has_every_file_of_the_package(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        found = {name for name in opened.namelist() if name.startswith("volstream/")}
    assert found == package(ROOT)
    assert {"volstream/py.typed", "volstream/sql/grammar.lark", "volstream/catalog/migrations/script.py.mako"} <= found


def test_the_source_distribution_has_what_the_wheel_is_built_from(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {*package(ROOT), "pyproject.toml", "README.md", "LICENSE"} <= names


def test_the_version_is_that_of_the_changelog() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_image_copies_only_what_exists() -> None:
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    copied = [
        word for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert set(copied) == {"pyproject.toml", "README.md", "LICENSE", "volstream", "deploy/docker/executor.py"}
    assert all((ROOT / name).exists() for name in copied)
