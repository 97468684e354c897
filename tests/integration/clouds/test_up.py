"""What a user starts from a shell: both clouds at once, and the stand-ins one by one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.clouds import STANDINS
from tests.servers import AZURE_ACCOUNT, AZURE_KEY
from tests.waiting import eventually
from volstream.base.model.hints import ObjectHint
from volstream.files.providers.access import Access, Keys
from volstream.files.providers.aws import credentials
from volstream.files.queues import open_queue
from volstream.files.queues.base import QueueSettings, QueueSpec
from volstream.files.storage import open_store
from volstream.files.storage.base import Writable

TEST = Keys("test", "test")


@contextmanager
def started(script: str, *arguments: str, until: str) -> Iterator[str]:
    """What the script says up to and including the line that has ``until``."""
    command = [sys.executable, str(STANDINS / script), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            said = ""
            assert process.stdout is not None
            for line in process.stdout:
                said += line
                if until in line:
                    break
            yield said
        finally:
            process.kill()


def received(kind: str, name: str, access: Access) -> list[object]:
    """What the queue reports, without deliveries that report nothing."""
    queue = open_queue(kind, QueueSpec("", settings=QueueSettings(wait_seconds=1), name=name, access=access))
    queue.start()
    hints: list[object] = []

    def some() -> bool:
        for message in queue.receive(10, 1):
            assert message.rejection is None
            hints.extend(message.hints)
        return bool(hints)

    eventually(some)
    queue.stop()
    return hints


def oss_put(endpoint: str, key: str) -> None:
    import oss2

    auth = oss2.ProviderAuthV4(oss2.StaticCredentialsProvider("test", "test"))
    bucket = oss2.Bucket(auth, endpoint, "demo", region="cn-hangzhou", is_path_style=True)
    bucket.put_object(key, b"x")
    bucket.session.session.close()


def test_both_clouds_start_with_a_bucket_that_notifies_a_queue() -> None:
    ports = ("--s3-port", "0", "--oss-port", "0", "--mns-port", "0")
    with started("up.py", *ports, until="Ready") as said:
        s3, oss = re.findall(r"--endpoint (\S+)", said)
        names = re.findall(r"--queue-name (\S+)", said)
        assert "create-volume oss_files oss://demo/in" in said
        access = Access("s3", "us-east-1", s3, credentials="static", keys=TEST)
        credentials.client(access, "s3").put_object(Bucket="demo", Key="in/a b", Body=b"x")
        assert received("sqs", names[0], access) == [ObjectHint("demo", "in/a b")]
        client, odd = credentials.client(access, "s3"), ["%25", "%2525", "%41", "'\"", "+", "//a", "?q"]
        for key in odd:
            client.put_object(Bucket="demo", Key=f"odd/{key}", Body=b"x")
        listed = client.list_objects_v2(Bucket="demo", Prefix="odd/")["Contents"]
        assert [found["Key"].removeprefix("odd/") for found in listed] == sorted(odd)
        oss_put(oss, "in/a b")
        found = received("mns", names[1], Access("oss", "cn-hangzhou", oss, credentials="static", keys=TEST))
        assert found == [ObjectHint("demo", "in/a b")]


@pytest.mark.long
def test_the_clouds_of_servers_by_others_start_with_a_bucket_that_notifies_a_queue() -> None:
    with started("up.py", "gs", "az", until="Ready") as said:
        places = re.findall(r"--endpoint (\S+)", said)
        names = re.findall(r"--queue-name (\S+)", said)
        keys = Keys(AZURE_ACCOUNT, AZURE_KEY)
        accesses = Access("gs", endpoint=places[0]), Access("az", endpoint=places[1], credentials="static", keys=keys)
        for access, kind, name in zip(accesses, ("pubsub", "storagequeue"), names, strict=True):
            store = open_store(f"{access.provider}://demo", access)
            assert isinstance(store, Writable)
            store.write("in/ü a b+%20", b"x")
            assert received(kind, name, access)[0] == ObjectHint("demo", "in/ü a b+%20")


def test_the_stand_ins_run_as_scripts_though_one_shares_its_name_with_an_sdk() -> None:
    with started("mns.py", "--port", "0", until="stand-in at") as said:
        mns = said.split()[-1]
        _make_queue(mns)
        with started("oss.py", "--port", "0", "--bucket", "demo", "--mns", mns, "--queue", "q", until="at") as said:
            oss_put(said.split()[-1], "in/a")
            access = Access("oss", "cn-hangzhou", credentials="static", keys=TEST)
            assert received("mns", f"{mns}/queues/q", access) == [ObjectHint("demo", "in/a")]


def _make_queue(url: str) -> None:
    from mns.account import Account
    from mns.queue import QueueMeta

    account = Account(url, "test", "test")
    account.get_queue("q").create(QueueMeta())
    account.mns_client.close_connection()


def test_the_folder_is_not_a_package_and_the_compose_file_uses_what_is_in_it() -> None:
    assert not (STANDINS / "__init__.py").exists()
    compose: Any = yaml.safe_load((STANDINS / "docker-compose.yml").read_text())
    commands = " ".join(service.get("command", "") for service in compose["services"].values())
    scripts = re.findall(r"/localstack/(\w+\.py)", commands)
    assert scripts
    assert all(Path(STANDINS, script).exists() for script in scripts)
    published = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
