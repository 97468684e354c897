"""Writes the pages under ``docs/reference`` that follow from the code: commands and settings. ``make docs`` runs it.

A test compares the pages with what this writes.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click

from volstream.api.pipelines.definitions import KEYS
from volstream.base import config, definitions
from volstream.base.definitions.forms import as_text
from volstream.base.definitions.job import JOB_ARGUMENTS, LOAD_OPTIONS, FileJobOptions
from volstream.base.definitions.options import Key, keys, to_alter, to_create
from volstream.cli.main import GROUPS, volstream
from volstream.ops.inspection.doctor import setting_descriptions

REFERENCE = Path(__file__).parent / "reference"

KEYWORDS = Path(definitions.__file__).with_name("keywords.py")
if not KEYWORDS.is_relative_to(REFERENCE.parents[1]):
    sys.exit(f"The volstream of {KEYWORDS.parent} would be written beside these pages: run the Python of this checkout.")

_COMMANDS = """\
# Commands

<!-- Made by docs/generate.py from the code. -->

Every command takes `--home DIR` (default: `VOLSTREAM_HOME`, else your user's data directory) and `--format text|json`.
Results go to standard output, everything else to standard error. With `json` a command prints one document; `sql` prints a
list of rows, or a list of such lists if it ran several statements. Durations are written `30s`, `5m`, `1h`, `2d`, sizes
`64MiB`, `1GiB`.

For completion of commands, options and names in the shell, add `eval "$(volstream completion bash)"` to `~/.bashrc`, or the
same with `zsh` to `~/.zshrc`; for fish run `volstream completion fish > ~/.config/fish/completions/volstream.fish`.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a bug in volstream |
| 2 | wrong usage |
| 3 | your input or state: not found, exists already, invalid, stale, busy |
| 4 | something volstream needs is not available: storage, catalog, Java, the engine, a port |
| 5 | finished, but some files failed |
| 6 | `diff --exit-code`: there are differences |
| 130 | interrupted; what is committed stays |
"""

_SETTINGS = """\
# Settings

<!-- Made by docs/generate.py from the code. -->

Settings are read from the command line, then the environment (`VOLSTREAM_HTTP_PORT=9000`), then `volstream.toml` in the
home, then these defaults. Durations are seconds, or text such as `30s`; sizes are bytes, or text such as `64MiB`.

| setting | default | meaning |
|---|---|---|
"""

#: Options of every command; the page says so once.
_COMMON = ("--home", "--format", "--help")


def commands() -> str:
    """The page of commands."""
    context = click.Context(volstream, info_name="volstream")
    listed = "".join(
        f"\n| {title} | |\n|---|---|\n"
        + "".join(f"| [`{name}`](#{name}) | {_first(volstream.get_command(context, name))} |\n" for name in names)
        for title, names in GROUPS.items()
    )
    described = "".join(
        _command(name, volstream.get_command(context, name), context) for names in GROUPS.values() for name in names
    )
    return f"{_COMMANDS}{listed}{described}"


def settings() -> str:
    """The page of settings."""
    described = setting_descriptions()
    rows = (
        f"| `{name}` | `{_default(one.default)}` | {_cell(described[name])} |\n"
        for name, one in config.Settings.model_fields.items()
        if name != "home"
    )
    return _SETTINGS + "".join(rows)


def _command(name: str, command: click.Command | None, parent: click.Context, level: int = 2) -> str:
    assert command is not None, "the groups name commands that are there"
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    text = f"\n{'#' * level} {name}\n\n```text\n{usage}\n```\n\n{_paragraphs(command.help or '')}\n"
    kind = _KINDS.get(name)
    described = {_cell(key.option.help) for key in (*_keys_of(kind), *(_keys_of("load") if name == "load" else ()))}
    options = "".join(
        line
        for one in command.params
        if isinstance(one, click.Option) and _cell(one.help or "") not in described and (line := _option(one, context))
    )
    if options:
        text += f"\n| option | |\n|---|---|\n{options}"
    if kind is not None:
        text += f"\nAnd all [options of {kind}](options.md#{kind})"
        text += (
            " and [of loading](options.md#load)" if name == "load" else ", but those that are fixed" * name.startswith("alter")
        )
        text += ".\n"
    if isinstance(command, click.Group):
        text += "".join(_command(one, command.get_command(context, one), context, level + 1) for one in command.commands)
    return text


#: The kinds of objects whose options a command takes: the page of options describes them.
_KINDS = {
    "create-connection": "connections",
    "create-volume": "volumes",
    "create-stream": "streams",
    "create-job": "jobs",
    "load": "jobs",
    "alter-volume": "volumes",
    "alter-job": "jobs",
}


def _keys_of(kind: str | None) -> Iterable[Key]:
    if kind == "load":
        return keys(definitions.LoadKeys).values()
    return next((known.values() for one, known in KEYS.items() if one.value == kind), ())


def _option(option: click.Option, context: click.Context) -> str:
    if option.hidden or option.opts[-1] in _COMMON:
        return ""
    found = option.get_help_record(context)
    assert found is not None, "it is not hidden"
    names, said = found
    return f"| `{names.replace('|', chr(92) + '|')}` | {_cell(said)} |\n"


def _first(command: click.Command | None) -> str:
    return "" if command is None else _cell(command.get_short_help_str(limit=1000))


def _paragraphs(text: str) -> str:
    return re.sub(r"\n(?!\n)(?<!\n\n)", " ", inspect.cleandoc(text).replace("\b\n", "")).strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _default(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


_OPTIONS = """\
# Options

<!-- Made by docs/generate.py from the definitions. -->

What can be said of each kind of object. The words are the same everywhere: as options of commands (`--pause-after`, and
`--pattern`, `--ignore`, `--arg` for one item at a time), as keywords in Python, as keys of a
[pipeline's file](../guides/pipelines.md), and, of jobs, streams and volumes, where SQL has no clause, as properties in SQL
(`PROPERTIES ('pause_after' = '5', 'arg.KEY' = 'value')`). Python and files take durations as seconds or as text such as `30s`,
sizes as bytes or as text such as `64MiB`. "Fixed" is what an existing object keeps.
"""

_OPTIONS_HEAD = "| option | value | default | |\n|---|---|---|---|\n"


def options() -> str:
    """The page of options."""
    text = _OPTIONS
    for kind, known in KEYS.items():
        text += f"\n## {kind.value}\n\n{_OPTIONS_HEAD}{''.join(map(_described, known.values()))}"
    said = "The key `load` of a job, and options of `volstream load`."
    return f"{text}\n## load\n\n{said}\n\n{_OPTIONS_HEAD}{''.join(map(_described, keys(definitions.LoadKeys).values()))}"


def _described(key: Key) -> str:
    value = key.write(key.default)
    default = " ".join(value) if isinstance(value, tuple) else as_text(value)
    shown = "required" if key.required else "" if key.default in (None, (), {}) else f"`{default}`"
    fixed = "" if key.option.alterable and not key.option.at_start else " Fixed."
    return f"| `{key.name}` | {key.form.wanted} | {shown} | {_cell(key.option.help or 'A remark.')}{fixed} |\n"


#: The classes of keyword arguments: their name, the options that they have, and of what.
_KEYWORDS: Sequence[tuple[str, Mapping[str, Key], str]] = [
    ("ConnectionKeywords", to_create(definitions.ConnectionOptions, "type"), "Options of a connection."),
    ("VolumeKeywords", to_create(definitions.VolumeSpec, "location"), "Options of a volume."),
    ("StreamKeywords", to_create(definitions.StreamSpec, "volume", "table"), "Options of a new stream."),
    ("DynamicTableKeywords", to_create(definitions.DynamicTableOptions, "query"), "Options of a new dynamic table."),
    ("FileJobChanges", to_alter(FileJobOptions), "What can be changed of any job on files."),
    ("JobChanges", to_alter(definitions.FileJobSpec, "function"), "What can be changed of a job."),
    ("JobKeywords", to_create(definitions.FileJobSpec, *JOB_ARGUMENTS), "Options of a new job."),
    ("LoadKeywords", LOAD_OPTIONS, "Options of a new job that loads files."),
    ("SourceChanges", to_alter(definitions.SourceDefinition), "What can be changed of a source."),
]

_KEYWORDS_MODULE = """\
\"\"\"The keyword arguments of public methods, for type checkers and editors. Made by docs/generate.py from the definitions.\"\"\"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, TypedDict

from volstream.base.definitions.job import FileFormat, FileOrder, NewColumns, OnMove, Write
from volstream.base.definitions.objects import QueueType, StreamMode
from volstream.base.model.names import Name
"""


def keywords() -> str:
    """The module of keyword arguments. A class inherits from the one before it that has most of its options."""
    text = _KEYWORDS_MODULE
    made: list[tuple[str, Mapping[str, str]]] = [("TypedDict", {})]
    for name, options, said in _KEYWORDS:
        fields = {key: _typed(one) for key, one in options.items()}
        base, inherited = max((one for one in made if one[1].items() <= fields.items()), key=lambda one: len(one[1]))
        text += f'\n\nclass {name}({base}, total=False):\n    """{said}"""\n\n'
        text += "".join(f"    {key}: {type_}\n" for key, type_ in fields.items() if key not in inherited)
        made.append((name, fields))
    return text


def _typed(key: Key) -> str:
    """Returns the type of a keyword: words are literals, which editors complete."""
    words = key.form.values
    if words is None:
        return key.keyword
    literal = ", ".join(f'"{one}"' for one in words)
    others = "str" if key.form.has_others else f"Literal[{literal}]"
    return f"{words.__name__} | {others}{' | None' if key.optional else ''}"


def main() -> None:
    """Writes the pages, and the module of keyword arguments."""
    for name, text in (("commands", commands()), ("options", options()), ("settings", settings())):
        (REFERENCE / f"{name}.md").write_text(text, encoding="utf-8")
    KEYWORDS.write_text(keywords(), encoding="utf-8")


if __name__ == "__main__":
    main()
