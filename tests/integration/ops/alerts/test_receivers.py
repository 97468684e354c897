"""Deliveries to real servers and real commands."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from tests.receivers import receiving
from tests.waiting import eventually
from volstream.base import config
from volstream.base.config import Receiver
from volstream.errors import InvalidValueError
from volstream.ops.alerts import Alert, AlertEvent, Subject
from volstream.ops.receivers import DeliveryError, deliver

ALERT = Alert(AlertEvent.FAILURE, Subject("job", "sizes"), True, "1 file failed.", "volstream list failures --job sizes")
NOW = datetime(2026, 3, 1, tzinfo=UTC)
PAYLOAD = ALERT.payload("/home", "host", NOW, None)
SECRET = "T0P/S3CR3T"


def webhook(url: str, **headers: str) -> Receiver:
    return Receiver.model_validate({"webhook": url, "headers": headers})


def command(*words: str) -> Receiver:
    return Receiver(command=words)


def test_a_webhook_gets_the_payload_as_json_with_its_headers() -> None:
    with receiving() as server:
        deliver(webhook(f"{server.url}/hook?x=1", Authorization="Bearer abc"), PAYLOAD)
        (post,) = server.posts
    assert post.json == PAYLOAD
    assert (post.path, post.headers["authorization"]) == ("/hook?x=1", "Bearer abc")
    assert post.headers["content-type"] == "application/json"
    assert post.json["text"].startswith("Job sizes: 1 file failed.\n")


def test_secrets_come_from_the_environment_and_from_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    with receiving() as server:
        monkeypatch.setenv("HOOK_PLACE", f"{server.url}/of-env")
        deliver(webhook("${env:HOOK_PLACE}/x", Token=f"Bearer ${{file:{tmp_path}/token}}"), PAYLOAD)
        (post,) = server.posts
    assert (post.path, post.headers["token"]) == ("/of-env/x", "Bearer from-file")
    for odd in ("${env:NO_SUCH_VARIABLE}", "${file:/no/such/file}"):
        with pytest.raises(InvalidValueError, match=r"NO_SUCH_VARIABLE|/no/such/file"):
            deliver(webhook(odd), PAYLOAD)


@pytest.mark.parametrize("status", [500, 404, 302])
def test_an_answer_that_is_no_success_is_a_failure_and_redirects_are_not_followed(status: int) -> None:
    with receiving() as server, receiving() as other:
        server.status, server.location = status, other.url
        with pytest.raises(DeliveryError, match=f"it answered {status}") as caught:
            deliver(webhook(f"{server.url}/{SECRET}", Authorization=SECRET), PAYLOAD)
        assert not other.posts
    assert SECRET not in str(caught.value)


def test_a_webhook_that_is_down_or_is_none_fails_without_its_secrets() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        down = f"http://user:{SECRET}@127.0.0.1:{free.getsockname()[1]}/{SECRET}"
    for url in (down, f"ftp://host/{SECRET}", f"http://[{SECRET}", f"https:{SECRET}", f"http://no such/{SECRET}"):
        with pytest.raises((DeliveryError, InvalidValueError)) as caught:
            deliver(webhook(url), PAYLOAD)
        assert SECRET not in str(caught.value)


def test_a_webhook_that_hangs_is_given_up() -> None:
    with receiving() as server:
        server.hangs = threading.Event()
        began = time.monotonic()
        with pytest.raises(DeliveryError, match="did not answer in time"):
            deliver(webhook(server.url), PAYLOAD, seconds=0.3)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("scheme", "begin"), [pytest.param("http", b"HTTP/1.1 200 ", marks=pytest.mark.long), ("https", b"\x16\x03\x03\x40\x00")]
)
def test_a_webhook_that_answers_a_byte_at_a_time_is_given_up_and_its_connection_shut(scheme: str, begin: bytes) -> None:
    def drip() -> None:
        connection, _ = listening.accept()
        with connection, suppress(ConnectionError):
            connection.sendall(begin)
            while not ended.wait(0.05):
                connection.sendall(b"\x02")
            return
        shut.set()

    ended, shut = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        try:
            with pytest.raises(DeliveryError, match="did not answer in time"):
                # Half of it is for connecting: a machine that is busy for as long would see both limits pass at once.
                deliver(webhook(f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"), PAYLOAD, seconds=2)
            eventually(lambda: all(one.name != "alert" for one in threading.enumerate()), 5)
            assert shut.wait(5)
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize(
    ("token", "answer"),
    [
        ("TOP\nSECRET", b""),
        ("TOPSECRET", b"HTTP/1.1 401 Nope: Bearer TOPSECRET\r\nContent-Length: 0\r\n\r\n"),
        ("TOPSECRET", b"no HTTP, but TOPSECRET\r\n\r\n"),
    ],
)
def test_no_message_repeats_a_header(token: str, answer: bytes) -> None:
    def serve() -> None:
        with suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        receiver = Receiver.model_validate({"webhook": url, "headers": {"Authorization": f"Bearer {token}"}})
        with pytest.raises(DeliveryError) as caught:
            deliver(receiver, PAYLOAD, seconds=5)
        assert "SECRET" not in str(caught.value)
    thread.join(5)


def test_the_body_of_an_answer_is_not_read() -> None:
    def serve() -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b"x" * 65536)
                sent.append(65536)

    sent: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        deliver(webhook(f"http://127.0.0.1:{listening.getsockname()[1]}"), PAYLOAD, seconds=10)
        thread.join(10)
    assert sum(sent) < 64 << 20


def test_a_command_gets_the_payload_and_variables(tmp_path: Path) -> None:
    code = "import os,sys; print(sys.stdin.read() + os.environ['VOLSTREAM_ALERT_NAME'], file=open(sys.argv[1], 'w'))"
    deliver(command(sys.executable, "-c", code, str(tmp_path / "out")), PAYLOAD)
    text = (tmp_path / "out").read_text()
    assert json.loads(text.removesuffix("sizes\n")) == PAYLOAD


def test_a_command_is_run_without_a_shell_unless_one_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given: Any = f"touch '{tmp_path}/a b' $(touch {tmp_path}/no)"
    deliver(Receiver(command=given), PAYLOAD)
    assert (tmp_path / "a b").exists()
    assert not (tmp_path / "no").exists()
    given = f"sh -c 'echo $VOLSTREAM_ALERT_EVENT > {tmp_path}/event'"
    deliver(Receiver(command=given), PAYLOAD)
    assert (tmp_path / "event").read_text() == "failure\n"


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(DeliveryError, match="The command sh ended with status 7: no pager"):
        deliver(command("sh", "-c", "echo first >&2; echo no pager >&2; exit 7"), PAYLOAD)
    with pytest.raises(DeliveryError, match="cannot be run: No such file"):
        deliver(command("/no/such/command"), PAYLOAD)


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(DeliveryError, match=r"took longer than 0\.5 s"):
        deliver(command("sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; wait"), PAYLOAD, seconds=0.5)
    child = int((tmp_path / "pid").read_text())
    eventually(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


def test_a_command_may_leave_something_running(tmp_path: Path) -> None:
    began = time.monotonic()
    deliver(command("sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid"), PAYLOAD)
    assert time.monotonic() - began < 5
    psutil.Process(int((tmp_path / "pid").read_text())).kill()


def test_a_command_need_not_read_a_large_payload() -> None:
    deliver(command("true"), {**PAYLOAD, "why": "x" * 1_000_000})


def test_a_receiver_has_a_webhook_or_a_command_and_settings_do_not_show_it(tmp_path: Path) -> None:
    for odd in ({}, {"webhook": "http://x", "command": "y"}, {"webhook": "http://x", "wrong": 1}):
        with pytest.raises(ValidationError):
            Receiver.model_validate(odd)
    settings = config.load(
        tmp_path, receivers={"ops": {"webhook": f"https://h/{SECRET}", "headers": {"A": SECRET}}}, openlineage={"a": SECRET}
    )
    assert SECRET not in repr(settings)


def test_no_chat_takes_names_of_files_for_mentions_or_links() -> None:
    alert = Alert(AlertEvent.FAILURE, Subject("job", "j"), True, "<!channel> @here <https://x|y>\x1b[31m\n", "do")
    text = alert.payload("/home", "host", NOW, None)["text"]
    assert not {"<", ">", "\x1b"} & {*text}
    assert "@here" not in text
