"""What Azurite lacks: events. A server in front of it that passes requests on, and puts an event into a queue for each blob that
was written or deleted, as Event Grid does.

Needs the package of Azure's queues.
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import uuid
from contextlib import closing
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

from azure.storage.queue import QueueClient

#: Of answers to pass on; the others are about the connection.
_DROPPED = ("transfer-encoding", "connection", "content-length", "keep-alive", "date", "server")


class EventGrid(ThreadingHTTPServer):
    """The server.

    Args:
        behind: host and port of Azurite's blobs.
        queue: of the events of one container.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, behind: str, container: str, queue: QueueClient, port: int = 0, host: str = "127.0.0.1") -> None:
        super().__init__((host, port), _Handler)
        self.behind, self.container, self.queue = behind, container, queue
        self.sending = threading.Lock()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores it: clients hang up."""

    def tell(self, api: str, kind: str, key: str) -> None:
        """Puts an event into the queue."""
        url = f"https://account.blob.core.windows.net/{self.container}/{quote(key)}"
        event = {
            "topic": "/subscriptions/s/resourceGroups/g/providers/Microsoft.Storage/storageAccounts/account",
            "subject": f"/blobServices/default/containers/{self.container}/blobs/{key}",
            "eventType": f"Microsoft.Storage.{kind}",
            "eventTime": datetime.now(UTC).isoformat(),
            "id": str(uuid.uuid4()),
            "data": {"api": api, "blobType": "BlockBlob", "url": url},
        }
        with self.sending:
            self.queue.send_message(base64.b64encode(json.dumps(event).encode()).decode())


class _Handler(BaseHTTPRequestHandler):
    server: EventGrid
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        with closing(http.client.HTTPConnection(self.server.behind, timeout=60)) as connection:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            said = answer.read()
        if answer.status < 300:
            self._tell()
        self.send_response(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _DROPPED:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on  # noqa: N815  # names of the library

    def _tell(self) -> None:
        parts = urlsplit(self.path)
        _, container, key = (*parts.path.lstrip("/").split("/", 2), "", "")[:3]
        what = parse_qs(parts.query).get("comp", [""])[0]
        if container != self.server.container or not key:
            return
        key = unquote(key).replace("\\", "/")  # as blobs are named
        if self.command == "DELETE":
            self.server.tell("DeleteBlob", "BlobDeleted", key)
        elif self.command == "PUT" and what == "blocklist":
            self.server.tell("PutBlockList", "BlobCreated", key)
        elif self.command == "PUT" and not what:
            self.server.tell("CopyBlob" if "x-ms-copy-source" in self.headers else "PutBlob", "BlobCreated", key)
