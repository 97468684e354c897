"""Access to a provider, as values: the contents of a connection, and the keys that the settings hold for it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from volstream.errors import StorageDeniedError, StorageError

T = TypeVar("T")

#: A long-lived worker receives new keys again and again, each with an access of its own.
MAX_HELD = 64


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


class KeyFiles:
    """The files that a provider's keys were read from. When one of them changes, what was made with its keys is forgotten.

    Attributes:
        caches: whose contents have keys.
    """

    def __init__(self) -> None:
        self.caches: list[Callable[[], None]] = []
        self._seen: dict[str, tuple[int, ...]] = {}

    def cached(self, function: Callable[..., T]) -> functools._lru_cache_wrapper[T]:
        """Keeps what a function returned for its last arguments, until the files change."""
        held = functools.lru_cache(MAX_HELD)(function)
        self.caches.append(held.cache_clear)
        return held

    def look(self, *paths: str | None) -> None:
        """Forgets what was made if one of these files has changed."""
        for path in filter(None, paths):
            with contextlib.suppress(OSError):
                stat = os.stat(path)
                stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                if self._seen.setdefault(path, stamp) != stamp:
                    self._seen[path] = stamp
                    for forget in self.caches:
                        forget()


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

    @property
    def static_keys(self) -> Keys:
        """The keys of ``static``. Raises StorageDeniedError if the settings have none."""
        if self.keys is None:
            raise StorageDeniedError(
                "The connection's keys are not in the settings.", "See [credentials.NAME] in volstream.toml."
            )
        return self.keys
