"""An Azure Storage Queue as a :class:`~volstream.files.queues.remote.Service`.

Not here: pollers and their messages (``remote``), credentials and error mapping (``credentials``).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import Any
from urllib.parse import urlsplit

from azure.core.exceptions import HttpResponseError
from azure.storage.queue import QueueClient

from volstream.base.model.paths import without_secrets
from volstream.base.threads import Backoff
from volstream.errors import InvalidValueError, QueueError
from volstream.files.providers.access import Access
from volstream.files.providers.azure import credentials, events
from volstream.files.queues.base import QueueSpec, QueueState
from volstream.files.queues.remote import Delivery, RemoteQueue

#: Azure's limit: seven days.
_MAX_VISIBILITY = 604_800

#: Requests do not wait for messages, so an empty queue is polled repeatedly.
_PAUSE = Backoff(first_seconds=0.1, cap_seconds=1.0)

#: Errors for a handle whose message was deleted or redelivered under another handle.
_GONE = ("MessageNotFound", "PopReceiptMismatch")

_NAME = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}")


def open_queue(spec: QueueSpec) -> RemoteQueue:
    """Returns a volume's queue. Raises InvalidValueError if its name does not determine the address."""
    return RemoteQueue(StorageQueueService(spec), spec.settings, events.parse, (address(spec), spec.access))


class StorageQueueService:
    """One queue, by name, in the volume's storage account, or by URL."""

    batch = 32

    def __init__(self, spec: QueueSpec) -> None:
        assert spec.name, "open_queue has checked it"
        assert spec.access is not None, "as above"
        self._access, self._location, self._name = spec.access, spec.location, without_secrets(spec.name)
        self._visibility = min(_MAX_VISIBILITY, max(1, math.ceil(spec.settings.visibility_seconds)))
        self._url = address(spec)

    def open(self) -> float:
        """See :meth:`Service.open`."""
        with self._errors("cannot be found"):
            self._client.get_queue_properties()
        return self._visibility

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        """See :meth:`Service.receive`."""
        until, attempt = time.monotonic() + wait_seconds, 1
        while True:
            with self._errors("cannot be read"):
                options = {"messages_per_page": min(limit, self.batch), "visibility_timeout": self._visibility}
                found = [*next(self._client.receive_messages(**options).by_page(), ())]
            if found or time.monotonic() >= until:
                return [Delivery(item.id, f"{item.id} {item.pop_receipt}", item.content.encode()) for item in found]
            time.sleep(min(_PAUSE.delay(attempt), max(0.0, until - time.monotonic())))
            attempt += 1

    def delete(self, handles: Sequence[str]) -> Sequence[str]:
        """See :meth:`Service.delete`. Azure has no batch request for this."""
        for handle in handles:
            id_, receipt = handle.split(" ")
            with self._errors("did not delete a message"):
                _unless_gone(partial(self._client.delete_message, id_, receipt))
        return ()

    def keep(self, handles: Sequence[str], seconds: float) -> Mapping[str, str | None]:
        """See :meth:`Service.keep`. Azure has no batch request, and returns a new handle each time."""
        extended: dict[str, str | None] = {}
        visibility = min(math.ceil(seconds), _MAX_VISIBILITY)
        try:
            with self._errors("did not extend the visibility of messages"):
                for handle in handles:
                    id_, receipt = handle.split(" ")
                    keep = partial(self._client.update_message, id_, receipt, visibility_timeout=visibility)
                    changed = _unless_gone(keep)
                    extended[handle] = None if changed is None else f"{id_} {changed.pop_receipt}"
        except QueueError:
            if not extended:  # else the new handles matter more than the error, which will recur
                raise
        return extended

    def describe(self) -> QueueState:
        """See :meth:`Service.describe`. Azure's count includes invisible messages, so it is not reported."""
        self.open()
        return QueueState(waiting=None, in_flight=None, visibility_seconds=None, retention_seconds=None)

    @property
    def _client(self) -> QueueClient:
        return _client(self._access, self._url)

    def _errors(self, what: str) -> AbstractContextManager[None]:
        return credentials.errors(f"The Storage Queue {self._name!r} {what}", self._access, QueueError, QueueError)


@lru_cache(credentials.MAX_CACHED)
def _client(access: Access, address: str) -> QueueClient:
    url, _, name = address.rpartition("/")
    return QueueClient(url, name, credential=credentials.credential(access, url), **credentials.options())


def address(spec: QueueSpec) -> str:
    """Returns the URL of a queue, given by URL or by name.

    Raises:
        InvalidValueError: the URL is not a queue's, or the location and the connection do not determine the
            account.
    """
    name = spec.name or ""
    parts = urlsplit(name)
    if parts.scheme in ("http", "https") and parts.netloc and _NAME.fullmatch(parts.path.rpartition("/")[2]) and not parts.query:
        return name
    assert spec.access is not None, "the caller has checked it"
    if not _NAME.fullmatch(name) or not credentials.is_own(spec.access.endpoint):
        raise InvalidValueError(
            f"{without_secrets(name)!r} is not the address of a Storage Queue.",
            "Write https://ACCOUNT.queue.core.windows.net/NAME, or the bare name of a queue in the volume's storage account.",
        )
    return f"{credentials.account(spec.access, spec.location).url.replace('.blob.', '.queue.')}/{name}"


def _unless_gone(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except HttpResponseError as exc:
        if getattr(exc, "error_code", None) not in _GONE:
            raise
        return None
