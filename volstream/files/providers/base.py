"""What a provider of buckets is: one folder, with a module for each part.

What does not belong here: what all providers' buckets have in common (``storage.bucket_store``), and their queues
(``queues.remote``).
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from re import Pattern
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

from volstream.base.definitions.objects import PROVIDERS
from volstream.base.model.paths import LOOPBACK
from volstream.errors import DependencyError, StorageError

if TYPE_CHECKING:
    from pyarrow import fs

    from volstream.base.definitions import Connection
    from volstream.base.model.hints import ObjectHint, Rejection
    from volstream.base.model.work import Check
    from volstream.files.queues.base import EventQueue, QueueSpec
    from volstream.files.storage.base import ObjectStore
    from volstream.files.storage.buckets import BucketPlace

# Access to a provider, as values: the contents of a connection, and the keys that the settings hold for it.


@dataclass(frozen=True)
class Keys:
    """Keys that sign requests. The secrets are not in the repr.

    Attributes:
        token: of temporary keys; None: the keys are long-lived, and must not leave this process.
        expires: expiry of temporary keys, if known.
    """

    id: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    expires: datetime | None = None


#: Stores accept signatures of clocks that are this far behind.
_SKEW = timedelta(minutes=15)


@dataclass(frozen=True)
class DayKeys:
    """Keys for tasks that sign requests to one service in one region, on certain days, and cannot be turned into the secret.

    Version 4 of Amazon's signature, and Alibaba's, uses a key derived from the secret, the day (UTC), the region and the service.

    Attributes:
        days: signing keys by day, as ``20260131``.
    """

    id: str
    days: tuple[tuple[str, bytes], ...] = field(repr=False)

    @classmethod
    def of(cls, keys: Keys, version: str, region: str, service: str, request: str) -> DayKeys:
        """Derives the keys of today and tomorrow, by any clock that is nearly right.

        Args:
            version, request: words of the provider: what stands before the secret, and the last part of the scope.
        """
        now = datetime.now(UTC)
        days = {f"{now + more:%Y%m%d}" for more in (-_SKEW, timedelta(), timedelta(days=1))}
        return cls(keys.id, tuple((day, _derived(version + keys.secret, day, region, service, request)) for day in sorted(days)))

    def key(self, moment: str) -> bytes:
        """Returns the key for a moment, as ``20260131T...``. Raises StorageError if there is none."""
        for day, key in self.days:
            if moment.startswith(day):
                return key
        raise StorageError("The keys of this task have expired.", "The next run receives new ones.")


def _derived(secret: str, *scope: str) -> bytes:
    key = secret.encode()
    for part in scope:
        key = hmac.digest(key, part.encode(), hashlib.sha256)
    return key


@dataclass(frozen=True)
class Access:
    """The location of a provider's services, and the identity that is used with them.

    Attributes:
        provider: the scheme of its locations.
        region: None: taken from the provider's own settings (environment, profile, instance).
        endpoint: URL of the store; None: the provider's own. An S3-compatible server is expected to serve queues
            given by name, and STS if there is a role, at the same URL.
        role_arn: the role to assume; None: the credentials are used directly.
        external_id: sent when the role is assumed.
        credentials: ``env`` (environment, then instance), ``profile:NAME``, or ``static``.
        keys: the keys of ``static``.
        days: in a task: the keys of ``static``, instead of ``keys``.
    """

    provider: str
    region: str | None = None
    endpoint: str | None = None
    role_arn: str | None = None
    external_id: str | None = None
    credentials: str = "env"
    keys: Keys | None = None
    days: DayKeys | None = None


#: A part of a key that is ``.`` or ``..``.
DOTS = r"(?:^|/)\.\.?(?:/|$)"

#: What helps against a refusal, and against a missing bucket.
ALLOW = "Allow it: `volstream describe connection NAME` prints the policies."
NO_BUCKET = "Create the bucket, or correct its name; until then its files are kept as they were."

#: What reading an answer raises that lacks values or is not the provider's, such as a page of a proxy.
UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, SyntaxError)


def unreadable(what: str, error: Exception) -> str:
    """Returns the message for one of :data:`UNREADABLE`."""
    if isinstance(error, KeyError):
        return f"{what}: the answer has no {error.args[0]}."
    return f"{what}: the answer cannot be read ({type(error).__name__}: {without_queries(error)})."


def is_private(url: str) -> bool:
    """True if the connection to a server is encrypted, or does not leave this host."""
    place = urlsplit(url)
    return place.scheme == "https" or place.hostname in LOOPBACK


def without_queries(error: object) -> str:
    """Returns what an error says, without the queries of the addresses in it, which may sign requests."""
    return re.sub(r"\?[^\s'\")>]+", "?...", str(error))


@dataclass(frozen=True)
class RequiredAccess:
    """The access that one volume needs.

    Attributes:
        root: prefix of all its keys; empty, or ending in ``/``.
        queue: name or URL of its queue at the provider, or None.
        writes: jobs write outputs to it.
    """

    bucket: str
    root: str
    queue: str | None = None
    writes: bool = False


class TableStore(Protocol):
    """What Delta tables in a provider's buckets need, besides deltalake. ``options`` are those of deltalake for the store."""

    def filesystem(self, options: Mapping[str, str]) -> fs.FileSystem:
        """Returns pyarrow's filesystem of the store, whose paths begin with the bucket."""

    def can_create(self, location: str, options: Mapping[str, str]) -> bool:
        """True if :meth:`create_file` is possible below a location; False if a package for it is missing.

        Raises:
            InvalidStateError: the store would overwrite, so that nothing may be committed to it.
            DependencyError: the store cannot be asked.
        """

    def create_file(self, location: str, options: Mapping[str, str], content: bytes) -> bool:
        """Writes a small file unless it exists; returns False if another one is there. Raises DependencyError."""


