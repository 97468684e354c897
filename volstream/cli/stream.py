"""Streams: ``create-stream``, ``reset-stream``, ``advance-stream``, ``resolve``."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from volstream.base.definitions import SourceKind, Stream, StreamSpec
from volstream.base.definitions.options import to_create
from volstream.base.model.text import counted
from volstream.cli.options import NUMBER, TIMESTAMP, Made, common, described, existing, names_of
from volstream.cli.output import Output

if TYPE_CHECKING:
    from volstream.api.session import Session


@click.command("create-stream")
@click.argument("name")
@described(to_create(StreamSpec))
@existing
@common
def create_stream_command(session: Session, output: Output, name: str, given: dict[str, Any], **existing: Any) -> None:
    """Create a cursor over the changes of a volume's files or a table's rows."""
    if ("volume" in given) == ("table" in given):
        raise click.UsageError("Give --volume or --table.")
    made = Made(session, "stream", name)
    stream = session.streams.create(name, **existing, **given)
    where = f"{stream.source_kind} {stream.source_name}"
    text = f"Stream {stream.name} on {where}: {_start(session, stream)}."
    output.result(stream, made.said(stream, text, given))


@click.command("reset-stream")
@click.argument("stream", shell_complete=names_of("stream"))
@click.option("--to-version", type=NUMBER, metavar="N")
@click.option("--to-timestamp", type=TIMESTAMP, metavar="TIME")
@common
def reset_stream_command(
    session: Session, output: Output, stream: str, to_version: int | None, to_timestamp: datetime | None
) -> None:
    """Move STREAM back to a point of its source's history. Later changes are delivered again."""
    moved = session.streams.reset(stream, to_version=to_version, to_timestamp=to_timestamp)
    output.result(moved, f"Stream {moved.name} is at version {moved.offset}.")


@click.command("advance-stream")
@click.argument("stream", shell_complete=names_of("stream"))
@click.option("--to-version", type=NUMBER, metavar="N")
@common
def advance_stream_command(session: Session, output: Output, stream: str, to_version: int | None) -> None:
    """Discard unread changes of STREAM, all or up to a version."""
    moved = session.streams.advance(stream, to_version=to_version)
    output.result(moved, f"Stream {moved.name} is at version {moved.offset}.")


@click.command("resolve")
@click.argument("stream", shell_complete=names_of("stream"))
@click.argument("outcome", type=click.Choice(["committed", "aborted"]))
@common
def resolve_command(session: Session, output: Output, stream: str, outcome: str) -> None:
    """Decide the outcome of an open attempt whose target table no longer exists."""
    session.streams.resolve(stream, committed=outcome == "committed")
    output.result({"stream": stream, "outcome": outcome}, f"The open attempt of stream {stream} counts as {outcome}.")


def _start(session: Session, stream: Stream) -> str:
    """Describes where a new stream begins."""
    if stream.source_kind is SourceKind.TABLE:
        return f"starts with the rows that are {'there' if stream.initial else f'written after version {stream.offset}'}"
    count = session.home.catalog.refreshes.file_count(stream.source_id)
    files = counted(count, "file")
    if stream.offset is None:
        return "the volume has not been listed yet, so every file will arrive"
    if stream.initial:
        return f"starts with the {files} that {'is' if count == 1 else 'are'} there"
    return f"starts after {files} (version {stream.offset})"
