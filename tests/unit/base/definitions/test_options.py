"""Options are described once: commands, SQL, Python, files and the catalog have them by the description."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import click
import pytest
from click.testing import CliRunner

from tests import objects
from volstream.api.objects import sql
from volstream.api.objects.collections import Connections, Streams
from volstream.api.objects.jobs import Jobs
from volstream.api.objects.volumes import Volumes
from volstream.api.pipelines.definitions import KEYS, Kind
from volstream.base import definitions
from volstream.base.definitions import FileJobOptions, FileJobSpec, FunctionOptions, OnMove, VolumeSpec, Write, forms
from volstream.base.definitions.options import Key, Option, keys, read, to_alter, to_create
from volstream.base.model.arguments import checked, takes
from volstream.catalog import tables
from volstream.cli.main import volstream
from volstream.cli.options import described
from volstream.errors import InvalidValueError


@dataclasses.dataclass(frozen=True, kw_only=True)
class _WithOneMore(FunctionOptions, FileJobOptions):
    """The definition of a job with an option that there is not."""

    shade: Annotated[int, Option("How dark.", minimum=1)] = 7


def test_an_option_that_is_described_is_an_option_of_command_sql_python_and_file() -> None:
    new = {"shade": keys(_WithOneMore)["shade"]}
    given: list[Mapping[str, Any]] = []

    @click.command()
    @described(new)
    def command(given_: Any = None, **options: Any) -> None:
        given.append(options["given"])

    assert "How dark.  [default: 7]" in CliRunner().invoke(command, ["--help"]).output
    assert CliRunner().invoke(command, ["--shade", "3"]).exit_code == 0
    assert given == [{"shade": 3}]

    assert sql._properties("job", _WithOneMore, {"SHADE": "3", "arg.x": "y"}) == {"shade": 3, "arguments": {"x": "y"}}

    @checked
    @takes(new)
    def create(name: str, **options: Any) -> Any:
        return read(_WithOneMore, options)

    assert str(inspect.signature(create)) == "(name: 'str', *, shade: 'int' = 7) -> 'Any'"
    assert create("a", shade=3) == {"shade": 3}
    with pytest.raises(InvalidValueError, match=r"shade cannot be 0\. Give 1 or more"):
        create("a", shade=0)

    [column] = [option for option in tables._fields(_WithOneMore) if option.name == "shade"]
    assert not column.nullable


@pytest.mark.parametrize(
    ("kind", "command", "only_in_files", "method", "own"),
    [
        (Kind.CONNECTION, "create-connection", (), Connections.create, ("type",)),
        (Kind.VOLUME, "create-volume", (), Volumes.create, ("location",)),
        (Kind.STREAM, "create-stream", (), Streams.create, ()),
        (Kind.JOB, "create-job", ("load", "statement"), Jobs.create, ()),
    ],
)
def test_command_file_and_method_have_the_same_words(
    kind: Kind, command: str, only_in_files: tuple[str, ...], method: Callable[..., Any], own: tuple[str, ...]
) -> None:
    found = volstream.get_command(click.Context(volstream), command)
    assert found is not None
    of_commands = {"home", "format_", "or_replace", "if_not_exists", "check", "help", "name"}
    assert {param.name for param in found.params} - of_commands == {*KEYS[kind]} - {*only_in_files}
    of_methods = {"self", "name", "directory", "or_replace", "if_not_exists", "check", "tell"}
    assert inspect.signature(method).parameters.keys() - of_methods == {*KEYS[kind]} - {"load"}
    assert {*own} <= {*KEYS[kind]}


@pytest.mark.parametrize(
    ("form", "given", "parsed", "value"),
    [
        (forms.FLAG, True, "TRUE", True),
        (forms.NUMBER, 3, " 3 ", 3),
        (forms.DURATION, 90, "90s", 90.0),
        (forms.DURATION, "1.5m", "1.5m", 90.0),
        (forms.SIZE, 65536, "64KiB", 65536),
        (forms.TEXTS, ["a", "b"], "a, b", ("a", "b")),
        (forms.TEXTS, "a", "a", ("a",)),
        (forms.RECEIVERS, [], "none", ()),
        (forms.RECEIVERS, "default", "default", None),
        (forms.PAIRS, {"a": True}, "a=true", {"a": "true"}),
        (forms.RETENTION, "30 days", "30d", 2592000),
        (forms.words(Write), Write.APPEND, "APPEND", Write.APPEND),
        (forms.words(OnMove), "rekey", "Rekey", OnMove.REKEY),
    ],
)
def test_a_value_is_the_same_whichever_way_it_is_written(form: forms.Form, given: Any, parsed: str, value: Any) -> None:
    assert form.read(given) == form.parse(parsed) == value


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("retries", "3", "retries: '3' is not a whole number. Give a whole number."),
        ("retries", True, "retries: True is not a whole number."),
        ("retries", -1, "retries cannot be -1. Give 0 or more."),
        ("retries", 2**31, "retries cannot be 2147483648. Give 2147483647 or less."),
        ("timeout", -5, "timeout: -5 is not a duration. Give a number of seconds, or text such as 30s."),
        ("timeout", "soon", "timeout: 'soon' is not a duration."),
        ("max_bytes", "lots", "max_bytes: 'lots' is not a size."),
        ("write", "upsrt", "write: 'upsrt' is not an allowed value. Did you mean 'upsert'? Give one of upsert, append."),
        ("isolate", "yes", "isolate: 'yes' is not true or false."),
        ("arguments", {"a": object()}, "arguments: {'a': <object"),
        ("volume", 5, "volume: 5 is not a name."),
        ("where", None, ""),
    ],
)
def test_a_value_of_another_form_is_refused_with_what_to_give(key: str, value: Any, said: str) -> None:
    if not said:
        assert read(FileJobSpec, {key: value}) == {key: None}
        return
    with pytest.raises(InvalidValueError) as caught:
        read(FileJobSpec, {key: value})
    assert str(caught.value).startswith(said)


def test_what_is_said_at_the_start_cannot_be_altered() -> None:
    assert {*to_create(VolumeSpec)} - {*to_alter(VolumeSpec)} == {"location"}
    assert {*keys(definitions.StreamSpec)} - {*to_alter(definitions.StreamSpec)} == {
        *("volume", "table", "mode", "identity", "show_initial_rows", "at_version", "at_timestamp")
    }


@pytest.mark.parametrize("described_by", [*KEYS.values()])
def test_each_option_says_what_it_is(described_by: Mapping[str, Key]) -> None:
    assert [name for name, key in described_by.items() if not key.option.help and name != "comment"] == []


def test_two_schedules_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="on_change, every and cron are mutually exclusive"):
        dataclasses.replace(objects.job(objects.stream()), on_change=True, cron="* * * * *")


@pytest.mark.parametrize("made", [objects.volume(), objects.stream(), objects.job(objects.stream(), alert=("a",))])
def test_a_row_is_read_back_as_the_object_of_which_it_is(made: Any) -> None:
    assert tables.from_row(type(made), tables.to_row(made)) == made
