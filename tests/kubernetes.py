"""As much of a Kubernetes as Spark's scheduler asks for. The containers of its pods run as processes of this host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from volstream.spark.jvm import install

_IMAGE = (Path(__file__).parents[1] / "deploy" / "docker" / "Dockerfile").read_text()
_ENTRYPOINT = json.loads(re.findall(r"^ENTRYPOINT (.*)$", _IMAGE, re.M)[0])
_ENVIRONMENT = dict(re.findall(r"\b(VOLSTREAM_\w+)=(\S+)", _IMAGE))


class Host:
    """Runs containers of the image of deploy/docker: their commands, with paths of this machine for those of the image.

    Attributes:
        paths: folders and files of this machine by those of the image.
    """

    def __init__(self, logs: Path, paths: Mapping[str, str]) -> None:
        self._logs = logs
        self.paths = paths
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, name: str, container: Any, arguments: Sequence[str], **environment: str) -> None:
        """Starts a container's command with other arguments than its own."""
        field = {"status.podIP": "127.0.0.1", "metadata.name": name}
        given = {
            one["name"]: one["value"] if "value" in one else field[one["valueFrom"]["fieldRef"]["fieldPath"]]
            for one in container.get("env", [])
            if one.get("value") or "valueFrom" in one
        }
        command = [*container.get("command", _ENTRYPOINT), *arguments]
        assert command[:2] == ["tini", "--"]
        for variable, value in given.items():
            command = [part.replace(f"$({variable})", value) for part in command]
        command = [self.here(part) for part in command[2:]]
        path = [str(Path(sys.executable).parent), str(install.find_java().executable.parent), os.environ["PATH"]]
        with (self._logs / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *command] if command[0] == "volstream" else command,
                env={
                    "PATH": os.pathsep.join(path),
                    "PYTHONPATH": os.environ["PYTHONPATH"],
                    "HOME": self.here("/var/lib/volstream"),
                    **{name: self.here(value) for name, value in (_ENVIRONMENT | given).items()},
                    **environment,
                },
                cwd=self.here(container.get("workingDir", "/")),
                stdout=log,
                stderr=log,
            )

    def here(self, text: str) -> str:
        for path, own in self.paths.items():
            text = text.replace(path, own)
        return text

    def log(self, name: str) -> str:
        return (self._logs / f"{name}.log").read_text()

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


class Api:
    """Answers the requests of one namespace.

    Attributes:
        asked: verb and resource of each request.
        created: what was created, by resource and name.
    """

    def __init__(self, host: Host, namespace: str) -> None:
        self.host = host
        self.asked: set[tuple[str, str]] = set()
        self.created: dict[tuple[str, str], Any] = {}
        self._prefix = f"/api/v1/namespaces/{namespace}/"
        self._stopped = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api._get(self)

            def do_POST(self) -> None:
                api._post(self)

            def do_PATCH(self) -> None:
                api._patch(self)

            def do_DELETE(self) -> None:
                api._delete(self)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()

    def add(self, resource: str, made: Any) -> Any:
        made["metadata"].setdefault("uid", str(uuid.uuid4()))
        made["metadata"].setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        self.created[resource, made["metadata"]["name"]] = made
        return made

    def _get(self, request: BaseHTTPRequestHandler) -> None:
        resource, name = self._named(request)
        if "watch" in parse_qs(urlsplit(request.path).query):
            self.asked.add(("watch", resource))
            if "Upgrade" in request.headers:
                _answer(request, 200, {})  # not a WebSocket: the client then reads lines
            else:
                _answer(request, 200, None)
                self._stopped.wait()  # nothing happens; Spark also lists
        elif name:
            self.asked.add(("get", resource))
            found = self.created.get((resource, name))
            _answer(request, 200 if found else 404, found or {"kind": "Status", "code": 404})
        else:
            self.asked.add(("list", resource))
            items = [made for (kind, _), made in self.created.items() if kind == resource]
            _answer(request, 200, {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items})

    def _post(self, request: BaseHTTPRequestHandler) -> None:
        resource, _ = self._named(request)
        self.asked.add(("create", resource))
        made = self.add(resource, _body(request))
        if resource == "pods":
            made["status"] = {"phase": "Running", "podIP": "127.0.0.1"}
            (container,) = made["spec"]["containers"]
            self.host.run(made["metadata"]["name"], container, container["args"])
        _answer(request, 201, made)

    def _patch(self, request: BaseHTTPRequestHandler) -> None:
        resource, name = self._named(request)
        self.asked.add(("patch", resource))
        _answer(request, 200, {**self.created.get((resource, name), {}), **_body(request)})

    def _delete(self, request: BaseHTTPRequestHandler) -> None:
        resource, name = self._named(request)
        self.asked.add(("delete" if name else "deletecollection", resource))
        for kind, one in [*self.created]:
            if kind == resource and name in ("", one):
                del self.created[kind, one]
        _answer(request, 200, {"kind": "Status", "status": "Success"})

    def _named(self, request: BaseHTTPRequestHandler) -> tuple[str, str]:
        path = urlsplit(request.path).path
        assert path.startswith(self._prefix), path
        resource, _, name = path.removeprefix(self._prefix).partition("/")
        return resource, name


def _body(request: BaseHTTPRequestHandler) -> Any:
    return json.loads(request.rfile.read(int(request.headers["Content-Length"])))


def _answer(request: BaseHTTPRequestHandler, status: int, body: Any) -> None:
    data = b"" if body is None else json.dumps(body).encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/json")
    if body is not None:
        request.send_header("Content-Length", str(len(data)))
    request.end_headers()
    request.wfile.write(data)
