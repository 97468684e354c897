"""The catalog's tables. Their columns follow from the fields of the stored objects.

A change, even of a field, needs a migration in ``migrations/versions``; a test compares the two.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar, get_origin, get_type_hints

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.types import TypeEngine

from volstream.base.definitions import Connection, DynamicJob, FileJob, Function, Job, Source, StatementJob, Stream, Volume
from volstream.base.model.names import Name
from volstream.base.model.work import AuditEntry, Batch, Completeness, Failure, Intent, Plan, Refresh

# Converts a home's objects to rows of the catalog and back, by the types of their fields.
#
# A name takes two columns. A word is stored as text, sequences and mappings as JSON. Columns that only apply
# to other classes in the same table are NULL.

T = TypeVar("T")


def to_row(value: Any) -> dict[str, Any]:
    """Returns an object's columns."""
    row: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        attribute = getattr(value, field.name)
        if isinstance(attribute, Name):
            row |= dict(zip(columns_of(field.name), (attribute.schema, attribute.name), strict=True))
        elif isinstance(attribute, Mapping):
            row[field.name] = dict(attribute)
        else:
            row[field.name] = [*map(_as_json, attribute)] if isinstance(attribute, tuple | list) else attribute
    return row


def from_row(cls: type[T], row: Mapping[Any, Any]) -> T:
    """Returns the object for a row."""
    readers = _READERS.get(cls)
    if readers is None:
        readers = _READERS[cls] = _readers(cls)
    return cls(**{name: read(row) for name, read in readers.items()})


_READERS: dict[type[Any], Mapping[str, Callable[[Mapping[Any, Any]], Any]]] = {}


def _readers(cls: type[Any]) -> Mapping[str, Callable[[Mapping[Any, Any]], Any]]:
    hints = typing.get_type_hints(cls)
    return {field.name: _reader(field.name, without_none(hints[field.name])) for field in dataclasses.fields(cls)}


def _reader(name: str, kind: Any) -> Callable[[Mapping[Any, Any]], Any]:
    if kind is Name:
        schema, last = columns_of(name)
        return lambda row: Name(row[schema], row[last])
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return lambda row: None if row[name] is None else kind(row[name])
    if typing.get_origin(kind) is Sequence:
        (item,) = typing.get_args(kind)
        if dataclasses.is_dataclass(item) and isinstance(item, type):
            return lambda row: tuple(item(**value) for value in row[name])
        return lambda row: None if row[name] is None else tuple(row[name])
    return lambda row: row[name]


def _as_json(item: Any) -> Any:
    return dataclasses.asdict(item) if dataclasses.is_dataclass(item) and not isinstance(item, type) else item


def without_none(kind: Any) -> Any:
    """Returns the type without None."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return next(argument for argument in typing.get_args(kind) if argument is not type(None))
    return kind


def columns_of(name: str) -> tuple[str, str]:
    """Returns the columns of a field that holds a name: ``name``, ``into`` or ``source_name``."""
    prefix = name.removesuffix("name").rstrip("_")
    return ("schema_name", "name") if not prefix else (f"{prefix}_schema", f"{prefix}_name")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time. SQLite stores it without the time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True
    python_type = datetime

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Converts to UTC, without the time zone if the database has none."""
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002  # SQLAlchemy's signature
        """Returns an aware time in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Path(TypeDecorator[str]):
    """A path, compared in UTF-8 byte order as in Spark: SQLite's default; collation C in PostgreSQL."""

    impl = Text
    cache_ok = True
    python_type = str

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[str]:
        """Returns the text type, with the collation if the database supports it."""
        return dialect.type_descriptor(Text(collation="C") if dialect.name == "postgresql" else Text())


class EscapedText(TypeDecorator[str]):
    """Text for people, possibly of external origin. Characters that a database cannot store are escaped."""

    impl = Text
    cache_ok = True
    python_type = str

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002  # SQLAlchemy's signature
        """Escapes NUL, which PostgreSQL refuses, and lone surrogates."""
        return None if value is None else writable(value)


def writable(text: str) -> str:
    """Escapes characters that a database cannot store."""
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()


def _revision() -> Column[int]:
    """Returns a column with a number that each UPDATE of a row increases. A recreated row gets another
    number."""
    return Column(
        "revision",
        BigInteger,
        nullable=False,
        default=lambda: secrets.randbits(40),
        onupdate=text("revision + 1"),
        server_default="0",
    )


