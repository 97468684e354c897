"""Volumes: locations whose files are mirrored in directory tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from volstream.base.definitions import forms
from volstream.base.definitions.options import Option
from volstream.base.definitions.words import OpenWords, of_plugins
from volstream.base.model.names import Name
from volstream.base.model.providers import PROVIDERS
from volstream.base.model.selection import DEFAULT_IGNORES, Selection
from volstream.base.plugins import Group


class QueueType(OpenWords):
    """The mechanism that notifies a volume of changes: one of these, a provider's, or a plug-in's by its name."""

    LOCAL = "local"
    POLL = "poll"
    # One of each provider, such as SQS.
    vars().update({words.queue_type.upper(): words.queue_type for words in PROVIDERS.values()})
    KAFKA = "kafka"
    MEMORY = "memory"
    WEBHOOK = "webhook"
    NONE = "none"

    @property
    def has_events(self) -> bool:
        """True if single changes are reported; otherwise all changes are found by listings."""
        return self not in (QueueType.POLL, QueueType.NONE)


#: A type of queue, also of a plug-in that is installed here.
_QUEUE_TYPE = forms.words(QueueType, others=of_plugins(Group.QUEUES))

#: The virtual cluster of a volume if the user names none.
DEFAULT_VIRTUAL_CLUSTER = "DEFAULT"


@dataclass(frozen=True, kw_only=True)
class VolumeOptions:
    """What a user says of how a volume is kept, besides its location, connection and queue type."""

    queue_name: Annotated[str | None, Option("The queue, or the topic, that receives the bucket's events.", clause=True)] = None
    queue_properties: Annotated[
        Mapping[str, str] | None,
        Option(
            "Connection properties; for kafka bootstrap.servers and others of librdkafka. Write secrets as references.",
            form=forms.PROPERTIES,
            single="queue_property",
            clause=True,
        ),
    ] = None
    virtual_cluster: Annotated[str, Option("The cluster whose daemon keeps the volume.", clause=True)] = DEFAULT_VIRTUAL_CLUSTER
    recursive: Annotated[bool, Option("Include sub-directories.", clause=True)] = True
    patterns: Annotated[
        Sequence[str], Option("Take only files that match, such as '*.jpg'.", metavar="GLOB", single="pattern", clause=True)
    ] = ()
    ignores: Annotated[
        Sequence[str],
        Option("Ignore files that match. Replaces the default: hidden and temporary files.", metavar="GLOB", single="ignore"),
    ] = DEFAULT_IGNORES
    max_removals: Annotated[
        str | None,
        Option(
            "Removals above this limit wait for confirmation. Default: half of at least 100 files, or all of at least 10.",
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
        float | None, Option("Report a problem if no file has arrived or changed for this long.", metavar="2h", minimum=1)
    ] = None
    comment: Annotated[str | None, Option(clause=True)] = None


@dataclass(frozen=True, kw_only=True)
class VolumeSpec(VolumeOptions):
    """A volume to be created."""

    name: Name
    location: Annotated[str, Option("A directory, or a place in a bucket, such as s3://bucket/prefix.", alterable=False)]
    connection: Annotated[Name | None, Option("How to reach the bucket.", names="connection")] = None
    queue_type: Annotated[
        QueueType | None, Option("Where change events come from; the default suits the location.", form=_QUEUE_TYPE)
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
        held_removals: rows whose files the newest full listing did not find, kept until their removal is accepted.
        accept_removals: the removals were accepted: the next full listing may remove the rows of missing files.
        root_id: of a local directory: tells it from another one at its path; as the newest listing found it that held nothing.
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
    root_id: str | None = None

    def is_replaced_by(self, root_id: str | None) -> bool:
        """True if a directory at the volume's path is another one than the newest listing found. None: unknown."""
        return None not in (self.root_id, root_id) and self.root_id != root_id

    @property
    def definition(self) -> Sequence[object]:
        """The alterable attributes that determine how the volume is kept: if one of them changes, its daemon begins anew."""
        return (self.connection_id, self.queue_type, self.queue_name, self.queue_properties, self.inventory, self.selection)

    @property
    def selection(self) -> Selection:
        """The rule for which of the location's paths belong to the volume."""
        return Selection(self.recursive, tuple(self.patterns), tuple(self.ignores))
