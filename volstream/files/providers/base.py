"""A provider of buckets: a folder with a module for each part.

Not here: code shared by all providers' buckets (``storage.buckets``) and queues (``queues.remote``).
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

#: Matches a ``.`` or ``..`` between slashes in a key.
DOTS = r"(?:^|/)\.\.?(?:/|$)"

#: Remedies for a refused request and for a missing bucket.
ALLOW = "Allow it: `volstream describe connection NAME` prints the policies."
NO_BUCKET = "Create the bucket, or correct its name; until then its files are kept as they were."

#: Errors from parsing a response that lacks values or is not the provider's, such as a proxy's page.
UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, SyntaxError)


def unreadable(what: str, error: Exception) -> str:
    """Returns the message for one of :data:`UNREADABLE`."""
    if isinstance(error, KeyError):
        return f"{what}: the answer has no {error.args[0]}."
    return f"{what}: the answer cannot be read ({type(error).__name__}: {without_queries(error)})."


def is_private(url: str) -> bool:
    """True if the connection to a server is encrypted or stays on this host."""
    place = urlsplit(url)
    return place.scheme == "https" or place.hostname in LOOPBACK


def without_queries(error: object) -> str:
    """Returns an error's message without the queries of its URLs, which may contain signatures."""
    return re.sub(r"\?[^\s'\")>]+", "?...", str(error))


@dataclass(frozen=True)
class RequiredAccess:
    """The access that a volume needs.

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
    """What Delta tables in buckets need besides deltalake. ``options`` are deltalake's for the store."""

    def filesystem(self, options: Mapping[str, str]) -> fs.FileSystem:
        """Returns pyarrow's filesystem of the store, whose paths begin with the bucket."""

    def can_create(self, location: str, options: Mapping[str, str]) -> bool:
        """True if :meth:`create_file` works below a location. False if a package is missing.

        Raises:
            InvalidStateError: the store would overwrite files, so commits to it are unsafe.
            DependencyError: the store is unreachable.
        """

    def create_file(self, location: str, options: Mapping[str, str], content: bytes) -> bool:
        """Writes a small file. Returns False if another file exists there. Raises DependencyError."""


class Engine(Protocol):
    """What Spark needs for tables in a provider's buckets.

    Attributes:
        JARS: SHA-256 of jars, by Maven Central coordinates (``organisation:artifact:revision``).
    """

    JARS: Mapping[str, str]

    def spark_settings(self, options: Mapping[str, str]) -> dict[str, str]:
        """Returns Spark's settings for deltalake's options. They may contain secrets."""


@dataclass(frozen=True)
class Provider:
    """A provider of buckets. Its folder has a module for each part, with a function for each method below.

    Parts are imported on demand, so that only their users need the provider's packages. Without a package,
    the methods raise :class:`~volstream.errors.DependencyError`. ``events`` and ``policies`` are pure and
    need no packages.

    Attributes:
        folder: the package with the parts.
        scheme: of its locations. Also the type of its connections, and the name of volstream's extra with its
            packages.
        queue_type: the type of its queues.
        package: the package that workers need for its stores.
        buckets: pattern of the part of a location that names the bucket. Its first group, if any, is the
            bucket's name.
        role: an example of a role's name.
        sources: possible sources of credentials.
        keeps_tables: True if its buckets can have Delta tables. Then the folder also has ``tables`` and
            ``engine``.
        writes_reports: True if it writes inventory reports in the format of S3 and OSS.
        unaskable: matches keys that cannot be requested, for example with a part ``.`` or ``..``, which
            packages resolve like paths. Such keys never become files. None if all keys can be requested.
        unwired: why its notifications cannot be checked, and what to do instead. None if ``wiring`` can check
            them.
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
        """``tables``: access to Delta tables in its buckets, or None if they cannot have tables."""
        return cast("TableStore", self._part("tables")) if self.keeps_tables else None

    @property
    def engine(self) -> Engine | None:
        """``engine``: Spark's requirements for these tables, or None if there cannot be any."""
        return cast("Engine", self._part("engine")) if self.keeps_tables else None

    def open_store(self, location: str, access: Access) -> ObjectStore:
        """``store``: returns the store of a bucket or of a prefix. Does no I/O."""
        return cast("ObjectStore", self._part("store").open_store(location, access))

    def open_queue(self, spec: QueueSpec) -> EventQueue:
        """``queue``: returns the queue of a spec with a name and access.

        Does no I/O before ``start``. Raises InvalidValueError.
        """
        return cast("EventQueue", self._part("queue").open_queue(spec))

    def hints_of(self, event: Any) -> Sequence[ObjectHint] | Rejection | None:
        """``events``: returns the hints of an event posted as JSON, or None for other providers' events."""
        return cast("Sequence[ObjectHint] | Rejection | None", self._part("events").hints_of(event))

    def for_tasks(self, access: Access, location: str) -> Access:
        """``credentials``: returns the access for a task at a location, without long-lived keys.

        Uses the role's keys, temporary keys, or keys that sign for a day or two. Raises StorageError,
        StorageDeniedError.
        """
        return cast("Access", self._part("credentials").for_tasks(access, location))

    def is_role(self, name: str, endpoint: str | None) -> bool:
        """``policies``: True if a role may have this name, at the provider or at a compatible endpoint."""
        return bool(self._part("policies").is_role(name, endpoint))

    def policies(self, connection: Connection, needs: Sequence[RequiredAccess]) -> dict[str, Any]:
        """``policies``: returns the role's trust policy, and the permissions of the role, or of the user
        without a role.

        Without ``needs``, the permissions have a placeholder for the bucket.
        """
        part, role = self._part("policies"), connection.role_arn
        return {
            "trust_policy": part.trust_policy(connection.external_id, role),
            "permission_policy": part.permission_policy(needs, connection.region, role),
        }

    def check_wiring(self, access: Access, place: BucketPlace, queue: str) -> Check:
        """``wiring``: checks that a bucket reports all changes at a place to a queue (name or URL)."""
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


