"""A process that writes a table in real time and says what has arrived; for tests that kill it.

``python -m tests.integration.ingest.writer LOCATION STREAM ROWS [--commit]``: rows ``STREAM-n`` are appended in flushes of
one to seven; each row that was acknowledged is printed. With ``--commit`` every third flush is followed by a commit.
"""

from __future__ import annotations

import random
import sys

from tests.tails import no_spark
from volstream.ingest import FlushMode, RealtimeOperation, RealtimeOptions, RealtimeStream
from volstream.ingest.local import LocalTable
from volstream.tails.move import move
from volstream.tails.writer import TailWriter


def main(location: str, name: str, count: int, *, commit: bool) -> None:
    """Writes the rows."""
    options = RealtimeOptions(flush_mode=FlushMode.MANUAL_FLUSH, request_failed_retry_internal_ms=10)
    table = LocalTable(TailWriter(location), lambda: None)
    stream = RealtimeStream(table, "t", RealtimeOperation.APPEND_ONLY, options)
    chosen = random.Random(name)
    number = flushes = 0
    while number < count:
        mine = range(number, min(count, number + chosen.randint(1, 7)))
        for one in mine:
            row = stream.create_row()
            row.set_values({"id": f"{name}-{one:04}", "n": one})
            stream.apply(row)
        stream.flush()
        for one in mine:
            print(f"{name}-{one:04}", flush=True)  # noqa: T201  # what the test reads
        number, flushes = mine.stop, flushes + 1
        if commit and flushes % 3 == 0:
            move(location, no_spark)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), commit="--commit" in sys.argv)
