"""Creates, changes and drops volumes and connections. No Spark: the first refresh creates a directory."""

from __future__ import annotations

import itertools
import os
import re
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from volstream.base import privacy
from volstream.base.config import Settings
from volstream.base.definitions import Connection, ConnectionOptions, Job, QueueType, Stream, Volume, VolumeSpec
from volstream.base.definitions.objects import VolumeOptions
from volstream.base.definitions.options import keys
from volstream.base.model.names import Name
from volstream.base.model.paths import FileInfo, Selection, local_path, printable, scheme_of
from volstream.base.model.work import RemovalLimit
from volstream.catalog import Catalog
from volstream.errors import InvalidValueError, NotFoundError, ObjectInUseError, StorageDeniedError
from volstream.files.providers.base import provider_by, provider_of
from volstream.files.queues.base import SelfDescribing
from volstream.files.queues.kafka import address_of
from volstream.files.storage import normalise_location, place_of_reports
from volstream.files.storage.base import PROBE
from volstream.files.volumes.access import queue_of, store_of

#: Maximum number of files examined when counting matches, so that a large bucket does not take long.
_MAX_EXAMINED = 10_000


def create_volume(
    catalog: Catalog,
    settings: Settings,
    spec: VolumeSpec,
    *,
    or_replace: bool = False,
    if_not_exists: bool = False,
    check: bool = True,
) -> Volume:
    """Creates a volume.

    Args:
        check: first contact the directory or bucket, and the queue.
        or_replace: replace an existing volume with the same name. Streams on the old volume become stale.

    Raises:
        InvalidValueError: an invalid location, connection, glob, limit or queue; both options at once.
        AlreadyExistsError: the name is taken.
        ObjectInUseError: a job writes its outputs to the volume to be replaced.
        NotFoundError: no such directory or connection.
        StorageError, QueueError: the bucket or queue does not exist or is unreachable.
        StorageDeniedError: access was denied.
    """
    existing = catalog.volumes.resolve_existing(spec.name, or_replace=or_replace, if_not_exists=if_not_exists)
    if existing is not None and if_not_exists:
        return existing
    if existing is not None and (writers := jobs_into(catalog, existing)):
        raise ObjectInUseError(
            f"Replacing the volume {spec.name} would lose track of the outputs of the job {writers[0].name}.",
            "Change it with ALTER VOLUME, or give the new volume another name.",
        )
    location = normalise_location(spec.location)
    connection = catalog.connections.get(spec.connection) if spec.connection is not None else None
    _check_type(connection, location)
    volume = Volume(
        **{name: getattr(spec, name) for name in keys(VolumeOptions)},
        id=str(uuid.uuid4()),
        name=spec.name,
        location=location,
        connection_id=connection.id if connection else None,
        queue_type=queue_type_of(spec, location),
        created_on=datetime.now(UTC),
    )
    _check_volume(volume, catalog, settings, reachable=check)
    with catalog.database.transaction() as transaction:
        if existing is not None:
            catalog.volumes.remove(transaction, existing, replaced=True)
        catalog.volumes.add(transaction, volume)
    return volume


def alter_volume(catalog: Catalog, settings: Settings, name: Name, *, check: bool = True, **changes: Any) -> Volume:
    """Changes a volume. It keeps its directory, its streams and their offsets.

    The next full listing removes files that the new patterns exclude, and adds files that they include.

    Args:
        check: see :func:`create_volume`.
        changes: attributes of a :class:`VolumeSpec`, except name and location. If the connection is None, the
            environment's credentials apply.

    Raises:
        Like :func:`create_volume`.
    """
    volume = catalog.volumes.get(name)
    connection = catalog.connections.by_id(volume.connection_id) if volume.connection_id else None
    if "connection" in changes:
        new_connection: Name | None = changes.pop("connection")
        connection = None if new_connection is None else catalog.connections.get(new_connection)
        changes["connection_id"] = None if connection is None else connection.id
    _check_type(connection, volume.location)
    if changes.keys() & {"queue_type", "queue_name"}:
        spec = VolumeSpec(
            name=name,
            location=volume.location,
            queue_type=changes.get("queue_type", volume.queue_type),
            queue_name=changes.get("queue_name", volume.queue_name),
        )
        changes["queue_type"] = queue_type_of(spec, volume.location)
        if changes["queue_type"] != volume.queue_type:
            changes.setdefault("queue_properties", None)  # they belong to the old type
    _check_volume(replace(volume, **changes), catalog, settings, reachable=check)
    return catalog.volumes.change(volume, **changes)


