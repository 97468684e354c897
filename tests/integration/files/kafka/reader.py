"""A process that reads the topics of a home, and commits what arrives, until it is killed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from tests.forked import Forked
from tests.tails import no_spark
from volstream.base import config
from volstream.base.threads import Stop
from volstream.home import Home
from volstream.server.daemon.arrivals import Committer, SourceWorkers


class Reader(Forked):
    """A process that reads without an end of its own; its log is in the home."""

    def __init__(self, home: Path, fault: str = "") -> None:
        super().__init__(_read, home, fault=fault)


def _read(folder: Path) -> None:
    with (folder / "reader.log").open("ab") as log:
        os.dup2(log.fileno(), 2)
    stop = Stop()
    with Home(config.load(folder, commit_seconds=0.3, lease_seconds=5.0), no_spark) as home:
        threading.Thread(target=Committer(home, home.settings, stop).run).start()
        SourceWorkers(home, stop).run()
