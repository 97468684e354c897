"""A stand-in for Alibaba's MNS on one machine: queues in memory over HTTP, enough for the real SDK, signatures checked.

    python localstack/mns.py --port 9101 --access-key-id test --access-key-secret test

Supported: create, describe, change and delete queues; send and receive, one message or a batch, with long polls; delete, one
or a batch; change visibility, which returns a new receipt handle; dead letters, if the program that runs it configures them. Not
supported: topics, priorities, delays, rate limits, persistence. It has one account, and listens on 127.0.0.1 unless it runs in a
container.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import heapq
import hmac
import itertools
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_NAMESPACE = "http://mns.aliyuncs.com/doc/v1/"

#: Attributes of a new queue of MNS.
_DEFAULTS = {
    "VisibilityTimeout": 30,
    "MaximumMessageSize": 65536,
    "MessageRetentionPeriod": 345600,
    "DelaySeconds": 0,
    "PollingWaitSeconds": 0,
}

_BATCH, _WAIT_SECONDS = 16, 30


class RefusedError(Exception):
    """An error that MNS returns for a request."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(code, message)
        self.status, self.code, self.message = status, code, message


@dataclass
class _Message:
    body: str
    enqueued: float
    id: str = field(default_factory=lambda: uuid.uuid4().hex.upper())
    handle: str = ""
    visible: float = 0.0
    first_received: float = 0.0
    received: int = 0


class Queue:
    """The messages of one queue."""

    def __init__(self, name: str, attributes: Mapping[str, int]) -> None:
        self.name = name
        self.dead_letters: Queue | None = None  #: queue for messages received :attr:`most_receives` times
        self.most_receives = 0
        self.attributes = {**_DEFAULTS, **attributes}
        self.created = time.time()
        self._changed = threading.Condition()
        self._ready: deque[_Message] = deque()
        self._hidden: list[tuple[float, int, _Message]] = []  # by the time they become visible; outdated entries are skipped
        self._in_flight: dict[str, _Message] = {}
        self._order = itertools.count()

    def send(self, body: str) -> _Message:
        """Adds a message; the rest of this class serves requests of the SDK."""
        message = _Message(body, time.time())
        with self._changed:
            self._ready.append(message)
            self._changed.notify()
        return message

    def receive(self, limit: int, wait_seconds: float) -> list[_Message]:
        deadline = time.time() + wait_seconds
        with self._changed:
            while True:
                now = time.time()
                self._reveal(now)
                if self._ready:
                    return [self._deliver(now) for _ in range(min(limit, len(self._ready)))]
                if now >= deadline:
                    return []
                due = min(deadline, self._hidden[0][0]) if self._hidden else deadline
                self._changed.wait(max(0.0, due - now))

    def delete(self, handle: str) -> None:
        with self._changed:
            self._current(handle)
            del self._in_flight[handle]

    def change_visibility(self, handle: str, seconds: int) -> _Message:
        with self._changed:
            message = self._current(handle)
            del self._in_flight[handle]
            self._hide(message, time.time() + seconds)
            self._changed.notify()
            return message

    def counts(self) -> tuple[int, int]:
        """Returns the numbers of waiting messages and of those in flight."""
        with self._changed:
            self._reveal(time.time())
            return len(self._ready), len(self._in_flight)

    def _deliver(self, now: float) -> _Message:
        message = self._ready.popleft()
        message.received += 1
        message.first_received = message.first_received or now
        self._hide(message, now + self.attributes["VisibilityTimeout"])
        return message

    def _hide(self, message: _Message, until: float) -> None:
        message.visible = until
        message.handle = f"1-{uuid.uuid4().hex}"
        self._in_flight[message.handle] = message
        heapq.heappush(self._hidden, (until, next(self._order), message))

    def _reveal(self, now: float) -> None:
        while self._hidden and self._hidden[0][0] <= now:
            until, _, message = heapq.heappop(self._hidden)
            if message.visible == until and self._in_flight.pop(message.handle, None):
                if self.dead_letters is not None and message.received >= self.most_receives:
                    self.dead_letters.send(message.body)
                else:
                    self._ready.append(message)

    def _current(self, handle: str) -> _Message:
        self._reveal(time.time())
        message = self._in_flight.get(handle)
        if message is None:
            raise RefusedError(HTTPStatus.NOT_FOUND, "MessageNotExist", "The receipt handle is no longer that of a message.")
        return message


