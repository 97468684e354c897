"""Access to a provider, as values: the content of a connection, and its keys from the settings."""

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

#: Size limit of caches by access: a long-lived worker receives a new access with each set of keys.
MAX_CACHED = 64


@dataclass(frozen=True)
class Keys:
    """Keys that sign requests. The secrets are not in the repr.

    Attributes:
        token: of temporary keys. Without it, the keys are long-lived and must not leave this process.
        expires: expiry of temporary keys, if known.
    """

    id: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)
    expires: datetime | None = None


#: Stores accept signatures from clocks that are off by this much.
_SKEW = timedelta(minutes=15)


@dataclass(frozen=True)
class DayKeys:
    """Keys for tasks. They sign requests to one service in one region on certain days, and do not reveal the
    secret.

    Version 4 of Amazon's and Alibaba's signatures uses a key derived from the secret, the day (UTC), the
    region and the service.

    Attributes:
        days: signing keys by day, as ``20260131``.
    """

    id: str
    days: tuple[tuple[str, bytes], ...] = field(repr=False)

    @classmethod
    def of(cls, keys: Keys, version: str, region: str, service: str, request: str) -> DayKeys:
        """Derives the keys for today and tomorrow. Tolerates clocks that are slightly off.

        Args:
            version, request: the provider's words: prefix of the secret, and last part of the scope.
        """
        now = datetime.now(UTC)
        days = {f"{now + more:%Y%m%d}" for more in (-_SKEW, timedelta(), timedelta(days=1))}
        return cls(keys.id, tuple((day, _derived(version + keys.secret, day, region, service, request)) for day in sorted(days)))

    def key(self, moment: str) -> bytes:
        """Returns the key for a moment, given as ``20260131T...``. Raises StorageError after its days."""
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
    """The files that a provider's keys come from. If a file changes, objects created with its keys are
    dropped.

    Attributes:
        caches: functions that clear the caches of such objects.
    """

    def __init__(self) -> None:
        self.caches: list[Callable[[], None]] = []
        self._stamps: dict[str, tuple[int, ...]] = {}

    def cached(self, function: Callable[..., T]) -> functools._lru_cache_wrapper[T]:
        """Caches a function's results for its latest arguments until the files change."""
        wrapper = functools.lru_cache(MAX_CACHED)(function)
        self.caches.append(wrapper.cache_clear)
        return wrapper

    def check(self, *paths: str | None) -> None:
        """Clears the caches if one of these files has changed."""
        for path in filter(None, paths):
            with contextlib.suppress(OSError):
                stat = os.stat(path)
                stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                if self._stamps.setdefault(path, stamp) != stamp:
                    self._stamps[path] = stamp
                    for clear in self.caches:
                        clear()


@dataclass(frozen=True)
class Access:
    """The location of a provider's services, and the identity that is used with them.

    Attributes:
        provider: the scheme of its locations.
        region: taken from the provider's own settings (environment, profile, instance) by default.
        endpoint: URL of the store. Defaults to the provider's own. An S3-compatible server is expected to
            serve queues given by name, and STS if there is a role, at the same URL.
        role_arn: the role to assume. Without it, the credentials are used directly.
        external_id: sent when the role is assumed.
        credentials: ``env`` (environment, then instance), ``profile:NAME``, or ``static``.
        keys: the keys for ``static``.
        days: the keys for ``static`` in a task, instead of ``keys``.
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