class Engine(Protocol):
    """What Spark needs for tables in a provider's buckets.

    Attributes:
        JARS: SHA-256 of jars by their coordinates at Maven Central, ``organisation:artifact:revision``.
    """

    JARS: Mapping[str, str]

    def spark_settings(self, options: Mapping[str, str]) -> dict[str, str]:
        """Returns Spark's settings for options of deltalake; they may contain secrets."""


@dataclass(frozen=True)
class Provider:
    """A provider of buckets. Its folder has a module for each part, and in it a function for each of the methods below.

    A part is imported when it is needed, so that only its users need the provider's packages: without them it raises
    :class:`~volstream.errors.DependencyError`. ``events`` and ``policies`` are pure, and need no package.

    Attributes:
        folder: the package that has the parts.
        scheme: of its locations; also the type of its connections, and volstream's extra with its packages.
        queue_type: the type of its queues.
        package: the package that workers need for its stores.
        buckets: pattern of what stands for a bucket in locations. Its first group, if it has one, is the bucket's name.
        role: an example of a role's name.
        sources: where its credentials can come from.
        keeps_tables: whether Delta tables can be in its buckets; if so, the folder has ``tables`` and ``engine``, too.
        writes_reports: whether it writes inventory reports in the form of S3's and OSS's.
        unaskable: found in keys that cannot be asked for, such as those with a part ``.`` or ``..``, which packages resolve like
            paths: no file has one. None: there are none.
    """

    folder: str
    scheme: str
    queue_type: str
    package: str
    buckets: Pattern[str]
    role: str
    sources: tuple[str, ...] = ("env", "static", "profile")
    writes_reports: bool = True
    unaskable: Pattern[str] | None = None
    keeps_tables: bool = False

    @property
    def tables(self) -> TableStore | None:
        """``tables``: how Delta tables are kept in its buckets; None: they cannot be."""
        return cast("TableStore", self._part("tables")) if self.keeps_tables else None

    @property
    def engine(self) -> Engine | None:
        """``engine``: what Spark needs for these tables; None: there cannot be any."""
        return cast("Engine", self._part("engine")) if self.keeps_tables else None

    def open_store(self, location: str, access: Access) -> ObjectStore:
        """``store``: returns the store of a bucket or a part of it. Does no I/O."""
        return cast("ObjectStore", self._part("store").open_store(location, access))

    def open_queue(self, spec: QueueSpec) -> EventQueue:
        """``queue``: returns a queue of a spec with a name and access; no I/O before ``start``. Raises InvalidValueError."""
        return cast("EventQueue", self._part("queue").open_queue(spec))

    def hints_of(self, event: Any) -> Sequence[ObjectHint] | Rejection | None:
        """``events``: returns the hints of an event that was posted as JSON; None: it is not one of this provider's."""
        return cast("Sequence[ObjectHint] | Rejection | None", self._part("events").hints_of(event))

    def for_tasks(self, access: Access, location: str) -> Access:
        """``credentials``: returns the access for a task at a location, without long-lived keys: with those of the role,
        temporary ones, or keys that sign for a day or two. Raises StorageError, StorageDeniedError."""
        return cast("Access", self._part("credentials").for_tasks(access, location))

    def is_role(self, name: str, endpoint: str | None) -> bool:
        """``policies``: returns whether a role may have this name, at the provider or at a compatible endpoint."""
        return bool(self._part("policies").is_role(name, endpoint))

    def policies(self, connection: Connection, needs: Sequence[RequiredAccess]) -> dict[str, Any]:
        """``policies``: returns the policy of who may assume the role, and the permissions of the role, or of the user if there
        is no role; for a bucket yet to be named if nothing is needed."""
        part, role = self._part("policies"), connection.role_arn
        return {
            "trust_policy": part.trust_policy(connection.external_id, role),
            "permission_policy": part.permission_policy(needs, connection.region, role),
        }

    def check_wiring(self, access: Access, place: BucketPlace, queue: str) -> Check:
        """``wiring``: checks that a bucket reports changes of all keys at a place to a queue, given by name or URL."""
        return cast("Check", self._part("wiring").check_wiring(access, place, queue))

    def _part(self, name: str) -> Any:
        try:
            return importlib.import_module(f"{self.folder}.{name}")
        except ModuleNotFoundError as exc:
            wanted = f"'volstream[{self.scheme}]'" if self.scheme in PROVIDERS else exc.name
            raise DependencyError(
                f"{self.scheme}:// needs the package {exc.name}, which is not installed.", f"Install it: pip install {wanted}."
            ) from None


