"""Access to the stores and queues of volumes: connections combined with the keys in the settings."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from volstream.base.config import Settings
from volstream.base.definitions import Connection, FileJob, Volume
from volstream.base.definitions.job import KEEP
from volstream.base.model.paths import overlap, place_of
from volstream.catalog import Catalog
from volstream.errors import InvalidValueError
from volstream.files.providers.access import Access, Keys
from volstream.files.providers.base import BucketPlace, RequiredAccess, provider_by, provider_of
from volstream.files.queues import open_queue
from volstream.files.queues.base import EventQueue, QueueSettings, QueueSpec
from volstream.files.storage import open_store, place_of_reports
from volstream.files.storage.base import ObjectStore


def access_of(volume: Volume, catalog: Catalog, settings: Settings) -> Access | None:
    """Returns the access to a volume's provider, or None for volumes without one, such as directories.

    Without a connection, the provider's own settings apply.

    Raises:
        InvalidValueError: the connection uses static keys, but the settings lack them.
    """
    connection = catalog.connections.by_id(volume.connection_id) if volume.connection_id else None
    return access_by(connection, volume.location, settings)


def access_by(connection: Connection | None, location: str, settings: Settings) -> Access | None:
    """Returns the access to the provider of a location. See :func:`access_of`."""
    provider = provider_of(location)
    if provider is None:
        return None
    if connection is None:
        return Access(provider.scheme)
    return Access(
        provider.scheme,
        connection.region,
        connection.endpoint,
        connection.role_arn,
        connection.external_id,
        connection.credentials,
        _keys(connection, settings) if connection.credentials == "static" else None,
    )


def store_of(volume: Volume, catalog: Catalog, settings: Settings) -> ObjectStore:
    """Returns the store of a volume's files. Raises like :func:`access_of`."""
    return open_store(volume.location, access_of(volume, catalog, settings))


def queue_of(volume: Volume, catalog: Catalog, settings: Settings) -> EventQueue:
    """Returns the queue that notifies a volume of changes. It is not started. Raises like
    :func:`access_of`."""
    queue_settings = QueueSettings(
        debounce_seconds=settings.debounce_seconds,
        poll_seconds=settings.poll_seconds,
        visibility_seconds=max(60.0, settings.engine_stall_seconds * 2),
        pollers=settings.queue_pollers,
    )
    access = access_of(volume, catalog, settings)
    return open_queue(
        volume.queue_type,
        QueueSpec(
            volume.location, volume.selection, queue_settings, volume.queue_name, access, volume.queue_properties or {}, volume.id
        ),
    )


def job_emptying(catalog: Catalog, volume: Volume) -> FileJob | None:
    """Returns the job that removes a volume's files once it has loaded them."""
    jobs = (job for stream in catalog.streams.list(source_id=volume.id) for job in catalog.jobs.list(stream_id=stream.id))
    return next((job for job in jobs if isinstance(job, FileJob) and job.takes_files), None)


def job_emptying_shared(catalog: Catalog, volume: Volume, own: Collection[str] = ()) -> FileJob | None:
    """Returns a job that removes files of a volume, or of one that shares files with it.

    Args:
        own: ids of streams whose jobs are ignored.
    """
    for job in catalog.jobs.unlike(after_load=KEEP):
        place = None if job.stream_id in own else catalog.volume_of(job)
        if place is not None and shares_files(place, volume):
            assert isinstance(job, FileJob), "other jobs do not remove files"
            return job
    return None


def shares_files(one: Volume, other: Volume) -> bool:
    """True if a file can be in both volumes: their locations are equal, or one contains the other."""
    return overlap(*(place_of(volume.location) for volume in (one, other)))


def policies(connection: Connection, catalog: Catalog) -> dict[str, Any]:
    """Returns policies for the provider: the role's ``trust_policy``, the role's or user's
    ``permission_policy``.

    The permissions cover all volumes that use the connection. Empty for a local connection.
    """
    provider = provider_by(connection.type)
    if provider is None:
        return {}
    needs: list[RequiredAccess] = []
    for volume in catalog.volumes.list(connection_id=connection.id):
        place = BucketPlace.of(volume.location)
        queue = volume.queue_name if volume.queue_type == provider.queue_type else None
        writes = catalog.jobs.first(outputs_to=str(volume.name)) is not None or job_emptying(catalog, volume) is not None
        needs.append(RequiredAccess(place.bucket, place.root, queue, writes))
        if volume.inventory is not None:
            reports = place_of_reports(volume.inventory, volume.location)
            needs.append(RequiredAccess(reports.bucket, reports.root))
    return provider.policies(connection, needs)


def _keys(connection: Connection, settings: Settings) -> Keys:
    keys = settings.credentials.get(str(connection.name))
    if keys is None:
        raise InvalidValueError(
            f"The connection {connection.name} uses static keys, but the settings have none for it.",
            f"Write access_key_id and access_key_secret below [credentials.{connection.name}] in volstream.toml.",
        )
    token = keys.security_token
    return Keys(keys.access_key_id, keys.access_key_secret.get_secret_value(), token.get_secret_value() if token else None)