# Shared code for the providers' policies. Pure.

#: Placeholder for the account of volstream's keys. Only its owner knows it.
ACCOUNT = "ACCOUNT_ID"

#: Placeholder for a bucket while there is no volume.
_ANY_BUCKET = "BUCKET"


def by_bucket(needs: Sequence[RequiredAccess]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields each bucket with its read and its written prefixes. Leaves out prefixes below others."""
    needs = needs or [RequiredAccess(_ANY_BUCKET, "")]
    for bucket in sorted({need.bucket for need in needs}):
        found = [need for need in needs if need.bucket == bucket]
        yield bucket, _outermost(need.root for need in found), _outermost(need.root for need in found if need.writes)


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
    """Returns the account in a role's name, or ``*`` without a role."""
    return (role.split(":")[position] if role else "") or "*"


def _outermost(roots: Iterable[str]) -> list[str]:
    outermost: list[str] = []
    for root in sorted(set(roots)):
        if not any(root.startswith(outer) for outer in outermost):
            outermost.append(root)
    return outermost


# The table of providers.

_ALIASES = {alias: scheme for scheme, words in PROVIDERS.items() for alias in words.aliases}

#: Schemes that never have a provider, not even from a plug-in.
_WITHOUT_PROVIDER = ("file", "hdfs", "viewfs")


def provider_of(location: str) -> Provider | None:
    """Returns the provider of a location, or None (a directory's, for example). Imports no vendor
    packages."""
    return provider_by(scheme_of(location))


def provider_by(scheme: str) -> Provider | None:
    """Returns the provider for a scheme of locations or type of connections. See :func:`provider_of`."""
    words = PROVIDERS.get(_ALIASES.get(scheme, scheme))
    if words is not None:
        return cast("Provider", importlib.import_module(words.folder).PROVIDER)
    if scheme in _WITHOUT_PROVIDER or not plugins.has(Group.PROVIDERS, scheme):
        return None
    return cast("Provider", plugins.call(Group.PROVIDERS, scheme))


def own() -> Iterator[Provider]:
    """Yields volstream's built-in providers."""
    return filter(None, map(provider_by, PROVIDERS))


# Rules for all providers' buckets: how keys map to paths, and which keys are files. Pure.

_LOCATION = re.compile(r"([a-z0-9]+)://([^/]+)(?:/(.*))?", re.DOTALL)

#: Maximum length of a key in bytes of UTF-8. OSS allows one byte less.
_MAX_BYTES = 1024

#: Types that stores report for objects uploaded without one.
_DEFAULT_TYPES = ("binary/octet-stream", "application/octet-stream", None)

_FOLDER = "Its key ends in '/' like a directory's, but it has content; rename it."
_UNASKABLE = "Its key cannot be asked for: a part of it is '.' or '..', or it has characters that the store refuses; rename it."
_NUL = "Its key contains a NUL character, which no path may contain; rename it."


@dataclass(frozen=True)
class BucketPlace:
    """A bucket, or a prefix of it.

    Attributes:
        bucket: its name, as in events.
        authority: its part of URLs: the name, for some providers with the account's address.
        root: prefix of all keys; empty, or ending in ``/``.
    """

    provider: Provider
    bucket: str
    authority: str
    root: str

    @classmethod
    def of(cls, location: str) -> BucketPlace:
        """Parses a normalised URI. The part after the bucket is taken literally, not percent-decoded.

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
        self, path: str, size: int, modified: datetime, etag: str, reported_type: str | None = None, version_id: str | None = None
    ) -> FileInfo:
        """Converts an object to a file.

        Args:
            reported_type: the content type reported by the store.
            version_id: None if the store's listings have no version ids.
            modified: truncated to seconds, because some listings and all HEAD responses lack fractions.
        """
        type_ = content_type(path) if reported_type in _DEFAULT_TYPES else reported_type
        return FileInfo(path, size, modified.replace(microsecond=0), etag.strip('"'), version_id, type_)

    def _is_askable(self, key: str) -> bool:
        unaskable = self.provider.unaskable
        return unaskable is None or unaskable.search(key) is None
