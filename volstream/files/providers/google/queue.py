"""A subscription of Google's Pub/Sub as a :class:`~volstream.files.queues.remote.Service`.

Not here: pollers and their messages (``remote``), credentials and error mapping (``credentials``).
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.api_core.exceptions import DeadlineExceeded, GoogleAPICallError
from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from volstream.base.model.paths import without_secrets
from volstream.errors import InvalidValueError, QueueError
from volstream.files.providers.access import Access
from volstream.files.providers.google import credentials, events
from volstream.files.queues.base import QueueSpec, QueueState
from volstream.files.queues.remote import Delivery, RemoteQueue

#: Limits of Pub/Sub: maximum time until redelivery, and minimum wait of a request for messages.
_MAX_DEADLINE, _MIN_WAIT_SECONDS = 600, 1.0

#: Options of requests: no retries, because pollers repeat them with growing delays.
_ONCE: Mapping[str, Any] = {"timeout": 30.0, "retry": None}

_NAME = re.compile(r"(?:/?projects/([^/]+)/subscriptions/)?([A-Za-z][\w.~+%-]{2,254})")


def open_queue(spec: QueueSpec) -> RemoteQueue:
    """Returns a volume's queue. Raises InvalidValueError: the name is not a subscription's."""
    return RemoteQueue(PubSubService(spec), spec.settings, events.parse, (spec.name, spec.access))


class PubSubService:
    """One pull subscription: by name, with or without the project, or by the URL of an emulator."""

    batch = 1000

    def __init__(self, spec: QueueSpec) -> None:
        assert spec.name, "open_queue has checked it"
        assert spec.access is not None, "as above"
        self._access = spec.access
        self._name = without_secrets(spec.name)
        self._emulator, self._project, self._subscription = address(spec.name)

    def open(self) -> float:
        """See :meth:`Service.open`. A request cannot set the deadline, so the subscription's own applies."""
        with self._errors("cannot be found"):
            return float(self.state().ack_deadline_seconds)

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        """See :meth:`Service.receive`."""
        request = {"subscription": self.path, "max_messages": min(limit, self.batch)}
        with self._errors("cannot be read"):
            try:
                response = self._client.pull(request, timeout=max(_MIN_WAIT_SECONDS, wait_seconds), retry=None)
            except DeadlineExceeded:
                return ()
        return [Delivery(item.message.message_id, item.ack_id, _pushed(item.message)) for item in response.received_messages]

    def delete(self, handles: Sequence[str]) -> Sequence[str]:
        """See :meth:`Service.delete`."""
        with self._errors("did not acknowledge messages"):
            failed = self._ask(self._client.acknowledge, {"ack_ids": [*handles]})
        return [handle for handle, is_permanent in failed.items() if not is_permanent]

    def keep(self, handles: Sequence[str], seconds: float) -> Mapping[str, str | None]:
        """See :meth:`Service.keep`. Handles do not change."""
        deadline = min(math.ceil(seconds), _MAX_DEADLINE)
        with self._errors("did not extend the deadline of messages"):
            failed = self._ask(self._client.modify_ack_deadline, {"ack_ids": [*handles], "ack_deadline_seconds": deadline})
        return {handle: None if failed.get(handle) else handle for handle in handles if failed.get(handle, True)}

    def describe(self) -> QueueState:
        """See :meth:`Service.describe`. Pub/Sub does not count messages."""
        with self._errors("cannot be described"):
            state = self.state()
        dead = state.dead_letter_policy
        return QueueState(
            waiting=None,
            in_flight=None,
            visibility_seconds=float(state.ack_deadline_seconds),
            retention_seconds=state.message_retention_duration.total_seconds() or None,
            dead_letter_queue=dead.dead_letter_topic.rpartition("/")[2],
            max_receives=dead.max_delivery_attempts or None,
        )

    @property
    def path(self) -> str:
        """The full name of the subscription. Raises QueueError if nothing determines the project."""
        project = self._project or credentials.project(self._access)
        if project is None:
            raise QueueError(
                f"The project of the Pub/Sub subscription {self._name!r} is unknown.",
                "Write projects/PROJECT/subscriptions/NAME, or set GOOGLE_CLOUD_PROJECT.",
            )
        return f"projects/{project}/subscriptions/{self._subscription}"

    def state(self) -> Any:
        """Returns Pub/Sub's description of the subscription. Raises the vendor's exceptions."""
        return self._client.get_subscription({"subscription": self.path}, **_ONCE)

    def _ask(self, call: Any, request: dict[str, Any]) -> Mapping[str, bool]:
        """Sends a request about messages. Returns the handles that failed, each with whether that is
        permanent.

        Only subscriptions with exactly-once delivery report failures.
        """
        try:
            call({"subscription": self.path, **request}, **_ONCE)
        except GoogleAPICallError as exc:
            reasons = {handle: str(exc.metadata.get(handle, "")) for handle in request["ack_ids"]} if exc.metadata else {}
            if not any(reasons.values()):
                raise
            return {handle: reason.startswith("PERMANENT") for handle, reason in reasons.items() if reason}
        return {}

    @property
    def _client(self) -> SubscriberClient:
        credentials.check_key_file(self._access)
        return _client(self._access, self._emulator)

    def _errors(self, what: str) -> AbstractContextManager[None]:
        return credentials.errors(f"The Pub/Sub subscription {self._name!r} {what}", QueueError, QueueError)


@credentials.FILES.cached
def _client(access: Access, emulator: str | None) -> SubscriberClient:
    if emulator is None:
        return SubscriberClient(credentials=credentials.credentials(access))
    return SubscriberClient(transport=SubscriberGrpcTransport(channel=grpc.insecure_channel(emulator)))


def address(name: str) -> tuple[str | None, str | None, str]:
    """Returns an emulator's host, the project and the subscription's name. Host and project may be None.

    Raises:
        InvalidValueError: the name is not a subscription's.
    """
    parts = urlsplit(name) if "://" in name else None
    match = _NAME.fullmatch(name if parts is None else parts.path)
    if match is None or (parts is not None and (parts.scheme != "http" or not parts.netloc or match[1] is None)):
        raise InvalidValueError(
            f"{without_secrets(name)!r} is not a Pub/Sub subscription.",
            "Write projects/PROJECT/subscriptions/NAME, or the bare name; for an emulator "
            "http://HOST:PORT/projects/PROJECT/subscriptions/NAME.",
        )
    return (None if parts is None else parts.netloc), match[1], match[2]


def _pushed(message: Any) -> bytes:
    """Returns a message in the format of Pub/Sub's push requests."""
    pushed = {"attributes": dict(message.attributes), "data": base64.b64encode(message.data).decode()}
    return json.dumps({"message": pushed}).encode()