class MnsServer(ThreadingHTTPServer):
    """All queues of one account.

    Args:
        port: 0: any free one.
        secret_of: returns the secret of an access key, given its id and security token; raises if it does not exist.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, secret_of: Callable[[str, str | None], str], host: str = "127.0.0.1") -> None:
        super().__init__((host, port), _Handler)
        self.secret_of = secret_of
        self.queues: dict[str, Queue] = {}

    def make(self, name: str, **attributes: int) -> Queue:
        """Creates a queue, replacing one of that name."""
        queue = self.queues[name] = Queue(name, attributes)
        return queue

    @property
    def url(self) -> str:
        """The address that it listens on."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: MnsServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body in one packet

    def do_GET(self) -> None:  # http.server's name
        self._answer()

    do_PUT = do_POST = do_DELETE = do_GET  # http.server's names  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: tests make thousands of requests."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._location = ""
        try:
            self._check_signature()
            status, answer = self._do(body)
        except RefusedError as refusal:
            status = refusal.status
            answer = _element(
                "Error", {"Code": refusal.code, "Message": refusal.message, "RequestId": "0", "HostId": self.server.url}
            )
        content = f'<?xml version="1.0" encoding="utf-8"?>\n{answer}'.encode() if answer else b""
        self.send_response(status)
        self.send_header("Content-Type", "text/xml;charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("x-mns-request-id", "0")
        self.send_header("x-mns-version", "2015-06-06")
        if self._location:
            self.send_header("Location", self._location)
        self.end_headers()
        self.wfile.write(content)

    def _check_signature(self) -> None:
        """Checks the request's signature as MNS documents it."""
        _, _, credential = self.headers.get("Authorization", "").partition(" ")
        key_id, _, signature = credential.partition(":")
        try:
            secret = self.server.secret_of(key_id, self.headers.get("security-token"))
        except Exception as error:
            raise RefusedError(HTTPStatus.FORBIDDEN, "AccessIDAuthError", str(error)) from error
        names = sorted({name.lower() for name in self.headers if name.lower().startswith("x-mns-")})
        special = "".join(f"{name}:{self.headers[name]}\n" for name in names)
        head = [self.command, *(self.headers.get(name, "") for name in ("Content-MD5", "Content-Type", "Date"))]
        text = "\n".join(head) + f"\n{special}{self.path}"
        expected = base64.b64encode(hmac.new(secret.encode(), text.encode(), hashlib.sha1).digest()).decode()
        if not hmac.compare_digest(expected, signature):
            raise RefusedError(HTTPStatus.FORBIDDEN, "SignatureDoesNotMatch", "The signature is not that of the request.")

    def _do(self, body: bytes) -> tuple[int, str]:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        match self.command, url.path.strip("/").split("/"):
            case "PUT", ["queues", name]:
                return self._create(name, body, "metaoverride" in query)
            case "GET", ["queues", name]:
                return HTTPStatus.OK, self._describe(self._queue(name))
            case "DELETE", ["queues", name]:
                self.server.queues.pop(name, None)
                return HTTPStatus.NO_CONTENT, ""
            case "POST", ["queues", name, "messages"]:
                return self._send(self._queue(name), body)
            case "GET", ["queues", name, "messages"]:
                return self._receive(self._queue(name), query)
            case "DELETE", ["queues", name, "messages"] if "ReceiptHandle" in query:
                self._queue(name).delete(query["ReceiptHandle"])
                return HTTPStatus.NO_CONTENT, ""
            case "DELETE", ["queues", name, "messages"]:
                return self._delete_all(self._queue(name), body)
            case "PUT", ["queues", name, "messages"]:
                seconds = _number(query.get("VisibilityTimeout"), 0, 43200)
                message = self._queue(name).change_visibility(query.get("ReceiptHandle", ""), seconds)
                fields = {"ReceiptHandle": message.handle, "NextVisibleTime": _milliseconds(message.visible)}
                return HTTPStatus.OK, _element("ChangeVisibility", fields)
        raise RefusedError(HTTPStatus.BAD_REQUEST, "InvalidArgument", f"{self.command} {self.path} is not supported.")

    def _queue(self, name: str) -> Queue:
        queue = self.server.queues.get(name)
        if queue is None:
            raise RefusedError(HTTPStatus.NOT_FOUND, "QueueNotExist", "The queue name you provided is not exist.")
        return queue

    def _create(self, name: str, body: bytes, override: bool) -> tuple[int, str]:
        attributes = {tag: int(text) for tag, text in (_fields(_parse(body)) if body else {}).items() if tag in _DEFAULTS}
        self._location = f"{self.server.url}/queues/{name}"
        if override:
            self._queue(name).attributes.update(attributes)
            return HTTPStatus.NO_CONTENT, ""
        if name in self.server.queues:
            return HTTPStatus.NO_CONTENT, ""
        self.server.make(name, **attributes)
        return HTTPStatus.CREATED, ""

    def _describe(self, queue: Queue) -> str:
        active, inactive = queue.counts()
        times = {"CreateTime": int(queue.created), "LastModifyTime": int(queue.created)}
        counts = {"ActiveMessages": active, "InactiveMessages": inactive, "DelayMessages": 0}
        fields = {"QueueName": queue.name, "LoggingEnabled": "False", **queue.attributes, **times, **counts}
        dead = queue.dead_letters
        if dead is None:
            return _element("Queue", fields)
        policy = {"Enabled": "true", "DeadLetterTargetQueue": dead.name, "MaxReceiveCount": queue.most_receives}
        inner = f"{_inner(fields)}<DlqPolicy>{_inner(policy)}</DlqPolicy>"
        return f'<Queue xmlns="{_NAMESPACE}">{inner}</Queue>'

    def _send(self, queue: Queue, body: bytes) -> tuple[int, str]:
        root = _parse(body)
        batch = _tag(root) == "Messages"
        nodes = list(root) if batch else [root]
        if len(nodes) > _BATCH:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "InvalidArgument", "Too many messages.")
        sent = [queue.send(_fields(node).get("MessageBody", "")) for node in nodes]
        fields = [{"MessageId": message.id, "MessageBodyMD5": _md5(message.body)} for message in sent]
        return HTTPStatus.CREATED, _elements("Messages", "Message", fields) if batch else _element("Message", fields[0])

    def _receive(self, queue: Queue, query: Mapping[str, str]) -> tuple[int, str]:
        wait = _number(query.get("waitseconds", str(queue.attributes["PollingWaitSeconds"])), 0, _WAIT_SECONDS)
        received = queue.receive(_number(query.get("numOfMessages", "1"), 1, _BATCH), wait)
        if not received:
            raise RefusedError(HTTPStatus.NOT_FOUND, "MessageNotExist", "Message not exist.")
        fields = [
            {
                "MessageId": message.id,
                "ReceiptHandle": message.handle,
                "MessageBody": message.body,
                "MessageBodyMD5": _md5(message.body),
                "EnqueueTime": _milliseconds(message.enqueued),
                "NextVisibleTime": _milliseconds(message.visible),
                "FirstDequeueTime": _milliseconds(message.first_received),
                "DequeueCount": message.received,
                "Priority": 8,
            }
            for message in received
        ]
        if "numOfMessages" in query:
            return HTTPStatus.OK, _elements("Messages", "Message", fields)
        return HTTPStatus.OK, _element("Message", fields[0])

    def _delete_all(self, queue: Queue, body: bytes) -> tuple[int, str]:
        failed = []
        for node in _parse(body):
            handle = node.text or ""
            try:
                queue.delete(handle)
            except RefusedError as refusal:
                error = {"ErrorCode": refusal.code, "ErrorMessage": refusal.message, "ReceiptHandle": handle}
                failed.append(error)
        if failed:
            return HTTPStatus.NOT_FOUND, _elements("Errors", "Error", failed)
        return HTTPStatus.NO_CONTENT, ""


