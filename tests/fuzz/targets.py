"""The readers of inputs, by name. Each either returns or raises one of volstream's errors."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from tests.fuzz import corpus
from volstream.api.pipelines.export import to_toml
from volstream.api.pipelines.plan import compare, plan_lines
from volstream.api.pipelines.read import read
from volstream.base import config
from volstream.base.definitions import Trigger, TriggerKind
from volstream.base.model.names import Name
from volstream.base.model.paths import Selection, file_uri, local_path, scheme_of
from volstream.base.model.units import format_duration, format_size, parse_duration, parse_size
from volstream.base.model.work import RemovalLimit
from volstream.cli.main import run
from volstream.cli.options import TIMESTAMP
from volstream.errors import VolstreamError
from volstream.files.providers.alibaba import events as oss_events
from volstream.files.providers.aws import events as s3_events
from volstream.functions.schema import from_ddl, to_ddl
from volstream.jobs.rules.conditions import check_where
from volstream.jobs.runs.schedule import check_cron, next_due
from volstream.sql import adapt, grammar, incremental
from volstream.sql.names import changes_of, time_of
from volstream.sql.statement import SparkStatement
from volstream.sql.tokens import split

#: Exit codes that the README documents, but for 1: that is a bug.
_CODES = (0, 2, 3, 4, 5, 6, 130)

#: After so many commands the home is as it was: those that drop things leave little to do.
_FRESH = 200


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        share: of all inputs, relative to the others.
    """

    name: str
    corpus: Sequence[str]
    read: Callable[[str], object]
    share: int


class WrongError(AssertionError):
    """An answer that no input should get."""


def _statement(text: str) -> None:
    for one in split(text):
        if grammar.owned(SparkStatement(one).words):
            grammar.parse(one)


def _for_spark(text: str) -> None:
    for one in map(SparkStatement, split(text)):
        for reference in one.references:
            changes_of(one.tokens_after(reference.end))
            time_of(one.text, one.tokens_after(reference.end))
        assert (one.calls, one.targets, one.writes, one.named) is not None
        adapt.create_table(one, "key", {"change_tracking": lambda value: {"tracked": value}})
        grammar.found_in(one.text)
        adapt.insert_all_columns(one, ["a", "b`c"])
        adapt.as_insert(one)
        match one.words[:1]:
            case ["MERGE"]:
                adapt.filtered_merge(one, lambda _: {"id": "int", "__change_type": "string"}, ["id"])
            case ["SELECT" | "WITH"]:
                incremental.group_key(one.text, {"id": "int"})
                incremental.is_row_by_row(one.text, {"id": "int"})


def _body(text: str) -> None:
    body = text.encode("utf-8", "surrogatepass")
    s3_events.parse(body)
    oss_events.parse(body)


def _duration(text: str) -> None:
    format_duration(parse_duration(text))


def _size(text: str) -> None:
    format_size(parse_size(text))


def _name(text: str) -> None:
    name = Name.parse(text)
    if Name.parse(str(name)) != name:
        raise WrongError(f"{text!r} is {name}, which is read as {Name.parse(str(name))}")


def _pattern(text: str) -> None:
    for selection in (Selection(patterns=(text,)), Selection(ignores=(text,))):
        for path in (*corpus.PATHS, "a" * 200, "_" * 200):
            selection.accepts(path)
            selection.may_contain(path)


def _cron(text: str) -> None:
    zone, now = ZoneInfo("Europe/Berlin"), datetime(2026, 3, 29, tzinfo=UTC)
    check_cron(text, zone)
    next_due(Trigger(TriggerKind.CRON, cron=text), now, now, zone, now)


def _ddl(text: str) -> None:
    schema = from_ddl(text)
    if from_ddl(to_ddl(schema)) != schema:
        raise WrongError(f"{text!r} is {schema}, which is written as {to_ddl(schema)}")


def _location(text: str) -> None:
    scheme_of(text)
    local_path(file_uri(text))
    local_path(text)


def readers() -> Sequence[Target]:
    """Readers that are functions of the text alone."""
    return (
        Target("statement", corpus.STATEMENTS, _statement, 60),
        Target("spark", corpus.SPARK_STATEMENTS, _for_spark, 20),
        Target("body", corpus.BODIES, _body, 200),
        Target("duration", corpus.DURATIONS, _duration, 120),
        Target("size", corpus.SIZES, _size, 120),
        Target("name", corpus.NAMES, _name, 120),
        Target("pattern", corpus.PATTERNS, _pattern, 30),
        Target("time", corpus.TIMES, lambda text: TIMESTAMP.convert(text, None, None), 120),
        Target("cron", corpus.CRONS, _cron, 30),
        Target("ddl", corpus.DDL, _ddl, 40),
        Target("condition", corpus.CONDITIONS, check_where, 30),
        Target("location", corpus.LOCATIONS, _location, 120),
        Target("removals", corpus.REMOVALS, RemovalLimit.parse, 100),
    )


