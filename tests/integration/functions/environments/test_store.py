"""Environments are made once per content, whole or not at all."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.environments import environment, stand_in, wheel
from tests.waiting import eventually
from volstream.errors import DependencyError, InvalidValueError, NotFoundError
from volstream.functions.environments import LOCK, EnvironmentStore, _Installer, requirements_key

SAY = "import clasher; print(clasher.VERSION)"

#: Makes an environment in a process of its own.
MAKE = """
import sys
from pathlib import Path
from volstream.functions.environments import EnvironmentStore
EnvironmentStore(Path(sys.argv[1])).at(sys.argv[2])
"""


@pytest.fixture
def made(tmp_path: Path) -> EnvironmentStore:
    return EnvironmentStore(tmp_path / "environments")


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts a stand-in for uv in place; the file where it notes its commands."""
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv("PATH", f"{stand_in(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("UV_NOTES", str(path))
    return path


@pytest.fixture(params=["pip", "uv"])
def installer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pip":
        monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    elif not (shutil.which("uv") or Path(sys.executable).with_name("uv").exists()):
        pytest.skip("there is no uv")
    return str(request.param)


def requirements(folder: Path, text: str) -> str:
    (folder / "requirements.txt").write_text(text)
    return str(folder / "requirements.txt")


def said(python: str, code: str) -> str:
    return subprocess.run([python, "-I", "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_packages_are_installed_from_a_lock_file_with_hashes(made: EnvironmentStore, tmp_path: Path, installer: str) -> None:
    wheel(tmp_path, "1.0")
    wheel(tmp_path, "2.0")
    path = requirements(tmp_path, "--no-index\n--find-links .\nclasher<2  # the old one\n")
    python = made.at(path).python
    assert said(python, SAY) == "1.0"
    locked = Path(python).parents[1].joinpath(LOCK).read_text()
    assert "clasher==1.0" in locked
    assert "--hash=sha256:" in locked
    wheel(tmp_path, "1.5")
    assert made.at(path).python == python
    assert said(python, SAY) == "1.0"


def test_pip_before_23_1_reports_hashes_in_another_form(tmp_path: Path) -> None:
    package = {
        "metadata": {"name": "clasher", "version": "1.0"},
        "is_direct": False,
        "download_info": {"url": "https://host/clasher.whl", "archive_info": {"hash": "sha256=0a1b"}},
    }
    assert _Installer(tmp_path / "requirements.txt", tmp_path, 0)._pinned(package) == "clasher==1.0 --hash=sha256:0a1b"


def test_a_file_that_asks_for_something_else_is_another_environment(made: EnvironmentStore, tmp_path: Path, notes: Path) -> None:
    (tmp_path / "more.txt").write_text("b==1\n")
    path = requirements(tmp_path, "-r \\\n  more.txt\n")
    pythons = [made.at(path).python, made.at(path).python]
    (tmp_path / "more.txt").write_text("b==2\n")
    pythons.append(made.at(path).python)
    assert [python == pythons[0] for python in pythons] == [True, True, False]


@pytest.mark.parametrize(
    "asked",
    [
        "clasher-1.0-py3-none-any.whl",
        "./clasher-1.0-py3-none-any.whl  # ours",
        "{0}/clasher-1.0-py3-none-any.whl",
        "../{1}/clasher-1.0-py3-none-any.whl[extra] ; python_version > '3'",
        "file:clasher-1.0-py3-none-any.whl",
        "file://{0}/clasher-1.0-py3-none-any.whl#sha256=0a1b",
        "clasher @ file://{0}/clasher%2D1.0-py3-none-any.whl ; python_version > '3'",
        "clasher[extra]@file://{0}/clasher-1.0-py3-none-any.whl",
        "./clasher-1.0-py3-none-any.whl \\\n    --hash=sha256:0a1b",
        "clasher @ \\\r\n  file://{0}/clasher-1.0-py3-none-any.whl",
        "${{WHEELS}}/clasher-1.0-py3-none-any.whl",
        "-r more/more.txt",
    ],
)
def test_another_build_of_a_local_wheel_is_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    monkeypatch.setenv("WHEELS", str(tmp_path))
    built = wheel(tmp_path, "1.0")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "more.txt").write_text("../clasher-1.0-py3-none-any.whl")
    path = Path(requirements(tmp_path, asked.format(tmp_path, tmp_path.name)))
    key = requirements_key(path)
    assert requirements_key(path) == key
    built.write_bytes(b"another build")
    assert requirements_key(path) != key


def test_names_of_packages_mean_the_same_in_any_folder(made: EnvironmentStore, tmp_path: Path, notes: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    named, linked = "x==1\ny[extra]>=2 ; python_version > '3'\n", "--find-links wheels\nx==1\n"
    assert len({made.at(requirements(folder, named)).python for folder in folders}) == 1
    assert len({made.at(requirements(folder, linked)).python for folder in folders}) == 2


def test_two_at_once_make_an_environment_once(made: EnvironmentStore, tmp_path: Path, notes: Path) -> None:
    path = requirements(tmp_path, "a\n")
    with ThreadPoolExecutor(4) as pool:
        found = {*pool.map(lambda _: made.at(path).python, range(4))}
    assert len(found) == 1
    assert notes.read_text().splitlines() == ["venv --quiet", "pip compile", "pip install"]


def test_what_a_killed_maker_left_is_made_again(
    made: EnvironmentStore, tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, hung = requirements(tmp_path, "a\n"), tmp_path / "hung"
    killed = subprocess.Popen(
        [sys.executable, "-c", MAKE, str(tmp_path / "environments"), path], env={**os.environ, "UV_HANG": str(hung)}
    )
    eventually(lambda: hung.exists() and hung.read_text().strip(), 30)
    killed.kill()
    killed.wait()
    [left] = made.all()
    assert left.source is None
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(made.at, path)
        # Its installer still runs, and would write into what the second one makes.
        assert not second.done()
        os.kill(int(hung.read_text()), signal.SIGKILL)
        second.result(30)
    [whole] = made.all()
    assert (whole.id, whole.source) == (left.id, path)
    assert notes.read_text().splitlines().count("venv --quiet") == 2


def test_what_cannot_be_installed_is_said_in_the_installers_words_without_secrets(
    made: EnvironmentStore, tmp_path: Path, installer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = requirements(tmp_path, "--no-index\n--find-links https://me:hidden@127.0.0.1:9/?key=hidden\nclasher==9\n")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(DependencyError) as caught:
        made.at(path)
    assert ("No matching distribution found for clasher" if installer == "pip" else "refused") in str(caught.value)
    assert "hidden" not in str(caught.value)
    assert [*made.all()] == []


def test_the_folder_of_a_virtual_environment_is_used_as_it_is(made: EnvironmentStore, tmp_path: Path) -> None:
    folder = environment(tmp_path / "own", clasher="VERSION = '7'")
    assert made.at(str(folder)).python == str(folder / "bin" / "python")
    with pytest.raises(InvalidValueError, match="is not an environment: it has no bin/python"):
        made.at(str(tmp_path))
    with pytest.raises(NotFoundError, match="Give a requirements file"):
        made.at(str(tmp_path / "none.txt"))
    assert [*made.all()] == []


def test_an_archive_is_unpacked_once_with_this_hosts_interpreter(made: EnvironmentStore, tmp_path: Path) -> None:
    folder = environment(tmp_path / "own", clasher="VERSION = '7'")
    about = folder / "pyvenv.cfg"
    about.write_text(about.read_text().replace(str(Path(sys.base_prefix)), "/of/another/host"))
    for link in folder.glob("bin/python*"):
        link.unlink()
        link.symlink_to("/of/another/host/bin/python")
    packed = tmp_path / "own.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(folder, ".")
    shutil.rmtree(folder)
    python = made.at(str(packed)).python
    assert said(python, SAY) == "7"
    assert made.at(str(packed)).python == python
    assert len(made.all()) == 1


def chain(depth: int) -> list[tuple[str, str]]:
    """Links, as name and target, by which ``tarfile`` of Python before 3.11.13 loses its way (CVE-2025-4517)."""
    made, path = list[tuple[str, str]](), ""
    for letter in "abcdefghijklmnop"[:depth]:
        made.append((f"{path}{'d' * 247}", ""))
        made.append((f"{path}{letter}", "d" * 247))
        path += f"{'d' * 247}/"
    short = "/".join("abcdefghijklmnop"[:depth])
    deep = f"{short}/{'l' * 254}"
    return [*made, (deep, "../" * depth), ("escape", f"{deep}/../../outside")]


@pytest.mark.parametrize(
    "links",
    [
        [("a", "."), ("b", "a/..")],
        [("a", "b"), ("b", "a")],
        [("a", "/etc")],
        [("d", ""), ("a", "d"), ("a/file", None)],
        [("d", ""), ("d/up", ".."), ("out", "d/up/../x")],
        chain(16),
    ],
    ids=["by the root", "in a circle", "absolute", "through a link", "twice up", "long chain"],
)
def test_an_archive_whose_links_lead_outside_is_refused_whole(
    made: EnvironmentStore, tmp_path: Path, links: list[tuple[str, str | None]]
) -> None:
    packed = tmp_path / "bad.tar"
    with tarfile.open(packed, "w") as archive:
        for name, target in links:
            member = tarfile.TarInfo(name)
            if target == "":
                member.type = tarfile.DIRTYPE
            elif target is not None:
                member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member, io.BytesIO(b""))
        last = tarfile.TarInfo("escape/keys")
        last.size = 4
        archive.addfile(last, io.BytesIO(b"mine"))
    before = sorted(path for path in tmp_path.rglob("*"))
    with pytest.raises(InvalidValueError, match=r"bad\.tar cannot be unpacked: .* (leads out of the archive|by a link)"):
        made.at(str(packed))
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before and path.name == "keys"] == []


@pytest.mark.parametrize("name", ["../outside", "/outside", "link"])
def test_an_archive_that_reaches_outside_is_refused(made: EnvironmentStore, tmp_path: Path, name: str) -> None:
    packed = tmp_path / "bad.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        member = tarfile.TarInfo(name)
        if name == "link":
            member.type, member.linkname = tarfile.SYMTYPE, "../../outside"
        archive.addfile(member, io.BytesIO(b""))
    with pytest.raises(InvalidValueError, match=r"bad\.tar\.gz (cannot be unpacked|has no environment)"):
        made.at(str(packed))
    assert [*made.all()] == []
    assert not (tmp_path / "outside").exists()


def test_a_removed_environment_is_made_again(made: EnvironmentStore, tmp_path: Path, notes: Path) -> None:
    path = requirements(tmp_path, "a\n")
    made.at(path)
    [one] = made.all()
    made.remove(one.id)
    assert [*made.all()] == []
    made.at(path)
    assert [again.id for again in made.all()] == [one.id]
