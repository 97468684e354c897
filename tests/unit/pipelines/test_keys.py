"""The keys of files are the options of commands, so that who knows one knows the other."""

from __future__ import annotations

import click
import pytest

from volstream.cli.main import volstream
from volstream.pipelines.keys import KEYS, LOAD, exact_size, size
from volstream.pipelines.model import Kind

#: Options about how a command is run, not about what it makes.
_OF_COMMANDS = {"home", "format", "or_replace", "if_not_exists", "check", "help", "name"}


def options(command: str) -> set[str]:
    """Options and arguments of a command, with underscores."""
    found = volstream.get_command(click.Context(volstream), command)
    assert found is not None
    names = {one.opts[0].lstrip("-").replace("-", "_") for one in found.params}
    return names - _OF_COMMANDS


@pytest.mark.parametrize(
    ("kind", "command", "only_in_files"),
    [
        (Kind.CONNECTION, "create-connection", set()),
        (Kind.VOLUME, "create-volume", set()),
        (Kind.STREAM, "create-stream", set()),
        (Kind.JOB, "create-job", {"load", "statement"}),
    ],
)
def test_each_option_is_a_key(kind: Kind, command: str, only_in_files: set[str]) -> None:
    assert {*KEYS[kind]} == options(command) | only_in_files


def test_each_option_of_load_is_a_key() -> None:
    renamed = {"file_format": "format", "no_header": "header", "volume": "on_volume"}
    found = {renamed.get(one, one) for one in options("load")}
    assert {*LOAD} <= found
    assert found <= {*LOAD, *KEYS[Kind.JOB]}


@pytest.mark.parametrize("count", [1, 1000, 1024, 3 << 20, 5 << 30, 7 << 40, (1 << 40) + 1])
def test_a_size_is_written_without_loss(count: int) -> None:
    assert size(exact_size(count)) == size(count) == exact_size(count)
