"""Maintenance of tables by SQL that could remove unconsumed data of streams."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from volstream.delta import folders
from volstream.delta.log import DeltaLog, retention
from volstream.errors import InvalidStateError
from volstream.model.objects import SourceKind
from volstream.sql import names

if TYPE_CHECKING:
    from volstream.home import Home


def check_vacuum(home: Home, statement: str, words: list[str]) -> None:
    """Refuses a VACUUM that would remove files needed for the unconsumed changes of a stream.

    Raises:
        InvalidStateError: it would remove such files; the message names the stream and the remedy.
    """
    tokens = names.tokenize(statement)
    position = 2 if words[1:2] == ["TABLE"] else 1
    if position >= len(tokens):
        return
    named = names.reference_at(statement, tokens, position)
    if named is None:
        return
    log = DeltaLog(folders.table_location(home.warehouse, named.name))
    schema = log.schema()
    if schema is None:
        return
    kept = retention(schema.properties)
    if "RETAIN" in words[:-1]:
        kept = timedelta(hours=float(words[words.index("RETAIN") + 1]))
    horizon = datetime.now(UTC) - kept
    for stream in home.catalog.streams.list(source_id=str(named.name)):
        if stream.source_kind is not SourceKind.TABLE or stream.offset is None:
            continue
        first = log.first_change_after(stream.offset)
        if first is not None and first.timestamp <= horizon:
            raise InvalidStateError(
                f"VACUUM would remove files that the stream {stream.name} has not consumed yet: "
                f"its changes begin at {first.timestamp:%F %T} UTC.",
                f"Consume it first, discard its changes (volstream advance-stream {stream.name}), or RETAIN more hours.",
            )
