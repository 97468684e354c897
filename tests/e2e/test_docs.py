"""README, docs and examples are true: their commands run in order and print what they say, their links lead somewhere, and the pages that
follow from the code are the code's."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest

from tests.broker import Broker, broker
from tests.e2e.homes import SETTINGS, Home
from volstream.cli.main import volstream

__all__ = ["broker"]

ROOT = Path(__file__).parents[2]

DOCS = sorted((ROOT / "docs").rglob("*.md"))

PAGES = [ROOT / "README.md", *DOCS, *sorted((ROOT / "examples").rglob("*.md"))]

#: Pages whose commands one reader runs, one after the other.
SITTINGS = {
    "readme": ["README.md"],
    "begin": ["README.md", "docs/tutorial.md"],
    "sql": ["docs/guides/sql.md", "docs/guides/python.md"],
    "rows": ["docs/guides/realtime.md"],
    "load": ["docs/guides/loading.md"],
    "kafka": ["docs/guides/kafka.md"],
    "pipelines": ["docs/guides/pipelines.md"],
    **{
        name: [f"examples/{name}/README.md"]
        for name in ("documents", "logs", "messages", "pictures", "sensors", "studies", "thumbnails", "topics")
    },
}

#: Those of the short run.
_SHORT = ("readme",)

#: Those that need a broker.
_WITH_BROKER = ("kafka", "topics")

#: What is shown in blocks of shell that are not run: they set up the machine and run this very test.
_EXEMPT = [
    "pip install 'volstream[java]'",
    "make demo",
    "make test",
    "make demo-s3",
    "make demo-gcs",
    "make demo-ingest",
    "make test-long",
    "make storm",
    "make fuzz",
]

_MARK = "=== command"


@dataclass
class Example:
    """A command of a page, with the lines that its output has."""

    command: str
    expected: list[str] = field(default_factory=list)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


def examples(page: Path) -> list[Example]:
    """Commands of ```console blocks: `$ ` begins one, `> ` continues it, other lines are parts of its output."""
    found: list[Example] = []
    for block in blocks(page, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Example(line[2:]))
            elif line.startswith(">"):
                found[-1].command += f"\n{line[2:]}"
            elif line:
                found[-1].expected.append(line)
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("sitting", [one if one in _SHORT else pytest.param(one, marks=pytest.mark.long) for one in SITTINGS])
def test_every_command_prints_what_the_page_says(tmp_path: Path, sitting: str, request: pytest.FixtureRequest) -> None:
    commands = [example for page in SITTINGS[sitting] for example in examples(ROOT / page)]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    # One shell runs them all, as a reader's would: exports and the daemon's $! live on.
    script = "exec 2>&1\n" + "".join(f"echo '{_MARK}'\n{command.command}\necho \"=== code $?\"\n" for command in commands)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("VOLSTREAM_")}
    if "VOLSTREAM_CACHE" in os.environ:
        environment["VOLSTREAM_CACHE"] = os.environ["VOLSTREAM_CACHE"]
    if sitting in _WITH_BROKER:
        kafka: Broker = request.getfixturevalue("broker")
        request.addfinalizer(lambda: kafka.delete("orders"))  # both pages make it
        environment["BROKER"] = kafka.address
    # No retry may come in between two commands.
    own = {key: SETTINGS[key] for key in ("VOLSTREAM_CORES", "VOLSTREAM_DRIVER_MEMORY", "VOLSTREAM_SETTLE_SECONDS")}
    environment |= own | {"VOLSTREAM_RETRY_FIRST_SECONDS": "1h", "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}"}
    with subprocess.Popen(
        [shutil.which("bash") or "bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        text=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as shell:
        try:
            output, _ = shell.communicate(timeout=220)
        finally:
            if shell.poll() is None:  # a command that waits for what never comes would wait for ever
                os.killpg(shell.pid, signal.SIGKILL)
            # Of commands, of the programs that pages show, and of an example's copy.
            for home in ("home", "data", f"{sitting}/home"):
                Home(tmp_path).run("engine", "stop", "--now", "--home", str(tmp_path / home))

    outputs = output.split(f"{_MARK}\n")[1:]
    assert len(outputs) == len(commands), output
    for one, printed in zip(commands, outputs, strict=True):
        assert printed.endswith("=== code 0\n"), f"$ {one.command}\n{printed}"
        for line in one.expected:
            assert _words(line) in _words(printed), f"$ {one.command}\nprints no {line!r}:\n{printed}"


def test_every_page_with_commands_belongs_to_a_session_that_is_run() -> None:
    assert {str(page.relative_to(ROOT)) for page in PAGES if examples(page)} == {
        page for pages in SITTINGS.values() for page in pages
    }


def test_only_what_sets_up_the_machine_is_left_out_of_the_readme() -> None:
    lines = [line.partition("#")[0].strip() for block in blocks(ROOT / "README.md", "sh") for line in block.splitlines()]
    assert lines == _EXEMPT


def shown() -> Iterator[tuple[str, str]]:
    """Page and line of each command of volstream that is shown and not run."""
    for page in PAGES:
        for block in [*blocks(page, "bash"), *blocks(page, "sh")]:
            for line in block.splitlines():
                if line.startswith("volstream "):
                    yield str(page.relative_to(ROOT)), line


@pytest.mark.parametrize(("page", "line"), list(shown()))
def test_commands_that_are_shown_but_not_run_parse(page: str, line: str) -> None:
    del page
    arguments = shlex.split(line, comments=True)[1:]
    context = click.Context(volstream, info_name="volstream")
    while True:
        command = (context.command if isinstance(context.command, click.Group) else volstream).get_command(context, arguments[0])
        assert command is not None, arguments[0]
        context = command.make_context(arguments[0], arguments[1:], parent=context)
        if not isinstance(command, click.Group):
            return
        arguments = arguments[1:]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)]+)\)", text):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        found = (page.parent / target).resolve() if target else page
        assert found.exists(), link
        assert not anchor or anchor in anchors(found), link


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = set(re.findall(r"^([\w/-]+)$", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"), re.M))
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in DOCS} - {"index"}
    assert listed == pages


def test_the_reference_pages_match_the_code() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for name in ("commands", "options", "settings"):
        written = (ROOT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")
        assert written == getattr(generate, name)(), f"Run: make docs ({name})"
    keywords = generate.KEYWORDS.read_text(encoding="utf-8")  # as the formatter leaves it
    assert generate.keywords().split() == keywords.replace(" (\n", "").split(), "Run: make docs (keywords)"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130


def _words(text: str) -> str:
    """The text with runs of blanks collapsed: tables are as wide as their contents."""
    return " ".join(text.split())
