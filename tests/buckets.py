"""The buckets of ``localstack/up.py``, and of LocalStack, as programs beside volstream see them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers import AZURE_ACCOUNT, AZURE_KEY, served
from volstream.base.definitions.objects import PROVIDERS, ProviderWords

_STANDINS = Path(__file__).parent.parent / "localstack"

#: Of the environment of who uses them.
KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "ALIBABA_CLOUD_ACCESS_KEY_ID": "test",
    "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "test",
    "AZURE_STORAGE_ACCOUNT": AZURE_ACCOUNT,
    "AZURE_STORAGE_KEY": AZURE_KEY,
}

BUCKET, QUEUE = "demo", "demo-events"


@dataclass(frozen=True)
class Cloud:
    """A cloud that runs on this machine, with a bucket and a queue that is notified of its changes.

    Attributes:
        kind: the scheme of its locations.
        messages: where the queue's server is.
    """

    kind: str
    endpoint: str
    messages: str

    @property
    def region(self) -> str:
        return {"s3": "us-east-1", "oss": "cn-hangzhou"}.get(self.kind, "")

    @property
    def in_region(self) -> str:
        """The clause of SQL that says so."""
        return f" REGION = '{self.region}'" if self.region else ""

    @property
    def words(self) -> ProviderWords:
        return PROVIDERS[self.kind]

    @property
    def queue(self) -> str:
        """Its name; only Amazon's needs no address."""
        paths = {"oss": f"queues/{QUEUE}", "gs": f"projects/tests/subscriptions/{QUEUE}", "az": f"{AZURE_ACCOUNT}/{QUEUE}"}
        return f"{self.messages}/{paths[self.kind]}" if self.kind in paths else QUEUE

    @property
    def connection(self) -> Sequence[str]:
        """Options of ``create-connection``."""
        return ["--type", self.kind, "--endpoint", self.endpoint, *(["--region", self.region] if self.region else [])]

    def bucket(self) -> Bucket:
        return {"s3": _s3, "oss": _oss, "gs": _gs, "az": _az}[self.kind](self)


@dataclass(frozen=True)
class Bucket:
    """Objects of the cloud's bucket, changed by other programs.

    Attributes:
        keys: those below a prefix.
    """

    put: Callable[[str, bytes], object]
    delete: Callable[[str], object]
    get: Callable[[str], bytes]
    keys: Callable[[str], Iterable[str]]

    def texts(self, prefix: str) -> Mapping[str, str]:
        """The objects below a prefix, by the rest of their keys."""
        keys = [*self.keys(prefix)]
        with ThreadPoolExecutor(8) as pool:
            return {
                key.removeprefix(prefix): content.decode() for key, content in zip(keys, pool.map(self.get, keys), strict=True)
            }


def _s3(cloud: Cloud) -> Bucket:
    import boto3

    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    client = boto3.client("s3", endpoint_url=cloud.endpoint, region_name=cloud.region, **keys)

    def listed(prefix: str) -> Iterator[str]:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix):
            yield from (one["Key"] for one in page.get("Contents", ()))

    return Bucket(
        lambda key, content: client.put_object(Bucket=BUCKET, Key=key, Body=content),
        lambda key: client.delete_object(Bucket=BUCKET, Key=key),
        lambda key: bytes(client.get_object(Bucket=BUCKET, Key=key)["Body"].read()),
        listed,
    )


def _oss(cloud: Cloud) -> Bucket:
    import oss2

    auth = oss2.AuthV4("test", "test")
    bucket = oss2.Bucket(auth, cloud.endpoint, BUCKET, region=cloud.region, is_verify_object_strict=False)
    return Bucket(
        bucket.put_object,
        bucket.delete_object,
        lambda key: bytes(bucket.get_object(key).read()),
        lambda prefix: (one.key for one in oss2.ObjectIteratorV2(bucket, prefix=prefix)),
    )


def _gs(cloud: Cloud) -> Bucket:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    made = AnonymousCredentials()  # type: ignore[no-untyped-call]  # Google's has no types
    bucket = Client("-", made, client_options={"api_endpoint": cloud.endpoint}).bucket(BUCKET)
    return Bucket(
        lambda key, content: bucket.blob(key).upload_from_string(content, "text/plain"),
        lambda key: bucket.blob(key).delete(),
        lambda key: bytes(bucket.blob(key).download_as_bytes()),
        lambda prefix: (blob.name for blob in bucket.client.list_blobs(BUCKET, prefix=prefix)),
    )


def _az(cloud: Cloud) -> Bucket:
    from azure.storage.blob import BlobServiceClient

    keys = {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY}
    container = BlobServiceClient(f"{cloud.endpoint}/{AZURE_ACCOUNT}", keys).get_container_client(BUCKET)
    return Bucket(
        lambda key, content: container.upload_blob(key, content, overwrite=True),
        container.delete_blob,
        lambda key: bytes(container.download_blob(key).readall()),
        lambda prefix: container.list_blob_names(name_starts_with=prefix),
    )


@contextmanager
def clouds(kinds: Sequence[str] = ("s3", "oss")) -> Iterator[Mapping[str, Cloud]]:
    """Clouds by kind, on free ports, while the block runs."""
    command = [sys.executable, str(_STANDINS / "up.py"), *kinds, "--s3-port", "0", "--oss-port", "0", "--mns-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        said = ""
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if line.startswith("Ready"):
                break

        def at(what: str) -> str:
            found = re.search(rf"{what} at (http://[\d.]+:\d+)", said)
            assert found, said
            return found[1]

        places = {
            "s3": ("STS", "STS"),
            "oss": ("OSS and STS", "MNS"),
            "gs": ("Cloud Storage", "Pub/Sub"),
            "az": ("Blob Storage", "Storage Queues"),
        }
        made = {kind: Cloud(kind, *map(at, places[kind])) for kind in kinds}
        try:
            yield made
        finally:
            process.kill()


@contextmanager
def localstack() -> Iterator[Mapping[str, Cloud]]:
    """LocalStack's S3 in place of moto's, while the block runs."""
    with served("localstack") as url:
        wiring = [sys.executable, str(_STANDINS / "wire_s3.py"), url, "--bucket", BUCKET, "--queue", QUEUE]
        subprocess.run(wiring, check=True, stdout=subprocess.DEVNULL, timeout=60)
        yield {"s3": Cloud("s3", url, url)}
