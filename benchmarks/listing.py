"""A directory kept by listing a bucket, without an engine: filled from nothing, and listed again with nothing changed.

The bucket is a server on this machine, a process of its own, that makes up the pages of a listing; volstream asks it as it asks
S3, through boto3. 10^6 objects (``--rows``) in a hundred folders: ``python -m benchmarks --part listing --rows 10000000``.
"""

from __future__ import annotations

import subprocess
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from benchmarks import directories
from benchmarks.directories import reconcile, with_processor
from benchmarks.report import Figures
from volstream.api.session import Session
from volstream.base.definitions import QueueType
from volstream.changes.directory.keeper import DirectoryKeeper
from volstream.files.providers.access import Access, Keys
from volstream.files.storage import open_store

#: Folders at the top: among these the listing is split.
_FOLDERS = 100

_LOCATION = "s3://benchmark"

#: Sorts after every character of a key.
_LAST = "\U0010ffff"


def measure(session: Session, _: Path, rows: int, figures: Figures) -> None:
    """Measures listings of ``rows`` objects. Raises WrongRowsError."""
    name = f"listing_{rows}"
    volume = session.volumes.create(name, _LOCATION, queue_type=QueueType.NONE, check=False)
    with bucket(rows) as url:
        store = open_store(_LOCATION, Access("s3", "us-east-1", url, credentials="static", keys=Keys("test", "test")))
        for scenario, changed in (("from nothing", rows), ("nothing changed", 0)):
            keeper = DirectoryKeeper(session.volumes.get(name), session.home.catalog, session.home.settings, store=store)
            step = partial(reconcile, keeper, rows, changed)
            with_processor(figures, f"listing, {scenario}", rows, step, memory=f"listing, {scenario}")
    session.volumes.drop(str(volume.name))


@contextmanager
def bucket(*numbers: int, module: str = __name__) -> Iterator[str]:
    """Runs the server; yields its URL."""
    with subprocess.Popen([sys.executable, "-m", module, *map(str, numbers)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


class Pages(BaseHTTPRequestHandler):
    """Answers ListObjectsV2. A continuation token is the number of the next object."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # header and page in one packet, for which the client need not wait
    rows, size = 0, 1000

    def do_GET(self) -> None:
        """Sends a page of a listing."""
        page = self._page(dict(parse_qsl(urlsplit(self.path).query))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""

    def _page(self, asked: Mapping[str, str]) -> str:
        numbers, prefix = range(self.rows), asked.get("prefix", "")
        end = bisect_left(numbers, prefix + _LAST, key=self._key)
        at = max(
            bisect_left(numbers, prefix, key=self._key),
            bisect_right(numbers, asked.get("start-after", ""), key=self._key),
            int(asked.get("continuation-token", 0)),
        )
        found: list[str] = []
        while at < end and len(found) < int(asked.get("max-keys", 1000)):
            key = self._key(at)
            first, slash, _ = key.removeprefix(prefix).partition("/")
            if slash and "delimiter" in asked:
                common = prefix + first + slash
                found.append(f"<CommonPrefixes><Prefix>{common}</Prefix></CommonPrefixes>")
                at = bisect_left(numbers, common + _LAST, key=self._key)
            else:
                found.append(
                    f"<Contents><Key>{key}</Key><LastModified>2026-01-31T12:00:00.000Z</LastModified>"
                    f"<ETag>&quot;{at:032x}&quot;</ETag><Size>{self.size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
                )
                at += 1
        more = f"<NextContinuationToken>{at}</NextContinuationToken>" if at < end else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Prefix>{prefix}</Prefix><IsTruncated>{str(at < end).lower()}</IsTruncated>{more}{''.join(found)}"
            "</ListBucketResult>"
        )

    def _key(self, number: int) -> str:
        """Returns the key of an object; keys sort like their numbers."""
        return f"{number * _FOLDERS // self.rows:02d}/{directories.path_of(number)}"


def serve(pages: type[Pages], rows: int) -> None:
    """Serves ``rows`` objects; says where."""
    pages.rows = rows
    server = Server(("127.0.0.1", 0), pages)
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


class Server(ThreadingHTTPServer):
    """A server that takes many connections at once."""

    request_queue_size = 256


if __name__ == "__main__":
    serve(Pages, int(sys.argv[1]))
