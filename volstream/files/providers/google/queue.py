"""A subscription of Google's Pub/Sub as a :class:`~volstream.files.queues.remote.Service`.

What does not belong here: pollers and the messages they hold (``remote``), credentials and error mapping (``credentials``).
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

#: Limits of Pub/Sub: of the time until a message is delivered again, and of a request for messages.
_MAX_DEADLINE, _MIN_WAIT_SECONDS = 600, 1.0

#: Of requests: pollers repeat them, with growing delays.
_ONCE: Mapping[str, Any] = {"timeout": 30.0, "retry": None}

_NAME = re.compile(r"(?:/?projects/([^/]+)/subscriptions/)?([A-Za-z][\w.~+%-]{2,254})")


def open_queue(spec: QueueSpec) -> RemoteQueue:
    """Returns a volume's queue. Raises InvalidValueError: the name is not a subscription's."""
    return RemoteQueue(PubSubService(spec), spec.settings, events.parse, (spec.name, spec.access))


class PubSubService:
    """One subscription with pull delivery: by name, with or without the project, or by the URL of an emulator."""

    batch = 1000

    def __init__(self, spec: QueueSpec) -> None:
        assert spec.name, "open_queue has checked it"
        assert spec.access is not None, "as above"
        self._access = spec.access
        self._name = without_secrets(spec.name)
        self._emulator, self._project, self._subscription = address(spec.name)

    def open(self) -> float:
        """See :meth:`Service.open`. A request for messages cannot set the deadline: the subscription's own applies."""
        with self._errors("cannot be found"):
            return float(self.state().ack_deadline_seconds)

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        """See :meth:`Service.receive`."""
        asked = {"subscription": self.path, "max_messages": min(limit, self.batch)}
        with self._errors("cannot be read"):
            try:
                answer = self._client.pull(asked, timeout=max(_MIN_WAIT_SECONDS, wait_seconds), retry=None)
            except DeadlineExceeded:
                return ()
        return [Delivery(one.message.message_id, one.ack_id, _pushed(one.message)) for one in answer.received_messages]

    def delete(self, handles: Sequence[str]) -> Sequence[str]:
        """See :meth:`Service.delete`."""
        with self._errors("did not acknowledge messages"):
            gone = self._ask(self._client.acknowledge, {"ack_ids": [*handles]})
        return [handle for handle, is_gone in gone.items() if not is_gone]

    def keep(self, handles: Sequence[str], seconds: float) -> Mapping[str, str | None]:
        """See :meth:`Service.keep`. Handles do not change."""
        deadline = min(math.ceil(seconds), _MAX_DEADLINE)
        with self._errors("did not extend the deadline of messages"):
            gone = self._ask(self._client.modify_ack_deadline, {"ack_ids": [*handles], "ack_deadline_seconds": deadline})
        return {handle: None if gone.get(handle) else handle for handle in handles if gone.get(handle, True)}

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
        """Returns the subscription as Pub/Sub describes it. Raises the vendor's exceptions."""
        return self._client.get_subscription({"subscription": self.path}, **_ONCE)

    def _ask(self, call: Any, asked: dict[str, Any]) -> Mapping[str, bool]:
        """Sends a request about messages; returns those that it did not reach, and whether it never will.

        Only subscriptions with exactly-once delivery say so.
        """
        try:
            call({"subscription": self.path, **asked}, **_ONCE)
        except GoogleAPICallError as exc:
            said = {handle: str(exc.metadata.get(handle, "")) for handle in asked["ack_ids"]} if exc.metadata else {}
            if not any(said.values()):
                raise
            return {handle: why.startswith("PERMANENT") for handle, why in said.items() if why}
        return {}

    @property
    def _client(self) -> SubscriberClient:
        credentials.look(self._access)
        return _client(self._access, self._emulator)

    def _errors(self, what: str) -> AbstractContextManager[None]:
        return credentials.errors(f"The Pub/Sub subscription {self._name!r} {what}", QueueError, QueueError)


@credentials.FILES.cached
def _client(access: Access, emulator: str | None) -> SubscriberClient:
    if emulator is None:
        return SubscriberClient(credentials=credentials.credentials(access))
    return SubscriberClient(transport=SubscriberGrpcTransport(channel=grpc.insecure_channel(emulator)))


def address(name: str) -> tuple[str | None, str | None, str]:
    """Returns the host of an emulator, the project and the subscription's name from a name or URL; None: the name lacks it.

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
    """Returns a message as Pub/Sub pushes it."""
    said = {"attributes": dict(message.attributes), "data": base64.b64encode(message.data).decode()}
    return json.dumps({"message": said}).encode()
