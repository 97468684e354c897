"""Streams: cursors over the refreshes of a volume's directory, or over the versions of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from volstream.base.definitions.options import Option
from volstream.base.model.names import Name


class SourceKind(StrEnum):
    """The source of a stream."""

    VOLUME = "volume"
    TABLE = "table"


class StreamMode(StrEnum):
    """The rows that a stream returns: net changes, or inserted rows only."""

    STANDARD = "standard"
    APPEND_ONLY = "append-only"


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """What a user says of a stream, besides its source and its start."""

    mode: Annotated[StreamMode, Option("Net changes, or inserted rows only.", alterable=False)] = StreamMode.STANDARD
    identity: Annotated[
        Sequence[str],
        Option(
            "Columns that identify a table's rows; default: its primary key, or else Delta's row ids.",
            metavar="COLUMN",
            alterable=False,
        ),
    ] = ()
    comment: Annotated[str | None, Option(clause=True)] = None


@dataclass(frozen=True, kw_only=True)
class StreamSpec(StreamOptions):
    """A stream to be created: exactly one source, at most one of the two points in time."""

    name: Name
    volume: Annotated[Name | None, Option("The volume.", names="volume", alterable=False, clause=True)] = None
    table: Annotated[Name | None, Option("The table.", metavar="TABLE", alterable=False, clause=True)] = None
    show_initial_rows: Annotated[bool, Option("Start with the files or rows present.", at_start=True)] = False
    at_version: Annotated[int | None, Option("Start after this version of the source.", at_start=True)] = None
    at_timestamp: Annotated[datetime | None, Option("Start after this time.", at_start=True, clause=True)] = None


@dataclass(frozen=True, kw_only=True)
class Stream(StreamOptions):
    """A stream as the catalog has it.

    Attributes:
        source_id: the volume's id, or the table's name.
        table_id: Delta's id of the table that the offset belongs to; None while the offset is EMPTY.
        offset: refresh or version up to which, inclusively, all changes are consumed; None: EMPTY, before the first.
        began_after: the version at which it was created, whose rows it does not return; None: it began with all.
        identity_ids: ids of the columns of ``identity`` in the table's log, which stay when these are renamed. None: the stream
            is older than these ids.
        initial: until the first committed consumption, the rows present at ``offset`` are returned.
        sequence: number of the last INTENT.
    """

    id: str
    name: Name
    source_kind: SourceKind
    source_id: str
    source_name: Name
    table_id: str | None
    offset: int | None
    initial: bool
    sequence: int
    created_on: datetime
    began_after: int | None = None
    identity_ids: Sequence[str] | None = None
