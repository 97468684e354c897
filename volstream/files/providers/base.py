"""What a provider of buckets is: one folder, with a module for each part.

What does not belong here: what all providers' buckets have in common (``storage.buckets``), and their queues
(``queues.remote``).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from re import Pattern
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

from volstream.base import plugins
from volstream.base.definitions.objects import PROVIDERS
from volstream.base.model.paths import (
    LOOPBACK,
    FileInfo,
    Finding,
    Selection,
    content_type,
    is_utf8,
    printable,
    quote_path,
    scheme_of,
    without_secrets,
)
from volstream.base.model.work import Check, CheckState
from volstream.base.plugins import Group
from volstream.errors import DependencyError, InvalidValueError
from volstream.files.providers.access import Access

if TYPE_CHECKING:
    from pyarrow import fs

    from volstream.base.definitions import Connection
    from volstream.base.model.hints import ObjectHint, Rejection
    from volstream.files.queues.base import EventQueue, QueueSpec
    from volstream.files.storage.base import ObjectStore

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
        unwired: why it cannot be asked where its buckets' notifications go, and what to do instead; None: ``wiring`` asks.
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
    unwired: tuple[str, str] | None = None

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
        if self.unwired is not None:
            return Check("wiring", CheckState.SKIPPED, *self.unwired)
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


# The table of providers.

_ALIASES = {alias: scheme for scheme, words in PROVIDERS.items() for alias in words.aliases}

#: Schemes without a provider, for which no plug-in is looked for.
_NONE = ("file", "hdfs", "viewfs")


def provider_of(location: str) -> Provider | None:
    """Returns the provider of a location; None if it has none, such as a directory. Imports no provider's packages."""
    return provider_by(scheme_of(location))


def provider_by(scheme: str) -> Provider | None:
    """Returns the provider of locations with this scheme, or of connections of this type. See :func:`provider_of`."""
    words = PROVIDERS.get(_ALIASES.get(scheme, scheme))
    if words is not None:
        return cast("Provider", importlib.import_module(words.folder).PROVIDER)
    if scheme in _NONE or not plugins.has(Group.PROVIDERS, scheme):
        return None
    return cast("Provider", plugins.call(Group.PROVIDERS, scheme))


def own() -> Iterator[Provider]:
    """Yields volstream's own providers."""
    return filter(None, map(provider_by, PROVIDERS))


# Rules common to all providers' buckets: mapping of keys to paths, and which keys are files. Pure.

_LOCATION = re.compile(r"([a-z0-9]+)://([^/]+)(?:/(.*))?", re.DOTALL)

#: Maximum length of a key, in UTF-8. OSS allows one byte less.
_MAX_BYTES = 1024

#: Types that stores report for objects uploaded without one.
_UNTOLD = ("binary/octet-stream", "application/octet-stream", None)

_FOLDER = "Its key ends in '/' like a directory's, but it has content; rename it."
_UNASKABLE = "Its key cannot be asked for: a part of it is '.' or '..', or it has characters that the store refuses; rename it."
_NUL = "Its key contains a NUL character, which no path may contain; rename it."


@dataclass(frozen=True)
class BucketPlace:
    """A bucket, or a prefix of it.

    Attributes:
        bucket: its name, by which events mention it.
        authority: what stands for it in URLs: the name, for some providers with the address of its account.
        root: prefix of all keys; empty, or ending in ``/``.
    """

    provider: Provider
    bucket: str
    authority: str
    root: str

    @classmethod
    def of(cls, location: str) -> BucketPlace:
        """Parses a normalised URI; the part after the bucket is taken literally, not percent-decoded.

        Raises:
            InvalidValueError: the bucket name is not valid.
        """
        match = _LOCATION.fullmatch(location)
        provider = provider_of(location)
        found = provider.buckets.fullmatch(match[2]) if match is not None and provider is not None else None
        if match is None or provider is None or found is None:
            raise InvalidValueError(
                f"{without_secrets(location)!r} does not name a bucket.",
                "Write for example s3://my-bucket or s3://my-bucket/some/prefix.",
            )
        return cls(provider, found[found.re.groups and 1], match[2], f"{match[3]}/" if match[3] else "")

    @property
    def scheme(self) -> str:
        """The scheme of its location."""
        return self.provider.scheme

    def key(self, path: str) -> str | None:
        """Returns the key at ``path``, or None if no file can be there."""
        key = self.root + path
        if not path or path.endswith("/") or "\0" in path or not is_utf8(key) or len(key.encode()) > _MAX_BYTES:
            return None
        return key if self._is_askable(key) else None

    def path(self, key: str) -> str:
        """Returns the path of a key in this bucket or prefix."""
        return key[len(self.root) :]

    def url(self, path: str) -> str:
        """Returns the object's URL, percent-encoded."""
        return f"{self.scheme}://{self.authority}/{quote_path(self.root + path)}"

    def name(self, path: str) -> str:
        """Returns the object's name for messages."""
        return printable(f"{self.scheme}://{self.authority}/{self.root}{path}")

    def entry(
        self, key: str, size: int, modified: datetime, etag: str, version_id: str | None = None, *, selection: Selection
    ) -> FileInfo | Finding | None:
        """Returns the listing entry for a key: a file, a finding, or None."""
        path = self.path(key)
        if not path or path.endswith("/"):
            is_folder = size > 0 and selection.may_contain(path.rstrip("/"))
            return Finding(path or key, _FOLDER) if is_folder else None
        if not selection.accepts(path):
            return None
        if not self._is_askable(key):
            return Finding(path, _UNASKABLE)
        return Finding(path, _NUL) if "\0" in path else self.file(path, size, modified, etag, None, version_id)

    def file(
        self, path: str, size: int, modified: datetime, etag: str, said_type: str | None = None, version_id: str | None = None
    ) -> FileInfo:
        """Converts an object to a file.

        Args:
            version_id: None: listings of the store have none.
            modified: truncated to seconds: only some listings, and no HEAD, have fractions.
        """
        type_ = content_type(path) if said_type in _UNTOLD else said_type
        return FileInfo(path, size, modified.replace(microsecond=0), etag.strip('"'), version_id, type_)

    def _is_askable(self, key: str) -> bool:
        unaskable = self.provider.unaskable
        return unaskable is None or unaskable.search(key) is None
