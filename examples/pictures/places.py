"""The places of the demo's pictures: a directory, or a bucket of one of the clouds in ``localstack/up.py``.

What does not belong here: the steps of the demo (``demo.py``).
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import shlex
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

CHECKOUT = Path(__file__).resolve().parents[2]
STANDINS = CHECKOUT / "localstack"


class Place(Protocol):
    """A place where files are added and deleted; prints the command that a user would run for each.

    Attributes:
        kind: one word for it.
        heard: how the daemon learns of changes.
        stays: whether it still exists when the demo has ended.
        connection: arguments of the command that creates its connection; empty: it needs none.
        volume: arguments of ``create-volume`` after the name.
    """

    kind: str
    heard: str
    stays: bool
    connection: tuple[str, ...]
    volume: tuple[str, ...]

    def put(self, source: Path, name: str) -> None:
        """Copies a file to ``name``, replacing an existing one."""

    def delete(self, name: str) -> None:
        """Removes a file."""


class Folder:
    """A directory of this machine."""

    kind, heard, stays = "folder", "watches the folder", True
    connection: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self._path = path
        self._shown = path.relative_to(CHECKOUT)
        self.volume = (str(self._shown),)
        path.mkdir(parents=True)

    def put(self, source: Path, name: str) -> None:
        print(f"$ cp {source.name} {self._shown}/{name}")
        shutil.copyfile(source, self._path / name)

    def delete(self, name: str) -> None:
        print(f"$ rm {self._shown}/{name}")
        (self._path / name).unlink()


class Bucket:
    """A bucket of a stand-in in this process, on free ports of 127.0.0.1, with a queue that is notified of changes.

    Its keys become those of the environment, which all commands inherit.
    """

    kind, heard, stays = "bucket", "reads the queue, which the bucket notifies of changes,", False

    def __init__(self, type_next: str) -> None:
        """Parses the commands that ``up.py`` prints: the keys, the connection and the volume."""
        lines = type_next.replace("\\\n", "").splitlines()
        typed = [shlex.split(line) for line in lines if line.strip().startswith(("export ", "volstream "))]
        *exports, (_, *connect), (_, _, _, location, *options) = typed
        os.environ.update(key.split("=", 1) for _, *keys in exports for key in keys)
        self.connection, self.volume = tuple(connect), (location, *options)
        options_of = dict(itertools.pairwise(connect))
        self.endpoint, self.region = options_of["--endpoint"], options_of.get("--region", "")
        self.bucket, _, self.folder = location.partition("://")[2].partition("/")


class S3(Bucket):
    """Files by boto3."""

    def __init__(self) -> None:
        super().__init__(_up().start_s3("127.0.0.1", 0, "demo", "demo-events"))
        import boto3

        # Otherwise the bucket's name would be part of the host name.
        style = boto3.session.Config(s3={"addressing_style": "path"})
        self._s3 = boto3.client("s3", region_name=self.region, endpoint_url=self.endpoint, config=style)

    def put(self, source: Path, name: str) -> None:
        key = f"{self.folder}/{name}"
        print(f">>> s3.upload_file({source.name!r}, {self.bucket!r}, {key!r})")
        self._s3.upload_file(str(source), self.bucket, key)

    def delete(self, name: str) -> None:
        key = f"{self.folder}/{name}"
        print(f">>> s3.delete_object(Bucket={self.bucket!r}, Key={key!r})")
        self._s3.delete_object(Bucket=self.bucket, Key=key)


class Oss(Bucket):
    """Files by oss2."""

    def __init__(self) -> None:
        super().__init__(_up().start_oss("127.0.0.1", 0, 0, "demo", "demo-events"))
        import oss2

        keys = (os.environ[f"ALIBABA_CLOUD_ACCESS_KEY_{part}"] for part in ("ID", "SECRET"))
        auth = oss2.ProviderAuthV4(oss2.StaticCredentialsProvider(*keys))
        self._bucket: Any = oss2.Bucket(auth, self.endpoint, self.bucket, region=self.region, is_path_style=True)

    def put(self, source: Path, name: str) -> None:
        key = f"{self.folder}/{name}"
        print(f">>> bucket.put_object_from_file({key!r}, {source.name!r})")
        self._bucket.put_object_from_file(key, str(source))

    def delete(self, name: str) -> None:
        key = f"{self.folder}/{name}"
        print(f">>> bucket.delete_object({key!r})")
        self._bucket.delete_object(key)


class Gs(Bucket):
    """Files by google-cloud-storage."""

    def __init__(self) -> None:
        super().__init__(_up().start_gs("demo", "demo-events"))
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client

        client = Client("demo", AnonymousCredentials(), client_options={"api_endpoint": self.endpoint})
        self._bucket: Any = client.bucket(self.bucket)

    def put(self, source: Path, name: str) -> None:
        key = f"{self.folder}/{name}"
        print(f">>> bucket.blob({key!r}).upload_from_filename({source.name!r})")
        self._bucket.blob(key).upload_from_filename(str(source))

    def delete(self, name: str) -> None:
        key = f"{self.folder}/{name}"
        print(f">>> bucket.blob({key!r}).delete()")
        self._bucket.blob(key).delete()


class Azure(Bucket):
    """Files by azure-storage-blob."""

    def __init__(self) -> None:
        super().__init__(_up().start_az("demo", "demo-events"))
        from azure.storage.blob import ContainerClient

        account, key = (os.environ[f"AZURE_STORAGE_{part}"] for part in ("ACCOUNT", "KEY"))
        keys = {"account_name": account, "account_key": key}
        self._container = ContainerClient(f"{self.endpoint}/{account}", self.bucket, credential=keys)

    def put(self, source: Path, name: str) -> None:
        key = f"{self.folder}/{name}"
        print(f">>> container.upload_blob({key!r}, open({source.name!r}, 'rb'), overwrite=True)")
        with source.open("rb") as content:
            self._container.upload_blob(key, content, overwrite=True)

    def delete(self, name: str) -> None:
        key = f"{self.folder}/{name}"
        print(f">>> container.delete_blob({key!r})")
        self._container.delete_blob(key)


def _up() -> ModuleType:
    """Imports ``localstack/up.py`` by its path, because a module beside it has the name of an SDK."""

    spec = importlib.util.spec_from_file_location("localstack_up", STANDINS / "up.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