def _number(text: str | None, low: int, high: int) -> int:
    try:
        number = int(text or "")
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "InvalidArgument", f"{text!r} is not between {low} and {high}.")
    return number


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _md5(body: str) -> str:
    return hashlib.md5(body.encode()).hexdigest().upper()


def _parse(body: bytes) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "MalformedXML", str(error)) from error


def _tag(node: ElementTree.Element) -> str:
    return node.tag.rpartition("}")[2]


def _fields(node: ElementTree.Element) -> dict[str, str]:
    return {_tag(child): child.text or "" for child in node}


def _element(tag: str, fields: Mapping[str, object]) -> str:
    return f'<{tag} xmlns="{_NAMESPACE}">{_inner(fields)}</{tag}>'


def _elements(tag: str, inner: str, all_fields: list[dict[str, object]] | list[dict[str, str]]) -> str:
    children = "".join(f"<{inner}>{_inner(fields)}</{inner}>" for fields in all_fields)
    return f'<{tag} xmlns="{_NAMESPACE}">{children}</{tag}>'


def _inner(fields: Mapping[str, object]) -> str:
    return "".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in fields.items())


def main() -> None:
    """Serves until it is killed."""
    parser = argparse.ArgumentParser(description="A stand-in for Alibaba's MNS.")
    parser.add_argument("--port", type=int, default=9101, help="0: any free one; the address is printed")
    parser.add_argument("--access-key-id", default="test")
    parser.add_argument("--access-key-secret", default="test")
    options = parser.parse_args()
    keys = {options.access_key_id: options.access_key_secret}
    with MnsServer(options.port, lambda id_, _token: keys[id_]) as server:
        print(f"MNS stand-in at {server.url}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
