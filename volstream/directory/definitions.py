"""Making, replacing and dropping connections and volumes. No Spark: a directory table is made by its first refresh."""

from __future__ import annotations

import os
import re
import secrets
import uuid
from datetime import UTC, datetime
from urllib.parse import urlsplit

from volstream.catalog import Catalog
from volstream.errors import AlreadyExistsError, InvalidValueError, NotFoundError, ObjectInUseError
from volstream.model.files import printable
from volstream.model.locations import local_path, scheme_of
from volstream.model.names import Name
from volstream.model.objects import Connection, QueueType, Volume, VolumeSpec
from volstream.model.selection import Selection
from volstream.storage import normalise_location, open_store

_CONNECTION_TYPES = ("local", "oss", "s3")


def create_connection(
    catalog: Catalog,
    name: Name,
    type_: str,
    *,
    region: str | None = None,
    endpoint: str | None = None,
    role_arn: str | None = None,
    credentials: str = "env",
    comment: str | None = None,
    if_not_exists: bool = False,
) -> Connection:
    """Makes a connection, with an external id of its own for the role's trust policy.

    Raises:
        InvalidValueError: an unknown type or credential source.
        AlreadyExistsError: the name is taken.
    """
    existing = catalog.connections.find(name)
    if existing is not None and if_not_exists:
        return existing
    if type_ not in _CONNECTION_TYPES:
        raise InvalidValueError(
            f"{type_!r} is no type of connection.", f"Choose one of {', '.join(_CONNECTION_TYPES)}."
        )
    if not re.fullmatch(r"env|static|profile:.+", credentials):
        raise InvalidValueError(f"{credentials!r} names no credentials.", "Write env, static or profile:NAME.")
    connection = Connection(
        str(uuid.uuid4()), name, type_, region, endpoint, role_arn, secrets.token_urlsafe(18), credentials, comment,
        datetime.now(UTC),
    )  # fmt: skip
    with catalog.database.transaction() as transaction:
        catalog.connections.add(transaction, connection)
    return connection


def create_volume(
    catalog: Catalog, spec: VolumeSpec, *, or_replace: bool = False, if_not_exists: bool = False
) -> Volume:
    """Makes a volume.

    Args:
        or_replace: in the place of one of that name; it is a new volume then, and streams of the old one are stale.

    Raises:
        InvalidValueError: a location, glob or queue that cannot be used; both options at once.
        AlreadyExistsError: the name is taken.
        NotFoundError: no such directory or connection.
    """
    exclusive(or_replace=or_replace, if_not_exists=if_not_exists)
    existing = catalog.volumes.find(spec.name)
    if existing is not None and if_not_exists:
        return existing
    if existing is not None and not or_replace:
        raise AlreadyExistsError(
            f"There is already a volume {spec.name}.", "Use --or-replace or --if-not-exists, or another name."
        )
    location = normalise_location(spec.location)
    _check_reachable(location)
    connection = catalog.connections.get(spec.connection) if spec.connection is not None else None
    for glob in (*spec.patterns, *spec.ignores):
        _check_glob(glob)
    volume = Volume(
        id=str(uuid.uuid4()), name=spec.name, location=location, connection_id=connection.id if connection else None,
        queue_type=_queue_type(spec, location), queue_name=spec.queue_name, virtual_cluster=spec.virtual_cluster,
        recursive=spec.recursive, patterns=tuple(spec.patterns), ignores=tuple(spec.ignores), comment=spec.comment,
        created_on=datetime.now(UTC),
    )  # fmt: skip
    with catalog.database.transaction() as transaction:
        if existing is not None:
            catalog.volumes.remove(transaction, existing)
        catalog.volumes.add(transaction, volume)
    return volume


def drop_connection(catalog: Catalog, name: Name, *, if_exists: bool = False) -> bool:
    """Drops a connection; false where there was none and ``if_exists`` allows it. Raises ObjectInUseError."""
    connection = catalog.connections.find(name) if if_exists else catalog.connections.get(name)
    if connection is None:
        return False
    users = catalog.volumes.list(connection_id=connection.id)
    if users:
        raise ObjectInUseError(f"Volume {users[0].name} uses the connection {name}.", "Drop the volume first.")
    with catalog.database.transaction() as transaction:
        catalog.connections.remove(transaction, connection)
    return True


def drop_volume(catalog: Catalog, name: Name, *, if_exists: bool = False) -> bool:
    """Drops a volume; its streams become stale, its files and its directory table's data stay. False as above."""
    volume = catalog.volumes.find(name) if if_exists else catalog.volumes.get(name)
    if volume is None:
        return False
    with catalog.database.transaction() as transaction:
        catalog.volumes.remove(transaction, volume)
    return True


def exclusive(*, or_replace: bool, if_not_exists: bool) -> None:
    """Raises InvalidValueError where both ways to meet an existing object are asked for."""
    if or_replace and if_not_exists:
        raise InvalidValueError("OR REPLACE and IF NOT EXISTS exclude each other.", "Give one of them.")


def _queue_type(spec: VolumeSpec, location: str) -> QueueType:
    """The queue that was asked for, or what suits the location; raises InvalidValueError where it cannot work there."""
    scheme = urlsplit(location).scheme
    suitable = {
        "file": (QueueType.LOCAL, QueueType.POLL, QueueType.NONE),
        "memory": (QueueType.MEMORY, QueueType.POLL, QueueType.NONE),
    }.get(scheme, (QueueType.SQS, QueueType.MNS, QueueType.POLL, QueueType.NONE))
    chosen = spec.queue_type or suitable[0]
    if chosen not in suitable:
        raise InvalidValueError(
            f"A volume at {scheme}: cannot use the queue type {chosen}.", f"Choose one of {', '.join(suitable)}."
        )
    return chosen


def _check_reachable(location: str) -> None:
    if scheme_of(location) == "file":
        folder = local_path(location)
        if not os.path.isdir(folder):
            what = "is not a directory" if os.path.exists(folder) else "does not exist"
            raise NotFoundError(f"The location {printable(folder)} {what}.", "Make it, or correct the path.")
    open_store(location).head(".volstream-probe")


def _check_glob(glob: str) -> None:
    try:
        Selection(patterns=(glob,)).accepts("a/b")
    except re.error as error:
        raise InvalidValueError(f"The pattern {glob!r} is not a glob: {error}.") from None
    if not glob or glob.startswith("/"):
        raise InvalidValueError(f"The pattern {glob!r} is not a glob.", "Write for example *.jpg or images/**/*.png.")
