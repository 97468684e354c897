"""Volumes: locations whose files are mirrored in directory tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from volstream.base import plugins
from volstream.base.definitions import forms
from volstream.base.definitions.options import Option
from volstream.base.model.names import Name
from volstream.base.model.selection import DEFAULT_IGNORES, Selection
from volstream.base.plugins import Group

#: Names of plug-ins' types of queues: the catalog has room for twenty characters.
_PLUGINS = re.compile(r"[a-z][a-z0-9_-]{0,19}")


class QueueType(StrEnum):
    """The mechanism that notifies a volume of changes: one of these, or a plug-in's by its name."""

    LOCAL = "local"
    POLL = "poll"
    SQS = "sqs"
    MNS = "mns"
    KAFKA = "kafka"
    MEMORY = "memory"
    WEBHOOK = "webhook"
    NONE = "none"

    @classmethod
    def _missing_(cls, value: object) -> QueueType | None:
        """Returns a plug-in's type. Whether it is installed is a question of where the queue is opened."""
        if not isinstance(value, str) or not _PLUGINS.fullmatch(value):
            return None
        other = str.__new__(cls, value)
        other._name_ = other._value_ = value
        return other

    @property
    def is_plugin(self) -> bool:
        """True if it is the name of a plug-in's type."""
        return self not in QueueType.__members__.values()

    @property
    def has_events(self) -> bool:
        """True if single changes are reported; otherwise all changes are found by listings."""
        return self not in (QueueType.POLL, QueueType.NONE)


#: A type of queue, also of a plug-in that is installed here.
_QUEUE_TYPE = forms.words(QueueType, others=lambda: [*filter(_PLUGINS.fullmatch, plugins.names(Group.QUEUES))])

#: The virtual cluster of a volume if the user names none.
DEFAULT_VIRTUAL_CLUSTER = "DEFAULT"


@dataclass(frozen=True, kw_only=True)
class VolumeOptions:
    """What a user says of how a volume is kept, besides its location, connection and queue type."""

    queue_name: Annotated[str | None, Option("The queue, or the topic, that receives the bucket's events.")] = None
    queue_properties: Annotated[
        Mapping[str, str] | None,
        Option(
            "Connection properties; for kafka bootstrap.servers and others of librdkafka. Write secrets as references.",
            form=forms.PROPERTIES,
            single="queue_property",
        ),
    ] = None
    virtual_cluster: Annotated[str, Option("The cluster whose daemon keeps the volume.")] = DEFAULT_VIRTUAL_CLUSTER
    recursive: Annotated[bool, Option("Include sub-directories.", clause=True)] = True
    patterns: Annotated[
        Sequence[str],
        Option("Take only files that match, such as '*.jpg'.", metavar="GLOB", single="pattern", clause=True),
    ] = ()
    ignores: Annotated[
        Sequence[str],
        Option("Ignore files that match, instead of hidden and temporary ones.", metavar="GLOB", single="ignore"),
    ] = DEFAULT_IGNORES
    max_removals: Annotated[
        str | None,
        Option(
            "Hold the removals of a listing beyond this; default: half of 100 files or more, all of 10 or more.",
            metavar="50%|N|all",
            clause=True,
        ),
    ] = None
    inventory: Annotated[
        str | None,
        Option(
            "The folder of the bucket's inventory reports: the daemon reads the newest one instead of listing the bucket.",
            metavar="URI",
        ),
    ] = None
    expect_every: Annotated[
        float | None,
        Option("Report a problem if no file has arrived or changed for this long.", metavar="2h", minimum=1),
    ] = None
    comment: Annotated[str | None, Option(clause=True)] = None


@dataclass(frozen=True, kw_only=True)
class VolumeSpec(VolumeOptions):
    """A volume to be created."""

    name: Name
    location: Annotated[str, Option("A directory, s3://bucket/prefix or oss://bucket/prefix.", alterable=False)]
    connection: Annotated[Name | None, Option("How to reach the bucket.", names="connection")] = None
    queue_type: Annotated[
        QueueType | None,
        Option("Where change events come from; the default suits the location.", form=_QUEUE_TYPE),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Volume(VolumeOptions):
    """A volume as the catalog has it.

    Attributes:
        location: URI.
        table_id: Delta's id of the directory's tail; None until the first refresh creates it.
        refresh_count: number of the newest refresh.
        max_removals: limit for removals by a full listing, in the syntax of :class:`~volstream.base.model.removals.RemovalLimit`;
            None: the default.
        held_removals: rows that the newest full listing found gone, kept until the removals are accepted.
        accept_removals: the removals were accepted: the next full listing may remove what it finds gone.
    """

    id: str
    name: Name
    location: str
    connection_id: str | None
    queue_type: QueueType
    created_on: datetime
    table_id: str | None = None
    refresh_count: int = 0
    last_listing: datetime | None = None
    held_removals: int = 0
    accept_removals: bool = False

    @property
    def definition(self) -> Sequence[object]:
        """The alterable attributes that determine how the volume is kept."""
        return (
            self.connection_id,
            self.queue_type,
            self.queue_name,
            self.queue_properties,
            self.inventory,
            self.selection,
        )

    @property
    def selection(self) -> Selection:
        """The rule for which of the location's paths belong to the volume."""
        return Selection(self.recursive, tuple(self.patterns), tuple(self.ignores))