def digest(text: str) -> str:
    """Returns a fixed-length key for text of any length, because PostgreSQL limits index entries to 2,704
    bytes."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


#: Column types by the types of fields.
_TYPES: Mapping[Any, TypeEngine[Any] | type[TypeEngine[Any]]] = {
    str: Text,
    bool: Boolean,
    int: BigInteger,
    float: Float,
    bytes: LargeBinary,
    datetime: UtcDateTime,
    Name: String(200),
    Sequence: JSON(none_as_null=True),
    Mapping: JSON(none_as_null=True),
}


def _numbered() -> Column[Any]:
    """Returns an auto-increment key."""
    return Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)


def _fields(cls: type[Any], *given: Column[Any], subclasses: Sequence[type[Any]] = ()) -> list[Column[Any]]:
    """Returns columns for the fields of a class, by the fields' types unless given.

    Args:
        subclasses: further classes in the table. Columns of their own fields may be NULL.
    """
    columns = {column.key: column for column in given}
    for class_ in (cls, *subclasses):
        for field, hint in get_type_hints(class_).items():
            kind = without_none(hint)
            if isinstance(kind, type) and issubclass(kind, StrEnum):
                type_: Any = String(20)
            else:
                type_ = String(36) if f"_{field}".endswith("_id") else _TYPES[get_origin(kind) or kind]
            nullable = class_ is not cls or kind is not hint
            for name in columns_of(field) if kind is Name else [field]:
                if name not in columns:
                    columns[name] = Column(name, type_, primary_key=name == "id", nullable=nullable)
    return [*columns.values()]


connections = Table(
    "connections",
    metadata,
    *_fields(Connection, Column("external_id", Text, nullable=False)),
    UniqueConstraint("schema_name", "name"),
)

volumes = Table(
    "volumes",
    metadata,
    _revision(),
    *_fields(
        Volume,
        Column("connection_id", ForeignKey("connections.id")),
        Column("reconciled_on", UtcDateTime, key="last_listing"),
        # Number of rows that the newest full listing would remove, held until confirmed; and the
        # confirmation.
        Column("held_removals", BigInteger, nullable=False, server_default="0"),
        Column("accept_removals", Boolean, nullable=False, server_default=false()),
    ),
    UniqueConstraint("schema_name", "name"),
)

streams = Table(
    "streams",
    metadata,
    # No foreign key: a stream outlives its source and becomes stale.
    *_fields(Stream, Column("source_id", String(401), nullable=False, index=True)),
    UniqueConstraint("schema_name", "name"),
)

jobs = Table(
    "jobs",
    metadata,
    _revision(),
    *_fields(
        Job,
        # A stream serves at most one job; creating one checks that none of the other streams that it reads
        # serves another.
        Column("stream_id", ForeignKey("streams.id"), nullable=False, unique=True),
        Column("cls", String(20), nullable=False),
        Column("fingerprint", String(64)),
        Column("state_reason", EscapedText),
        Column("failed_batches", Integer),
        Column("last_outcome", EscapedText),
        Column("generation", BigInteger, nullable=False, server_default="0"),
        subclasses=[FileJob, StatementJob, DynamicJob],
    ),
    UniqueConstraint("schema_name", "name"),
)

#: One row: the catalog's unique id.
identity = Table("identity", metadata, Column("id", String(36), primary_key=True))

functions = Table("functions", metadata, *_fields(Function), UniqueConstraint("schema_name", "name"))

sources = Table("sources", metadata, *_fields(Source), UniqueConstraint("schema_name", "name"))

definition_versions = Table(
    "definition_versions",
    metadata,
    _numbered(),
    Column("kind", String(20), nullable=False),
    Column("name", String(401), nullable=False),
    Column("object_id", String(36), nullable=False),
    Column("saved_on", UtcDateTime, nullable=False),
    Column("saved_by", EscapedText, nullable=False),
    Column("definition", JSON(none_as_null=True)),
    Column("pickled", LargeBinary),
    Index("ix_definition_versions_name", "kind", "name", "id"),
    Index("ix_definition_versions_object", "object_id", "id"),
)

refreshes = Table(
    "refreshes",
    metadata,
    *_fields(
        Refresh,
        Column("volume_id", ForeignKey("volumes.id"), primary_key=True),
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("cause", EscapedText, nullable=False),
    ),
)

volume_totals = Table(
    "volume_totals",
    metadata,
    # Sums over all refreshes, including those deleted from history.
    Column("volume_id", ForeignKey("volumes.id"), primary_key=True),
    Column("files", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)

job_totals = Table(
    "job_totals",
    metadata,
    # Sums over all committed batches, including those deleted from history.
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("batches", BigInteger, nullable=False),
    Column("succeeded", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)

job_counts = Table(
    "job_counts",
    metadata,
    # Sums of what a job's function counted, by day in UTC.
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("day", Date, primary_key=True),
    Column("number", Float, nullable=False),
)

plans = Table(
    "plans",
    metadata,
    *_fields(
        Plan,
        # NULL: the stream was consumed by a statement without a job.
        Column("job_id", ForeignKey("jobs.id"), index=True),
        Column("stream_id", String(36), nullable=False, index=True),
    ),
    # Few are open, whatever the total.
    Index("ix_plans_state_stream", "state", "stream_id"),
    Index("ix_plans_state_created", "state", "created_on"),
)

batches = Table(
    "batches",
    metadata,
    *_fields(
        Batch,
        Column("plan_id", ForeignKey("plans.id"), nullable=False),
        Column("job_id", ForeignKey("jobs.id")),
        Column("number", Integer, nullable=False),
        Column("after_path", Path),
        Column("until_path", Path),
        Column("attempts", Integer, nullable=False),
    ),
    UniqueConstraint("plan_id", "number"),
    Index("ix_batches_job_committed", "job_id", "committed_on"),
    Index("ix_batches_job_created", "job_id", "created_on", "number", "id"),
    Index("ix_batches_job_state", "job_id", "state"),
    Index("ix_batches_plan_state", "plan_id", "state", "number"),
    Index("ix_batches_stream", "stream_id"),
)

code_versions = Table(
    "code_versions",
    metadata,
    Column("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("digest", String(64), nullable=False),
    Column("function", Text, nullable=False),
    Column("arguments", JSON, nullable=False),
    Column("returns", Text, nullable=False),
    Column("environment", Text),
    Column("source", JSON(none_as_null=True)),
    Column("made_by", Text, nullable=False),
    Column("made_on", UtcDateTime, nullable=False),
    UniqueConstraint("job_id", "digest"),
)

forgotten_batches = Table(
    "forgotten_batches",
    metadata,
    # Batches deleted from history whose rows may live.
    Column("id", String(36), primary_key=True),
    Column("job_id", ForeignKey("jobs.id"), nullable=False, index=True),
    Column("code", BigInteger, nullable=False),
    Column("carried", JSON(none_as_null=True)),
)

intents = Table(
    "intents",
    metadata,
    *_fields(
        Intent,
        # The number is used up whatever the attempt's outcome: one row forever.
        Column("stream_id", String(36), primary_key=True),
        Column("sequence", BigInteger, primary_key=True, autoincrement=False),
        Column("batch_id", ForeignKey("batches.id"), nullable=False, index=True),
        # An attempt that consumes several streams has a row for each; one of them provides the number for the
        # marker.
        Column("attempt", String(36), nullable=False, index=True),
        Column("state", String(20), nullable=False),
        Column("ended_on", UtcDateTime),
    ),
    Index("ix_intents_stream_state", "stream_id", "state"),
)

failures = Table(
    "failures",
    metadata,
    *_fields(
        Failure,
        _numbered(),
        Column("job_id", ForeignKey("jobs.id"), nullable=False),
        Column("path", Path, nullable=False),
        Column("path_digest", String(64), nullable=False, server_default=""),
        Column("message", EscapedText, nullable=False),
        Column("traceback", EscapedText),
        Column("attempts", Integer, nullable=False),
        Column("attempt", String(36), nullable=False, index=True),
    ),
    Index("ix_failures_job_digest", "job_id", "path_digest"),
    Index("ix_failures_due", "job_id", "state", "next_try"),
)

reconciles = Table(
    "reconciles",
    metadata,
    # The newest full listings and their results.
    *_fields(
        Completeness,
        Column("volume_id", ForeignKey("volumes.id"), primary_key=True),
        Column("began_on", UtcDateTime, primary_key=True),
        Column("missing", BigInteger, key="added_by_listing", nullable=False),
        Column("changed", BigInteger, key="changed_by_listing", nullable=False),
        Column("phantom", BigInteger, key="removed_by_listing", nullable=False),
        Column("late", BigInteger, key="late_events", nullable=False),
    ),
)

key_checks = Table(
    "key_checks",
    metadata,
    # Keys that a job found missing or changed, to be checked again by the volume's writer.
    Column("volume_id", ForeignKey("volumes.id"), primary_key=True),
    Column("path_digest", String(64), primary_key=True),
    Column("path", Path, nullable=False),
    Column("asked_on", UtcDateTime, nullable=False),
)

rejected = Table(
    "rejected_messages",
    metadata,
    _numbered(),
    Column("volume_id", ForeignKey("volumes.id"), nullable=False),
    # Digest of subject and reason.
    Column("digest", String(64), nullable=False, server_default=""),
    Column("subject", EscapedText, nullable=False),
    Column("reason", EscapedText, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("first_seen", UtcDateTime, nullable=False),
    Column("last_seen", UtcDateTime, nullable=False),
    Index("ix_rejected_volume_digest", "volume_id", "digest", unique=True),
    Index("ix_rejected_volume_seen", "volume_id", "last_seen"),
)

tails = Table("tails", metadata, Column("name", String(500), primary_key=True), Column("location", Text, nullable=False))

outputs = Table(
    "outputs",
    metadata,
    # No foreign keys: the files stay when their job is dropped, and so do the rows that name them.
    _numbered(),
    Column("table_name", String(401), nullable=False),
    Column("volume_id", String(36), nullable=False),
    Column("path", Path, nullable=False),
    Column("path_digest", String(64), nullable=False),
    Column("source", Path, nullable=False),
    Column("source_digest", String(64), nullable=False),
    Column("attempt", String(36), nullable=False, index=True),
    Column("state", String(20), nullable=False),
    # The open attempt that replaces the rows that name it.
    Column("replaced_by", String(36), index=True),
    Column("staged", Text),
    Column("size", BigInteger, nullable=False),
    Column("etag", Text, nullable=False),
    Index("ix_outputs_table_source", "table_name", "source_digest"),
    Index("ix_outputs_table_state", "table_name", "state"),
    Index("ix_outputs_volume_path", "volume_id", "path_digest"),
)

conditions = Table(
    "conditions",
    metadata,
    # Current problems, until a success clears them.
    Column("about", String(20), primary_key=True),
    Column("subject", String(500), primary_key=True),
    Column("since", UtcDateTime, nullable=False),
    Column("cause", EscapedText, nullable=False),
)

links = Table("links", metadata, Column("name", String(500), primary_key=True), Column("location", Text, nullable=False))

registrations = Table(
    "registrations",
    metadata,
    Column("metastore", String(200), primary_key=True),
    Column("name", String(500), primary_key=True),
    Column("location", Text, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    *_fields(
        AuditEntry,
        _numbered(),
        Column("action", String(40), nullable=False),
        Column("object", EscapedText, nullable=False),
        Column("who", String(200), nullable=False),
        Column("cluster", String(200)),
        Column("cancelled", Boolean, nullable=False, server_default=false()),
        Column("step", EscapedText),
        Column("attempts", Integer, nullable=False, server_default="0"),
        Column("result", EscapedText),
        Column("error", String(100)),
        Column("remedy", EscapedText),
        # What a task found, for its page.
        Column("outcome", JSON(none_as_null=True)),
    ),
    Index("ix_audit_began", "began_on"),
    Index("ix_audit_open", "cluster", "ended_on"),
)

alert_causes = Table(
    "alert_causes",
    metadata,
    # Causes of alerts while they last, and the last failures seen.
    Column("key", String(200), primary_key=True),
    Column("since", UtcDateTime, nullable=False),
    Column("alerted_on", UtcDateTime),
    Column("count", BigInteger, nullable=False),
    Column("note", EscapedText, nullable=False),
)

alerts = Table(
    "alerts",
    metadata,
    # Alerts that wait for delivery.
    _numbered(),
    Column("receiver", String(200), nullable=False),
    Column("payload", JSON, nullable=False),
    Column("created_on", UtcDateTime, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", EscapedText),
    Index("ix_alerts_receiver", "receiver", "attempts", "id"),
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("expires", Float, nullable=False),
)