def matching(catalog: Catalog, settings: Settings, name: Name) -> tuple[int, int, bool]:
    """Returns how many files belong to a volume, how many were examined, and whether these are all files.

    Examines a limited number of files. Raises NotFoundError, StorageError.
    """
    volume = catalog.volumes.get(name)
    everything = Selection(volume.recursive, (), tuple(volume.ignores))
    listed = store_of(volume, catalog, settings).list("", everything)
    files = [entry for entry in itertools.islice(listed, _MAX_EXAMINED) if isinstance(entry, FileInfo)]
    belonging = sum(volume.selection.accepts(file.relative_path) for file in files)
    return belonging, len(files), next(listed, None) is None


def drop_volume(catalog: Catalog, name: Name, *, if_exists: bool = False) -> bool:
    """Drops a volume. Its streams become stale; its files and directory data stay.

    Returns False if the volume does not exist and ``if_exists`` is set.

    Raises:
        ObjectInUseError: a job processes the volume's files, or writes its outputs there.
    """

    def check(volume: Volume) -> None:
        if users := sorted(str(job.name) for job in jobs_using(catalog, volume)):
            raise ObjectInUseError(
                f"The volume {name} is used by {'job' if len(users) == 1 else 'jobs'} {', '.join(users)}.",
                "Drop what uses it first, or all at once: volstream drop volume NAME --cascade.",
            )

    return catalog.volumes.drop(name, if_exists=if_exists, check=check)


def streams_on(catalog: Catalog, volume: Volume) -> Sequence[Stream]:
    """Returns the streams on a volume's directory."""
    return catalog.streams.list(source_id=volume.id)


def jobs_on(catalog: Catalog, volume: Volume) -> Sequence[Job]:
    """Returns the jobs that consume streams on a volume's directory."""
    ids = {stream.id for stream in streams_on(catalog, volume)}
    return [job for job in catalog.jobs.list() if ids.intersection(job.stream_ids)]


def jobs_into(catalog: Catalog, volume: Volume) -> Sequence[Job]:
    """Returns the jobs that write their outputs to a volume."""
    return catalog.jobs.list(outputs_to=str(volume.name))


def jobs_using(catalog: Catalog, volume: Volume) -> Sequence[Job]:
    """Returns the jobs that consume a volume's directory or write their outputs to it."""
    return list({job.id: job for job in (*jobs_on(catalog, volume), *jobs_into(catalog, volume))}.values())


def queue_type_of(spec: VolumeSpec, location: str) -> QueueType:
    """Returns the requested queue type or the default. Raises InvalidValueError for an unsuitable type."""
    scheme = scheme_of(location)
    provider = provider_of(location)
    without_provider = QueueType.LOCAL if scheme == "file" else QueueType.POLL
    default = without_provider if provider is None else QueueType(provider.queue_type)
    suitable = dict.fromkeys((default, QueueType.KAFKA, QueueType.WEBHOOK, QueueType.POLL, QueueType.NONE))
    named = provider is None or spec.queue_name
    chosen = spec.queue_type or (default if named else QueueType.POLL)
    if chosen not in suitable and not chosen.is_plugin:
        raise InvalidValueError(
            f"A volume at {scheme}: cannot use the queue type {chosen}.", f"Choose one of {', '.join(suitable)}."
        )
    if chosen == default and not named:
        raise InvalidValueError(f"The queue type {chosen} requires a queue name.", "Give its queue_name.")
    if spec.queue_name and "://" in spec.queue_name and "@" in urlsplit(spec.queue_name).netloc:
        # The message does not repeat the URL: it may contain a password.
        raise InvalidValueError(
            "The queue's URL contains a user name or password, which everyone who can read the catalog would see.",
            "Leave it out; the connection determines the keys.",
        )
    if any("sig=" in address.partition("?")[2] for address in (spec.queue_name or "", spec.location)):
        raise InvalidValueError(
            "The address contains a signature, which everyone who can read the catalog would see.",
            "Leave it out; the connection's credentials may be a shared access signature.",
        )
    return chosen


