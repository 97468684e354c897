"""The README is true: its commands run in their order and print what it says, its tables are the code's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.homes import SETTINGS, Home
from volstream.cli.main import _COMMANDS
from volstream.config import Settings

README = Path(__file__).parents[2] / "README.md"

#: What the README shows is run but for these: they set up the machine and run this very test.
_EXEMPT = ("make demo", "make demo-s3", "make demo-oss", "make test", "make test-long")

_MARK = "=== command"


@dataclass
class Example:
    """A command of the README, with the lines that its output has."""

    command: str
    expected: list[str] = field(default_factory=list)


def examples() -> list[Example]:
    """Commands of ```console blocks: `$ ` begins one, `> ` continues it, other lines are parts of its output."""
    found: list[Example] = []
    for block in re.findall(r"^```console\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Example(line[2:]))
            elif line.startswith(">"):
                found[-1].command += f"\n{line[2:]}"
            elif line:
                found[-1].expected.append(line)
    return found


#: What the reader of the second part has done before: the files are as the first part leaves them, and so is the table.
_BEFORE = (
    "export ", "mkdir ", "echo ", "cat ", "rm ", "touch ", "sed ", "volstream create-volume ", "volstream create-job ",
    "volstream run-job count ||", "volstream drop ",
)  # fmt: skip


def parts() -> list[list[Example]]:
    """The README's commands, up to where the engine is stopped and from there on: a reader's two sittings."""
    commands = examples()
    end = next(number for number, one in enumerate(commands) if one.command == "volstream engine stop") + 1
    before = [Example(one.command) for one in commands[:end] if one.command.startswith(_BEFORE)]
    return [commands[:end], [*before, *commands[end:]]]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("part", [0, 1], ids=["first", "second"])
def test_every_command_prints_what_the_readme_says(tmp_path: Path, part: int) -> None:
    commands = parts()[part]
    # One shell runs them all, as a reader's would: exports and the daemon's $! live on.
    script = "exec 2>&1\n" + "".join(f"echo '{_MARK}'\n{one.command}\necho \"=== code $?\"\n" for one in commands)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("VOLSTREAM_")}
    if "VOLSTREAM_CACHE" in os.environ:
        environment["VOLSTREAM_CACHE"] = os.environ["VOLSTREAM_CACHE"]
    # No retry may come in between two commands.
    own = {key: SETTINGS[key] for key in ("VOLSTREAM_CORES", "VOLSTREAM_DRIVER_MEMORY", "VOLSTREAM_SETTLE_SECONDS")}
    environment |= own | {
        "VOLSTREAM_RETRY_FIRST_SECONDS": "1h",
        "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
    }
    with subprocess.Popen(
        [shutil.which("bash") or "bash", "-c", script], cwd=tmp_path, env=environment, text=True, encoding="utf-8",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
    ) as shell:  # fmt: skip
        try:
            output, _ = shell.communicate(timeout=220)
        finally:
            Home(tmp_path).run("engine", "stop", "--now")

    outputs = output.split(f"{_MARK}\n")[1:]
    assert len(outputs) == len(commands), output
    for one, printed in zip(commands, outputs, strict=True):
        assert printed.endswith("=== code 0\n"), f"$ {one.command}\n{printed}"
        for line in one.expected:
            assert _words(line) in _words(printed), f"$ {one.command}\nprints no {line!r}:\n{printed}"


def test_only_the_make_commands_are_not_run() -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    assert sorted(lines) == sorted(_EXEMPT)


def test_the_settings_and_their_defaults_are_the_codes() -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| `([^`]*)` \|", README.read_text(encoding="utf-8"), re.M))
    defaults = {name: one.default for name, one in Settings.model_fields.items() if name != "home"}
    assert told == {
        name: f'"{default}"' if isinstance(default, str) else str(default) for name, default in defaults.items()
    }


def test_every_command_is_in_the_readme() -> None:
    table = README.read_text(encoding="utf-8").partition("## Commands")[2].partition("\nEvery command takes")[0]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`([\w-]+)`", row)}
    assert named - {"status", "stop"} == set(_COMMANDS) - {"status"}


def _words(text: str) -> str:
    """The text with runs of blanks as one: tables are as wide as their contents."""
    return " ".join(text.split())