class CommandLine:
    """Commands in this process, on a home that is put back now and then. What needs an engine finds no Java.

    Args:
        folder: empty; commands run in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = 0
        self._template = folder.with_name(f"{folder.name}-template")
        (folder / "files" / "a").mkdir(parents=True)
        for name in ("a.txt", "a/b.csv"):
            (folder / "files" / name).write_text(name)
        (folder / "f.py").write_text("def f(file, *, a=''): ...\ndef g(x): ...\n")
        (folder / "p.toml").write_text(f"{corpus.PIPELINES[4]}[volumes.v]\nlocation = 'files'\n")
        (folder / "script.sql").write_text("SHOW VOLUMES; SHOW JOBS")
        for arguments in (
            ["create-volume", "v", "files"],
            ["create-stream", "s", "--volume", "v"],
            ["refresh", "v"],
            ["create-job", "j", "--volume", "v", "--function", "f.py:f", "--returns", "n INT", "--into", "t"],
        ):
            code, said = self._call(arguments)
            if code:
                raise WrongError(said)
        shutil.copytree(folder, self._template)

    def targets(self) -> Sequence[Target]:
        """Readers that are commands."""
        return (
            Target("command", corpus.COMMANDS, lambda text: self._run(text.split("\n")), 4),
            Target("sql", (*corpus.STATEMENTS, *corpus.SPARK_STATEMENTS), lambda text: self._run(["sql", text]), 4),
            Target("settings", corpus.TOML, self._settings, 20),
            Target("pipeline", corpus.PIPELINES, self._pipeline, 20),
        )

    def _run(self, arguments: Sequence[str]) -> None:
        if not _is_harmless(arguments):
            return
        self._calls += 1
        if self._calls % _FRESH == 0:
            shutil.rmtree(self._folder)
            shutil.copytree(self._template, self._folder)
        code, said = self._call(arguments)
        if code not in _CODES or "Traceback" in said:
            raise WrongError(f"exit code {code}:\n{said}")

    def _call(self, arguments: Sequence[str]) -> tuple[int, str]:
        said = io.StringIO()
        with (
            contextlib.chdir(self._folder),
            _environment(
                {
                    "VOLSTREAM_HOME": str(self._folder / "home"),
                    "VOLSTREAM_CACHE": str(self._folder / "none"),
                    "VOLSTREAM_FETCH_JARS": "false",
                }
            ),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            return run([*arguments]), said.getvalue()

    def _settings(self, text: str) -> None:
        home = self._folder / "settings"
        home.mkdir(exist_ok=True)
        (home / "volstream.toml").write_bytes(text.encode("utf-8", "surrogateescape" if "\ud800" not in text else "replace"))
        settings = config.load(home)
        settings.for_cluster("gpu")
        repr(settings)
        settings.model_dump_json(exclude={"home"})

    def _pipeline(self, text: str) -> None:
        file = self._folder / "pipeline" / "pipeline.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(text.encode("utf-8", "surrogateescape" if "\ud800" not in text else "replace"))
        (file.parent / "f.py").write_text("def f(file, *, a=''): ...\n")
        wanted = read(file)
        plan = compare(wanted, [], prune=True)
        "\n".join(plan_lines(plan))
        exported = file.with_name("exported.toml")
        exported.write_text(to_toml(wanted), encoding="utf-8")
        if {one.identity: one for one in read(exported)} != {one.identity: one for one in wanted}:
            raise WrongError(f"{text!r} is exported as {exported.read_text()!r}")


def _is_harmless(arguments: Sequence[str]) -> bool:
    """Whether a command exits on its own and touches nothing outside its folder."""
    words = [word for argument in arguments for word in argument.replace("'", " ").replace('"', " ").split()]
    outside = any(word.startswith(("/", "~", "s3:", "oss:", "..")) for word in words)
    remote = any(word.lower().startswith(("doctor", "daemon", "try")) for word in words)
    return not (outside or remote or any("://" in word or "location" in word.lower() for word in words))


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


__all__ = ["CommandLine", "Target", "VolstreamError", "WrongError", "readers"]
