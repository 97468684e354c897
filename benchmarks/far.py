"""Files of a bucket far away, whose every answer takes a while: a job that makes their SHA-256, and a pool of threads with boto3
that does the same. Both know the files already.

The bucket is a server on this machine, a process of its own, which limits no connection's speed.
"""

from __future__ import annotations

import hashlib
import sys
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

from benchmarks.contenders import function_named
from benchmarks.listing import Pages, bucket, serve
from benchmarks.report import BASE, Figures
from benchmarks.scenarios import WrongRowsError
from volstream.api.session import Session

#: Files and their sizes.
SIZES = ((2_000, 20_000), (100, 20_000_000))

#: How long each answer takes.
_SECONDS = 0.03

#: Threads of boto3's pool: more are not faster.
_THREADS = 64

_BUCKET = "benchmark"

#: Credentials of the connections.
CREDENTIALS = {f"far_{count}": {"access_key_id": "test", "access_key_secret": "test"} for count, _ in SIZES}


def measure(session: Session, rounds: int, figures: Figures) -> None:
    """Measures both in turns, after a round that does not count. Raises WrongRowsError."""
    for count, size in SIZES:
        name = f"far_{count}"
        scenario = f"{size / 1e6:g} MB each, {_SECONDS * 1000:g} ms an answer"
        with bucket(count, size, module=__name__) as url:
            session.connections.create(name, "s3", region="us-east-1", endpoint=url, credentials="static")
            session.volumes.create(name, f"s3://{_BUCKET}", connection=name, queue_type="none")
            session.volumes.refresh(name)
            keys = [row["relative_path"] for row in session.volumes[name].files().collect()]
            for number in range(rounds + 1):
                began = time.perf_counter()
                right = _by_threads(url, keys)
                pool = time.perf_counter() - began
                job = session.jobs.create(f"{name}_{number}", function_named("digest"), f"{name}_{number}", volume=name)
                began = time.perf_counter()
                session.jobs.run(str(job.name))
                seconds = time.perf_counter() - began
                rows = session.sql(f"SELECT _file_path, sha256 FROM {job.name}").toArrow().to_pylist()
                if {row["_file_path"]: row["sha256"] for row in rows} != right or len(right) != count:
                    raise WrongRowsError(f"{scenario}: rows are wrong.")
                if number:
                    figures.note(scenario, count, BASE, pool)
                    figures.note(scenario, count, "volstream", seconds)


def _by_threads(url: str, keys: Sequence[str]) -> Mapping[str, str]:
    options = Config(max_pool_connections=_THREADS)
    keyed = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    client: Any = boto3.client("s3", endpoint_url=url, config=options, **keyed)

    def digest(key: str) -> str:
        return hashlib.sha256(client.get_object(Bucket=_BUCKET, Key=key)["Body"].read()).hexdigest()

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(keys, pool.map(digest, keys), strict=True))


class Objects(Pages):
    """Answers ListObjectsV2, GetObject and HeadObject, each after a while. A content is the object's number, and zeros."""

    disable_nagle_algorithm = True
    zeros = memoryview(b"")

    def do_GET(self) -> None:  # noqa: N802  # the server's
        """Sends an object, a part of it, or a page."""
        time.sleep(_SECONDS)
        if not self._key_asked():
            super().do_GET()
            return
        start, end = self._head()
        beginning = self._tag().encode()[start:end]
        self.wfile.write(beginning)
        self.wfile.write(self.zeros[start + len(beginning) : end])

    def do_HEAD(self) -> None:  # noqa: N802  # the server's
        """Describes an object."""
        time.sleep(_SECONDS)
        self._head()

    def _key_asked(self) -> str:
        return urlsplit(self.path).path.removeprefix(f"/{_BUCKET}").strip("/")

    def _tag(self) -> str:
        return f"{bisect_left(range(self.rows), self._key_asked(), key=self._key):032x}"

    def _head(self) -> tuple[int, int]:
        """Sends the headers; returns where the content that is asked for begins and ends."""
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start, end = int(first), int(last) + 1 if last else len(self.zeros)
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("ETag", f'"{self._tag()}"')
        self.send_header("Last-Modified", "Sat, 31 Jan 2026 12:00:00 GMT")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        return start, end


if __name__ == "__main__":
    Objects.size = int(sys.argv[2])
    Objects.zeros = memoryview(bytes(Objects.size))
    serve(Objects, int(sys.argv[1]))