# What the policies of all providers have in common. Pure.

#: Placeholder for the account of volstream's keys, which only its owner knows.
ACCOUNT = "ACCOUNT_ID"

#: Placeholder for a bucket while there is no volume.
_ANY_BUCKET = "BUCKET"


def by_bucket(needs: Sequence[RequiredAccess]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields each bucket, with the prefixes that are read and those that are written; neither is below another one."""
    needs = needs or [RequiredAccess(_ANY_BUCKET, "")]
    for bucket in sorted({need.bucket for need in needs}):
        here = [need for need in needs if need.bucket == bucket]
        yield bucket, _outermost(need.root for need in here), _outermost(need.root for need in here if need.writes)


def allowed(actions: Sequence[str], resources: Sequence[str], condition: Any = None) -> dict[str, Any]:
    """Returns a statement that allows these actions."""
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": list(resources)}
    return statement if condition is None else {**statement, "Condition": condition}


def queues_of(needs: Sequence[RequiredAccess]) -> list[str]:
    """Returns the names or URLs of the queues."""
    return sorted({need.queue for need in needs if need.queue})


def last_part(queue: str) -> str:
    """Returns the name of a queue given by name or URL."""
    return queue.rstrip("/").rpartition("/")[2]


def account_of(role: str | None, position: int) -> str:
    """Returns the part of a role's name that is its account; ``*`` without a role."""
    return (role.split(":")[position] if role else "") or "*"


def _outermost(roots: Iterable[str]) -> list[str]:
    kept: list[str] = []
    for root in sorted(set(roots)):
        if not any(root.startswith(outer) for outer in kept):
            kept.append(root)
    return kept
