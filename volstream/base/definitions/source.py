"""Sources: tables that are filled through ``session.source`` or ``session.connector``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from volstream.base.definitions import forms
from volstream.base.definitions.options import Option
from volstream.base.model.names import Name


class SourceType(StrEnum):
    """What fills a table: events, items by key, uploaded files, or a Kafka topic."""

    EVENTS = "events"
    ITEMS = "items"
    FILES = "files"
    KAFKA = "kafka"


class DefinableSource(StrEnum):
    """The kinds of sources that a pipeline's file can define: others come with their data."""

    EVENTS = "events"
    ITEMS = "items"
    KAFKA = "kafka"


RETENTION = Option("Age at which rows are deleted; without it they are kept.", form=forms.RETENTION)


@dataclass(frozen=True, kw_only=True)
class SourceDefinition:
    """What a user says of a source."""

    kind: Annotated[DefinableSource, Option("What fills it.", alterable=False)]
    retention_policy: Annotated[int | None, RETENTION] = None
    primary_key: Annotated[str | None, Option("The column that identifies an item.", alterable=False)] = None
    brokers: Annotated[Sequence[str], Option("host:port of some brokers of the cluster.", alterable=False)] = ()
    topic: Annotated[str | None, Option("The topic; default: the source's name.", alterable=False)] = None
    format: Annotated[str | None, Option("json, bytes or avro.", alterable=False)] = None
    properties: Annotated[Mapping[str, str], Option("Properties of librdkafka; secrets by reference only.", alterable=False)] = (
        field(default_factory=dict)
    )
    comment: Annotated[str | None, Option()] = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source as the catalog has it.

    Attributes:
        primary_key: column that identifies an item; None: rows are only added.
        retention_policy: seconds: age at which events are deleted; None: never.
        immutable: only whole versions are added.
        options: what its kind needs besides; of Kafka ``brokers``, ``topic``, ``format`` and ``properties``, and
            once it was read ``topic_id`` and ``tail_id``, which its offsets belong to; of an immutable
            table ``versions``, the Delta versions of its own.
    """

    id: str
    name: Name
    kind: SourceType
    primary_key: str | None
    retention_policy: int | None
    immutable: bool
    options: Mapping[str, Any]
    comment: str | None
    created_on: datetime
