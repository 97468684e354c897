"""A process that reads the topics of a home, and commits what arrives, until it is killed.

``python -m tests.integration.kafka.reader HOME``
"""

from __future__ import annotations

import sys
import threading

from tests.tails import no_spark
from volstream import config
from volstream.daemon.feeds import Feeds
from volstream.daemon.tails import Committer
from volstream.home import Home
from volstream.lifecycle.stop import Stop


def main(folder: str) -> None:
    """Reads, without an end of its own."""
    stop = Stop()
    with Home(config.load(folder, commit_seconds=0.3, lease_seconds=5.0), no_spark) as home:
        threading.Thread(target=Committer(home, home.settings, stop).run).start()
        Feeds(home, stop).run()


if __name__ == "__main__":
    main(sys.argv[1])