def _check_type(connection: Connection | None, location: str) -> None:
    provider = provider_of(location)
    needed = "local" if provider is None else provider.scheme
    if connection is not None and connection.type != needed:
        raise InvalidValueError(
            f"The connection {connection.name} has the type {connection.type}, but {location} requires the type {needed}.",
            "Use another connection, or none.",
        )


def _check_volume(volume: Volume, catalog: Catalog, settings: Settings, *, reachable: bool) -> None:
    """Checks a volume as :func:`create_volume` documents. With ``reachable``, contacts store and queue."""
    RemovalLimit.parse(volume.max_removals)
    for glob in (*volume.patterns, *volume.ignores):
        _check_glob(glob)
    if volume.inventory is not None:
        place_of_reports(volume.inventory, volume.location)
        if volume.inventory.endswith(".json"):
            raise InvalidValueError(
                f"{volume.inventory} is one report, which never changes.", "Give the folder that contains all reports."
            )
    _check_excludes_home(volume, settings)
    _check_queue(volume)
    if reachable:
        _check_reachable(volume, catalog, settings)


def _check_excludes_home(volume: Volume, settings: Settings) -> None:
    """Raises InvalidValueError if the volume would contain home or warehouse: listings change both."""
    if scheme_of(volume.location) != "file":
        return
    root = os.path.realpath(local_path(volume.location))
    for what, place in (("home", str(settings.home)), ("warehouse", settings.warehouse_path.removeprefix("file://"))):
        inside = os.path.relpath(os.path.realpath(place), root)
        if "://" in place or inside.split(os.sep)[0] == os.pardir:
            continue
        if any(volume.selection.accepts(os.path.normpath(f"{inside}/{name}")) for name in ("catalog.db", "part-0.parquet")):
            raise InvalidValueError(
                f"The volume would contain volstream's {what}, {printable(place)}.",
                f"Choose a folder beside it, or let the volume ignore '{inside}/**'.",
            )


def _check_queue(volume: Volume) -> None:
    """Raises InvalidValueError for properties that the queue or the catalog does not allow."""
    properties = volume.queue_properties or {}
    privacy.check_secrets(properties)
    if volume.queue_type is QueueType.KAFKA:
        address_of(volume.queue_name, properties, volume.id).check()
    elif properties and not volume.queue_type.is_plugin:
        raise InvalidValueError(f"A queue of the type {volume.queue_type} has no properties.", "Leave queue_properties out.")


def _check_reachable(volume: Volume, catalog: Catalog, settings: Settings) -> None:
    """Contacts the directory or bucket, and a provider's queue."""
    if scheme_of(volume.location) == "file":
        folder = local_path(volume.location)
        if not os.path.exists(folder):
            raise NotFoundError(f"The location {printable(folder)} does not exist.", "Create it, or correct the path.")
        if not os.path.isdir(folder):
            parent, name = map(printable, os.path.split(folder))
            raise NotFoundError(
                f"The location {printable(folder)} is not a directory.", f"Give {parent} with the pattern '{name}'."
            )
    try:
        store_of(volume, catalog, settings).head(PROBE)
        queue = queue_of(volume, catalog, settings)
        if isinstance(queue, SelfDescribing):
            queue.describe()
    except StorageDeniedError as error:
        # A connection's policies depend on its volumes, so the volume must exist first.
        remedy = (
            f"{error.remedy} First create the volume without the check (--no-check, in SQL CHECK = FALSE): then "
            "the policies name its bucket and queue."
        )
        raise StorageDeniedError(error.message, remedy) from error


