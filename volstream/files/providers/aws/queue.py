"""Amazon's SQS as a :class:`~volstream.files.queues.remote.Service`.

Not here: pollers and their messages (``remote``), credentials and error mapping (``credentials``).
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

from volstream.errors import QueueError
from volstream.files.providers.access import Access
from volstream.files.providers.aws import credentials, events
from volstream.files.queues.base import QueueSpec, QueueState
from volstream.files.queues.remote import Delivery, RemoteQueue, SignedRequest, repeat

#: Limits of SQS.
_MAX_WAIT_SECONDS, _MAX_VISIBILITY = 20, 43_200

_HEADERS = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.ReceiveMessage"}

_OWN_HOST = re.compile(r"(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.amazonaws\.com(?:\.cn)?")


def open_queue(spec: QueueSpec) -> RemoteQueue:
    """Returns a volume's queue."""
    return RemoteQueue(SqsService(spec), spec.settings, events.parse, (spec.name, spec.access))


class SqsService:
    """One queue, by name or URL. A name is resolved in the connection's region or at its endpoint."""

    batch = 10

    def __init__(self, spec: QueueSpec) -> None:
        assert spec.name, "open_queue has checked it"
        assert spec.access is not None, "as above"
        self._name = spec.name
        self._access, self._endpoint = _place(spec.name, spec.access)
        self._visibility = min(_MAX_VISIBILITY, max(1, math.ceil(spec.settings.visibility_seconds)))
        self._url = spec.name if "://" in spec.name else ""

    def open(self) -> float:
        """See :meth:`Service.open`."""
        with self._errors("cannot be found"):
            if not self._url:
                self._url = self._client.get_queue_url(QueueName=self._name)["QueueUrl"]
            self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=["QueueArn"])
        return self._visibility

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        """See :meth:`Service.receive`."""
        with self._errors("cannot be read"):
            return _deliveries(self._client.receive_message(**self._parameters(limit, wait_seconds)))

    def unattended(self, wait_seconds: float) -> AsyncGenerator[Sequence[Delivery], None]:
        """See :meth:`Unattended.unattended`. Signs like boto3, which cannot wait without a thread."""
        body = json.dumps(self._parameters(self.batch, wait_seconds)).encode()
        with self._errors("cannot be read"):
            request = credentials.signed(self._access, "sqs", self._endpoint, _HEADERS, body)
        headers = dict(request.headers.items())
        return repeat(SignedRequest(request.method, request.url, headers, body, credentials.ca_file()), _read)

    def delete(self, handles: Sequence[str]) -> Sequence[str]:
        """See :meth:`Service.delete`."""
        entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]
        with self._errors("did not delete messages"):
            reply = self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)
        return [handles[int(entry["Id"])] for entry in reply.get("Failed", ()) if not entry.get("SenderFault")]

    def keep(self, handles: Sequence[str], seconds: float) -> Mapping[str, str | None]:
        """See :meth:`Service.keep`. Handles do not change. SQS gives up a message after twelve hours."""
        entries = [
            {"Id": str(number), "ReceiptHandle": handle, "VisibilityTimeout": min(math.ceil(seconds), _MAX_VISIBILITY)}
            for number, handle in enumerate(handles)
        ]
        with self._errors("did not extend the visibility of messages"):
            reply = self._client.change_message_visibility_batch(QueueUrl=self._url, Entries=entries)
        extended: dict[str, str | None] = {
            handles[int(entry["Id"])]: handles[int(entry["Id"])] for entry in reply.get("Successful", ())
        }
        return extended | {handles[int(entry["Id"])]: None for entry in reply.get("Failed", ()) if entry.get("SenderFault")}

    def describe(self) -> QueueState:
        """See :meth:`Service.describe`."""
        if not self._url:
            self.open()
        with self._errors("cannot be described"):
            attributes = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=["All"])["Attributes"]
            redrive = json.loads(attributes.get("RedrivePolicy") or "{}")
            receives = redrive.get("maxReceiveCount")
            retained = attributes.get("MessageRetentionPeriod")  # not every SQS-compatible server has one
            return QueueState(
                waiting=int(attributes["ApproximateNumberOfMessages"]),
                in_flight=int(attributes["ApproximateNumberOfMessagesNotVisible"]),
                visibility_seconds=float(attributes["VisibilityTimeout"]),
                retention_seconds=None if retained is None else float(retained),
                dead_letter_queue=redrive.get("deadLetterTargetArn", "").rpartition(":")[2],
                max_receives=None if receives is None else int(receives),
            )

    def _parameters(self, limit: int, wait_seconds: float) -> Mapping[str, Any]:
        return {
            "QueueUrl": self._url,
            "MaxNumberOfMessages": min(limit, self.batch),
            "WaitTimeSeconds": min(_MAX_WAIT_SECONDS, round(wait_seconds)),
            "VisibilityTimeout": self._visibility,
        }

    @property
    def _client(self) -> Any:
        return credentials.client(self._access, "sqs", self._endpoint)

    def _errors(self, what: str) -> AbstractContextManager[None]:
        return credentials.errors(f"The SQS queue {self._name!r} {what}", QueueError, QueueError)


def _read(status: int, content: bytes) -> Sequence[Delivery]:
    if status != 200:
        raise ValueError(status)
    return _deliveries(json.loads(content))


def _deliveries(answer: Mapping[str, Any]) -> Sequence[Delivery]:
    # The parser rejects lone surrogates, which JSON can contain.
    return [
        Delivery(message["MessageId"], message["ReceiptHandle"], message["Body"].encode("utf-8", "surrogatepass"))
        for message in answer.get("Messages", ())
    ]


def _place(name: str, access: Access) -> tuple[Access, str | None]:
    """Returns the access with the region from the queue's URL, and the endpoint."""
    parts = urlsplit(name)
    if not parts.scheme:
        return access, None
    match = _OWN_HOST.fullmatch(parts.hostname or "")
    if match is None:
        return access, f"{parts.scheme}://{parts.netloc}"
    return dataclasses.replace(access, region=match[1] or match[2]), f"{parts.scheme}://{parts.netloc}"
