"""Alibaba Cloud's MNS (Simple Message Queue) as a :class:`~volstream.files.queues.remote.Service`.

The only module that imports its SDK. Not here: pollers and their messages (``remote``), credentials
(``credentials``), the base64 encoding of OSS events (``events``).
"""

from __future__ import annotations

import math
import re
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit
from xml.etree import ElementTree

from mns.account import Account
from mns.auth import Credentials, CredentialsProvider
from mns.mns_exception import MNSClientNetworkException, MNSExceptionBase, MNSServerException
from mns.mns_http import RequestInternal
from mns.mns_request import BatchReceiveMessageRequest, GetQueueAttributesRequest, GetQueueAttributesResponse
from mns.mns_xml_handler import BatchRecvMessageDecoder

from volstream.base.model.paths import without_secrets
from volstream.errors import InvalidValueError, QueueError, StorageError
from volstream.files.providers.access import Access
from volstream.files.providers.alibaba import credentials, events
from volstream.files.providers.base import UNREADABLE, unreadable
from volstream.files.queues.base import QueueSpec, QueueState
from volstream.files.queues.remote import Delivery, RemoteQueue, SignedRequest, repeat

#: Limits of MNS. A wait of zero would select the queue's own setting.
_MIN_WAIT_SECONDS, _MAX_WAIT_SECONDS, _MAX_VISIBILITY = 1, 30, 43_200

#: The SDK's HTTPS connections have no timeout by default. A long poll takes 30 seconds.
_TIMEOUT_SECONDS = 45

_EMPTY = "MessageNotExist"

#: Errors for a handle whose message was deleted or redelivered under another handle.
_GONE = {"MessageNotExist", "ReceiptHandleError"}

_ROLE = re.compile(r"acs:ram::(\d+):role/.+")
_QUEUE_PATH = re.compile(r"/queues/([^/]+)/?")

_Result = TypeVar("_Result")


def open_queue(spec: QueueSpec) -> RemoteQueue:
    """Returns a volume's queue.

    Raises:
        InvalidValueError: the queue's address cannot be derived from a bare name.
    """
    return RemoteQueue(MnsService(spec), spec.settings, events.parse, (spec.name, spec.access))


class MnsService:
    """One queue, by name or URL. Each thread has an account object, which holds a single connection."""

    batch = 16

    def __init__(self, spec: QueueSpec) -> None:
        assert spec.name, "open_queue has checked it"
        assert spec.access is not None, "as above"
        self._endpoint, self._name = address(spec.name, spec.access)
        self._provider = _Provider(spec.access)
        self._by_thread = threading.local()

    def open(self) -> float:
        """See :meth:`Service.open`. Requests cannot set the visibility, so the queue's setting applies."""
        with self._errors("cannot be described"):
            return float(self._ask(self._attributes)["VisibilityTimeout"])

    def receive(self, limit: int, wait_seconds: float) -> Sequence[Delivery]:
        """See :meth:`Service.receive`."""
        size, wait = min(limit, self.batch), _wait(wait_seconds)
        with self._errors("cannot be read"):
            try:
                messages = self._ask(lambda queue: queue.batch_receive_message(size, wait))
            except MNSServerException as exc:
                if exc.type != _EMPTY:
                    raise
                return ()
        return _deliveries(messages)

    def unattended(self, wait_seconds: float) -> AsyncGenerator[Sequence[Delivery], None]:
        """See :meth:`Unattended.unattended`. The SDK signs, but cannot wait without a thread."""
        uri = f"/queues/{self._name}/messages?numOfMessages={self.batch}&waitseconds={_wait(wait_seconds)}"
        request = RequestInternal("GET", uri)
        with self._errors("cannot be read"):
            self._queue().mns_client.build_header(BatchReceiveMessageRequest(self._name, self.batch), request)
        return repeat(SignedRequest(request.method, self._endpoint + request.uri, request.header, b""), _read)

    def delete(self, handles: Sequence[str]) -> Sequence[str]:
        """See :meth:`Service.delete`."""
        with self._errors("did not delete messages"):
            try:
                self._ask(lambda queue: queue.batch_delete_message(list(handles)))
            except MNSServerException as exc:
                if exc.sub_errors is None and exc.type not in _GONE:
                    raise
                return [failed["ReceiptHandle"] for failed in exc.sub_errors or () if failed["ErrorCode"] not in _GONE]
        return ()

    def keep(self, handles: Sequence[str], seconds: float) -> Mapping[str, str | None]:
        """See :meth:`Service.keep`. MNS has no batch request for this, and returns a new handle each time."""
        extended: dict[str, str | None] = {}
        try:
            with self._errors("did not extend the visibility of messages"):
                for handle in handles:
                    extended[handle] = self._keep_one(handle, min(math.ceil(seconds), _MAX_VISIBILITY))
        except QueueError:
            if not extended:  # else the new handles matter more than the error, which will recur
                raise
        return extended

    def describe(self) -> QueueState:
        """See :meth:`Service.describe`. MNS has announced that it will stop reporting counts."""
        with self._errors("cannot be described"):
            attributes = self._ask(self._attributes)
            dead = attributes.get("DeadLetterTargetQueue", "") if attributes.get("Enabled", "").lower() == "true" else ""
            return QueueState(
                waiting=_count(attributes.get("ActiveMessages")),
                in_flight=_count(attributes.get("InactiveMessages")),
                visibility_seconds=float(attributes["VisibilityTimeout"]),
                retention_seconds=float(attributes["MessageRetentionPeriod"]),
                dead_letter_queue=dead.rpartition("/")[2],
                max_receives=int(attributes["MaxReceiveCount"]) if dead else None,
            )

    def _attributes(self, queue: Any) -> Mapping[str, str]:
        """Returns MNS's attributes by name, nested or not.

        The SDK sends the request, but its parser fails on a dead letter policy.
        """
        client, request, checked = queue.mns_client, GetQueueAttributesRequest(self._name), GetQueueAttributesResponse()
        sent = RequestInternal(request.method, f"/queues/{self._name}")
        client.build_header(request, sent)
        response = client.http.send_request(sent)
        checked.header = response.header
        client.check_status(sent, response, checked)
        return {node.tag.rpartition("}")[2]: node.text or "" for node in ElementTree.fromstring(response.data).iter()}

    def _keep_one(self, handle: str, seconds: int) -> str | None:
        try:
            changed = self._ask(lambda queue: queue.change_message_visibility(handle, seconds))
        except MNSServerException as exc:
            if exc.type not in _GONE:
                raise
            return None
        return str(changed.receipt_handle)

    def _ask(self, call: Callable[[Any], _Result]) -> _Result:
        """Calls this thread's queue. Retries once if the connection broke, as idle connections do."""
        try:
            return call(self._queue())
        except MNSClientNetworkException:
            return call(self._queue())

    def _queue(self) -> Any:
        queue = getattr(self._by_thread, "queue", None)
        if queue is None:
            account = Account(self._endpoint, credentials_provider=self._provider)
            http = account.mns_client.http
            http.set_connection_timeout(_TIMEOUT_SECONDS)  # effective only over HTTP
            http.conn.timeout = _TIMEOUT_SECONDS  # effective only over HTTPS
            queue = self._by_thread.queue = account.get_queue(self._name)
            weakref.finalize(queue, account.mns_client.close_connection)  # when its thread ends
            queue.set_encoding(False)  # with decoding, one body that is not base64 fails its whole batch
        return queue

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        subject = f"The MNS queue {self._name!r} at {self._endpoint} {what}"
        try:
            yield
        except StorageError as exc:  # from the credentials
            raise QueueError(exc.message, exc.remedy) from exc
        except MNSServerException as exc:
            text = f"{subject}: {exc.message} ({exc.type})."
            raise QueueError(text, _remedy(exc.type)) from exc
        except MNSExceptionBase as exc:
            raise QueueError(f"{subject}: {exc.message}.") from exc
        except (*UNREADABLE, OSError) as exc:  # an unreadable response
            raise QueueError(unreadable(subject, exc)) from exc


