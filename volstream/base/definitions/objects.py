"""Connections, volumes, streams, sources, tables and functions: what a user can say of each, and what the
catalog stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from volstream.base.definitions import forms
from volstream.base.definitions.forms import OpenWords, of_plugins
from volstream.base.definitions.options import Option
from volstream.base.model.names import Name
from volstream.base.model.paths import DEFAULT_IGNORES, Selection
from volstream.base.plugins import Group

# The providers of buckets, by name: what is known of them before their code, in ``files.providers``, is
# needed.


class ProviderWords(NamedTuple):
    """Names that belong to a provider.

    Attributes:
        folder: the package with its code, imported when it is needed.
        queue_type: the type of its queues.
        sql_queue_type: that type in SQL as other platforms have it.
        aliases: further schemes of its locations.
    """

    folder: str
    queue_type: str
    sql_queue_type: str
    aliases: tuple[str, ...] = ()


#: By the scheme of its locations, which is also the type of connections to it, and the extra that installs
#: its packages.
PROVIDERS: Mapping[str, ProviderWords] = {
    "az": ProviderWords("volstream.files.providers.azure", "storagequeue", "AZURE_STORAGE_QUEUE", aliases=("abfs", "abfss")),
    "gs": ProviderWords("volstream.files.providers.google", "pubsub", "GCP_PUBSUB"),
    "oss": ProviderWords("volstream.files.providers.alibaba", "mns", "ALICLOUD_MNS"),
    "s3": ProviderWords("volstream.files.providers.aws", "sqs", "AWS_SQS", aliases=("s3a",)),
}


# Connections: how a store is reached, and with which credentials.


class ConnectionType(OpenWords):
    """The kind of a store: local, a provider's, or that of a plug-in's provider by its name."""

    LOCAL = "local"
    vars().update({scheme.upper(): scheme for scheme in PROVIDERS})


#: Also of a plug-in's provider that is installed here.
_TYPE = forms.words(ConnectionType, others=of_plugins(Group.PROVIDERS))


def _endpoint(value: Any) -> str:
    """Reads an endpoint: HTTPS is assumed for a bare host, as in the providers' documentation."""
    text = str(forms.TEXT.read(value))
    return text if "://" in text else f"https://{text}"


_ENDPOINT = forms.form("a URL", "str", _endpoint, metavar="URL")


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """What a user says of a connection. Credentials by reference only: no secret is stored."""

    type: Annotated[ConnectionType, Option("The kind of store.", alterable=False, form=_TYPE)]
    region: Annotated[str | None, Option("The provider's region, such as eu-west-1.")] = None
    endpoint: Annotated[str | None, Option("URL of a compatible store; HTTPS is assumed for a bare host.", form=_ENDPOINT)] = None
    role_arn: Annotated[str | None, Option("The role to assume: an ARN, a service account, a client id.", metavar="ROLE")] = None
    credentials: Annotated[str, Option("Where keys come from.", metavar="env|profile:NAME|static")] = "env"
    comment: Annotated[str | None, Option()] = None


@dataclass(frozen=True, kw_only=True)
class Connection(ConnectionOptions):
    """A connection as the catalog has it.

    Attributes:
        external_id: what the trust policy of its role demands.
    """

    id: str
    name: Name
    external_id: str
    created_on: datetime


# Volumes: locations whose files are mirrored in directory tables.


class QueueType(OpenWords):
    """The mechanism that notifies a volume of changes: one of these, a provider's, or a plug-in's by its
    name."""

    LOCAL = "local"
    POLL = "poll"
    # One of each provider, such as SQS.
    vars().update({words.queue_type.upper(): words.queue_type for words in PROVIDERS.values()})
    KAFKA = "kafka"
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
        max_removals: limit for removals by a full listing, in the syntax of
            :class:`~volstream.base.model.work.RemovalLimit`; None: the default.
        held_removals: rows whose files the newest full listing did not find, kept until their removal is
            accepted.
        accept_removals: the removals were accepted: the next full listing may remove the rows of missing
            files.
        root_id: of a local directory: tells it from another one at its path; as the newest listing found it
            that held nothing.
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
        """True if a directory at the volume's path is another one than the newest listing found. None:
        unknown."""
        return None not in (self.root_id, root_id) and self.root_id != root_id

    @property
    def definition(self) -> Sequence[object]:
        """The alterable attributes that determine how the volume is kept: if one of them changes, its daemon
        begins anew."""
        return (self.connection_id, self.queue_type, self.queue_name, self.queue_properties, self.inventory, self.selection)

    @property
    def selection(self) -> Selection:
        """The rule for which of the location's paths belong to the volume."""
        return Selection(self.recursive, tuple(self.patterns), tuple(self.ignores))


# Streams: cursors over the refreshes of a volume's directory, or over the versions of a table.


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
        offset: refresh or version up to which, inclusively, all changes are consumed; None: EMPTY, before the
            first.
        began_after: the version at which it was created, whose rows it does not return; None: it began with
            all.
        identity_ids: ids of the columns of ``identity`` in the table's log, which stay when these are
            renamed. None: the stream is older than these ids.
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


# Sources: tables that are filled through ``session.source`` or ``session.connector``.


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
        options: what its kind needs besides; of Kafka ``brokers``, ``topic``, ``format`` and ``properties``,
            and once it was read ``topic_id`` and ``tail_id``, which its offsets belong to; of an immutable
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


# Tables that a pipeline's file defines; Delta keeps what the catalog keeps of other objects.


@dataclass(frozen=True, kw_only=True)
class TableDefinition:
    """What a user says of a table."""

    columns: Annotated[str, Option("Its columns: 'id BIGINT NOT NULL, name STRING'.", metavar="DDL")]
    primary_key: Annotated[Sequence[str], Option("Columns that identify a row.", alterable=False)] = ()
    partitioned_by: Annotated[Sequence[str], Option("Columns of its partitions.", alterable=False)] = ()
    properties: Annotated[Mapping[str, str], Option("Properties, such as change_tracking.")] = field(default_factory=dict)


# Python functions on values, which SQL statements call by name.


@dataclass(frozen=True, kw_only=True)
class FunctionDefinition:
    """What a user says of a function."""

    function: Annotated[str, Option("Where its code is.", metavar="FILE.py:FUNC|pkg.mod:FUNC")]
    returns: Annotated[str, Option("The SQL type of its value.", metavar="TYPE")]
    of_items: Annotated[bool, Option("It takes an item of a keyed table as a dict, and returns one; in SQL both are JSON.")] = (
        False
    )
    comment: Annotated[str | None, Option()] = None


@dataclass(frozen=True, kw_only=True)
class Function(FunctionDefinition):
    """A function as the catalog has it: ``function`` is ``/abs/file.py:func`` or ``pkg.mod:func``.

    Attributes:
        search_path: folder from which ``pkg.mod`` is imported if it is not installed; None: installed.
        pickled: a function that no file has (``functions/pickled.py``); ``function`` is then its name.
    """

    id: str
    name: Name
    search_path: str | None
    created_on: datetime
    pickled: bytes | None = field(default=None, repr=False)