def _check_glob(glob: str) -> None:
    try:
        Selection(patterns=(glob,)).accepts("a/b")
    except re.error as error:
        raise InvalidValueError(f"The pattern {glob!r} is not a glob: {error}.") from None
    if not glob or glob.startswith("/"):
        raise InvalidValueError(f"The pattern {glob!r} is not a glob.", "Write for example *.jpg or images/**/*.png.")


# Creates, changes and drops connections.

#: No path, no query and, above all, no user name or password: the catalog stores no secrets.
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.-]+(:\d+)?/?|https?://\[[0-9a-fA-F:]+\](:\d+)?/?")


_REGION = re.compile(r"[a-z0-9-]+")


def create_connection(catalog: Catalog, name: Name, options: ConnectionOptions, *, if_not_exists: bool = False) -> Connection:
    """Creates a connection with a new external id for the role's trust policy.

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
    _check_connection(connection)
    with catalog.database.transaction() as transaction:
        catalog.connections.add(transaction, connection)
    return connection


def alter_connection(catalog: Catalog, name: Name, **changes: Any) -> Connection:
    """Changes a connection. It keeps its external id, so that the role's trust policy still applies.

    Args:
        changes: options of a connection, except the type.

    Raises:
        Like :func:`create_connection`.
    """
    connection = catalog.connections.get(name)
    _check_connection(replace(connection, **changes))
    return catalog.connections.change(connection, **changes)


def drop_connection(catalog: Catalog, name: Name, *, if_exists: bool = False) -> bool:
    """Drops a connection. Returns False if it is missing and ``if_exists`` is set. Raises
    ObjectInUseError."""

    def check(connection: Connection) -> None:
        if users := catalog.volumes.list(connection_id=connection.id):
            raise ObjectInUseError(f"Volume {users[0].name} uses the connection {name}.", "Drop the volume first.")

    return catalog.connections.drop(name, if_exists=if_exists, check=check)


def _check_connection(connection: Connection) -> None:
    credentials, region, endpoint = connection.credentials, connection.region, connection.endpoint
    provider = provider_by(connection.type)
    sources = ("env", "static", "profile") if provider is None else provider.sources
    if not re.fullmatch(r"env|static|profile:.+", credentials) or credentials.partition(":")[0] not in sources:
        listed = ", ".join("profile:NAME" if source == "profile" else source for source in sources)
        message = f"{credentials!r} is not a credential source of connections of the type {connection.type}."
        raise InvalidValueError(message, f"Use one of {listed}.")
    if region is not None and not _REGION.fullmatch(region):
        raise InvalidValueError(f"{region!r} is not a region.", "Write for example eu-west-1 or cn-hangzhou.")
    if endpoint is not None and not (_ENDPOINT.fullmatch(endpoint) and _has_port(endpoint)):
        # The message does not repeat the endpoint: it may contain a password.
        raise InvalidValueError(
            "The endpoint is not the URL of a server.",
            "Write scheme, host and port alone, such as https://minio.example:9000; leave out a path, also Azurite's account.",
        )
    if connection.role_arn is None:
        return
    if provider is None:
        raise InvalidValueError(f"A connection of the type {connection.type} has no role.", "Leave --role-arn out.")
    if not provider.is_role(connection.role_arn, endpoint):
        message = f"{connection.role_arn!r} is not a role of type {connection.type}."
        raise InvalidValueError(message, f"Write for example {provider.role}.")


def _has_port(endpoint: str) -> bool:
    """True if the URL has a valid port or none."""
    try:
        return urlsplit(endpoint).port != 0
    except ValueError:
        return False
