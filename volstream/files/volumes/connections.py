"""Creates, changes and drops connections."""

from __future__ import annotations

import re
import secrets
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from volstream.base.definitions import Connection, ConnectionOptions
from volstream.base.model.names import Name
from volstream.catalog import Catalog
from volstream.errors import InvalidValueError, ObjectInUseError
from volstream.files.providers import provider_by

#: No path, no query and, above all, no user or password, because the catalog stores no secrets.
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.-]+(:\d+)?/?|https?://\[[0-9a-fA-F:]+\](:\d+)?/?")


_REGION = re.compile(r"[a-z0-9-]+")


def create_connection(catalog: Catalog, name: Name, options: ConnectionOptions, *, if_not_exists: bool = False) -> Connection:
    """Creates a connection, with its own external id for the role's trust policy.

    Raises:
        InvalidValueError: an unknown credential source; an invalid region, endpoint or role.
        AlreadyExistsError: the name is taken.
    """
    existing = catalog.connections.find(name)
    if existing is not None and if_not_exists:
        return existing
    connection = Connection(
        **vars(options), id=str(uuid.uuid4()), name=name, external_id=secrets.token_urlsafe(18), created_on=datetime.now(UTC)
    )
    _check(connection)
    with catalog.database.transaction() as transaction:
        catalog.connections.add(transaction, connection)
    return connection


def alter_connection(catalog: Catalog, name: Name, **changes: Any) -> Connection:
    """Changes a connection, which keeps its external id, so that the role's trust policy still applies.

    Args:
        changes: options of a connection, except the type.

    Raises:
        As :func:`create_connection`.
    """
    connection = catalog.connections.get(name)
    _check(replace(connection, **changes))
    return catalog.connections.change(connection, **changes)


def drop_connection(catalog: Catalog, name: Name, *, if_exists: bool = False) -> bool:
    """Drops a connection; returns False if it does not exist and ``if_exists`` is set. Raises ObjectInUseError."""
    connection = catalog.connections.find(name) if if_exists else catalog.connections.get(name)
    if connection is None:
        return False
    users = catalog.volumes.list(connection_id=connection.id)
    if users:
        raise ObjectInUseError(f"Volume {users[0].name} uses the connection {name}.", "Drop the volume first.")
    with catalog.database.transaction() as transaction:
        catalog.connections.remove(transaction, connection)
    return True


def _check(connection: Connection) -> None:
    credentials, region, endpoint = connection.credentials, connection.region, connection.endpoint
    provider = provider_by(connection.type)
    sources = ("env", "static", "profile") if provider is None else provider.sources
    if not re.fullmatch(r"env|static|profile:.+", credentials) or credentials.partition(":")[0] not in sources:
        listed = ", ".join("profile:NAME" if source == "profile" else source for source in sources)
        said = f"{credentials!r} is not a credential source of connections of the type {connection.type}."
        raise InvalidValueError(said, f"Use one of {listed}.")
    if region is not None and not _REGION.fullmatch(region):
        raise InvalidValueError(f"{region!r} is not a region.", "Write for example eu-west-1 or cn-hangzhou.")
    if endpoint is not None and not (_ENDPOINT.fullmatch(endpoint) and _has_port(endpoint)):
        # Does not repeat the endpoint, which may contain a password.
        raise InvalidValueError("The endpoint is not the URL of a server.", "Write for example https://minio.example:9000.")
    if connection.role_arn is None:
        return
    if provider is None:
        raise InvalidValueError(f"A connection of the type {connection.type} has no role.", "Leave --role-arn out.")
    if not provider.is_role(connection.role_arn, endpoint):
        said = f"{connection.role_arn!r} is not a role of type {connection.type}."
        raise InvalidValueError(said, f"Write for example {provider.role}.")


def _has_port(endpoint: str) -> bool:
    """True if the URL has no port or a valid one."""
    try:
        return urlsplit(endpoint).port != 0
    except ValueError:
        return False