class _Provider(CredentialsProvider):  # type: ignore[misc]  # the SDK has no types
    """Provides keys for each request, and renews a role's keys."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def get_credentials(self) -> Credentials:
        keys = credentials.keys(self._access)
        return Credentials(keys.id, keys.secret, keys.token or "")


def _wait(seconds: float) -> int:
    return min(_MAX_WAIT_SECONDS, max(_MIN_WAIT_SECONDS, round(seconds)))


def _read(status: int, content: bytes) -> Sequence[Delivery]:
    if status == 404 and ElementTree.fromstring(content).findtext("{*}Code") == _EMPTY:
        return ()
    if status != 200:
        raise ValueError(status)
    return _deliveries(BatchRecvMessageDecoder.decode(content.decode(), False))


def _deliveries(messages: Sequence[Any]) -> Sequence[Delivery]:
    return [Delivery(message.message_id, message.receipt_handle, message.message_body.encode()) for message in messages]


def address(name: str, access: Access) -> tuple[str, str]:
    """Returns the endpoint of a queue's account, and the queue's name, from a URL or a bare name.

    Raises:
        InvalidValueError: the URL is not a queue's, or the connection does not determine the address of a
            queue with that name.
    """
    if "://" in name:
        parts = urlsplit(name)
        path = _QUEUE_PATH.fullmatch(parts.path)
        if parts.scheme not in ("http", "https") or not parts.netloc or path is None:
            raise InvalidValueError(
                f"{without_secrets(name)!r} is not the URL of an MNS queue.",
                "Write https://ACCOUNT.mns.REGION.aliyuncs.com/queues/NAME, or the bare name.",
            )
        return f"{parts.scheme}://{parts.netloc}", path[1]
    role, region = _ROLE.fullmatch(access.role_arn or ""), credentials.region(access)
    if role is None or region is None:
        raise InvalidValueError(
            f"The address of the MNS queue {name!r} cannot be determined: the connection names no "
            f"{'region' if role else 'role, whose ARN contains the account'}.",
            "Give the queue's URL, https://ACCOUNT.mns.REGION.aliyuncs.com/queues/NAME.",
        )
    return f"https://{role[1]}.mns.{region}.aliyuncs.com", name


def _count(text: str | None) -> int | None:
    return int(text) if text else None


def _remedy(code: str) -> str:
    if code == "QueueNotExist":
        return "Create the queue, or correct the volume's queue name."
    if code in ("AccessDenied", "AccessIDAuthError", "SignatureDoesNotMatch"):
        return "Check the connection's keys and role, and allow it: `volstream describe connection NAME` prints the policies."
    return ""
