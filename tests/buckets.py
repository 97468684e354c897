"""The buckets of ``localstack/up.py``, and of LocalStack, as programs beside volstream see them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import served

_STANDINS = Path(__file__).parent.parent / "localstack"

#: Of the environment of who uses them.
KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "ALIBABA_CLOUD_ACCESS_KEY_ID": "test",
    "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "test",
}

BUCKET, QUEUE = "demo", "demo-events"


@dataclass(frozen=True)
class Cloud:
    """A cloud that runs on this machine, with a bucket and a queue that is notified of its changes.

    Attributes:
        kind: ``s3`` or ``oss``.
        messages: where the queue's server is.
    """

    kind: str
    endpoint: str
    messages: str

    @property
    def region(self) -> str:
        return {"s3": "us-east-1", "oss": "cn-hangzhou"}[self.kind]

    @property
    def queue_type(self) -> str:
        return {"s3": "AWS_SQS", "oss": "ALICLOUD_MNS"}[self.kind]

    @property
    def queue(self) -> str:
        """Its name; Alibaba's are named by an address."""
        return QUEUE if self.kind == "s3" else f"{self.messages}/queues/{QUEUE}"

    def bucket(self) -> Bucket:
        return Bucket(self)


class Bucket:
    """Objects of the cloud's bucket, changed by other programs."""

    def __init__(self, cloud: Cloud) -> None:
        self._s3: Any = None
        if cloud.kind == "s3":
            import boto3

            keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
            self._s3 = boto3.client("s3", endpoint_url=cloud.endpoint, region_name=cloud.region, **keys)
        else:
            import oss2

            self._oss = oss2.Bucket(
                oss2.AuthV4("test", "test"), cloud.endpoint, BUCKET, region=cloud.region, is_verify_object_strict=False
            )

    def put(self, key: str, text: str) -> None:
        if self._s3 is not None:
            self._s3.put_object(Bucket=BUCKET, Key=key, Body=text.encode())
        else:
            self._oss.put_object(key, text.encode())

    def delete(self, key: str) -> None:
        if self._s3 is not None:
            self._s3.delete_object(Bucket=BUCKET, Key=key)
        else:
            self._oss.delete_object(key)

    def texts(self, prefix: str) -> Mapping[str, str]:
        """The objects below a prefix, by the rest of their keys."""
        if self._s3 is not None:
            pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
            keys = [one["Key"] for page in pages for one in page.get("Contents", ())]
            return {key.removeprefix(prefix): self._s3.get_object(Bucket=BUCKET, Key=key)["Body"].read().decode() for key in keys}
        import oss2

        found = [one.key for one in oss2.ObjectIteratorV2(self._oss, prefix=prefix)]
        return {key.removeprefix(prefix): self._oss.get_object(key).read().decode() for key in found}


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

        made = {}
        if "s3" in kinds:
            made["s3"] = Cloud("s3", at("STS"), at("STS"))
        if "oss" in kinds:
            made["oss"] = Cloud("oss", at("OSS and STS"), at("MNS"))
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
