"""Commits what arrives for tables by real-time streams, so that table streams, dynamic tables and plain Spark see it; and
deletes events that are too old."""

from __future__ import annotations

import time
from contextlib import suppress

from volstream.base.config import Settings
from volstream.base.definitions import Source
from volstream.base.log import get
from volstream.base.model.names import Name
from volstream.base.threads import Backoff, FailureTracker, Stop, run_loop
from volstream.catalog.alerts import ConditionKind
from volstream.errors import CatalogError, EngineLostError, in_brief, unexpected
from volstream.home import Home
from volstream.ingest.local import commit
from volstream.ingest.sources.tables import expire
from volstream.tables.delta import places
from volstream.tables.delta.places import is_table
from volstream.tables.tails.writer import MovePlanner

_log = get("commits")

#: Interval of commits at most, so that a daemon follows new tables; and of sweeps, which list folders.
_LOOK_SECONDS, _SWEEP_SECONDS = 60.0, 3600.0


class Committer:
    """Commits every ``commit_seconds`` while a daemon runs. Once an hour it deletes files that no tail needs any longer, and
    events that are older than their stream's retention.

    One table that fails holds no other up.
    """

    def __init__(self, home: Home, settings: Settings, stop: Stop) -> None:
        self._home = home
        self._seconds = min(settings.commit_seconds or _LOOK_SECONDS, _LOOK_SECONDS)
        self._stop = stop
        self._next_sweep = time.monotonic()
        self._to_expire: dict[Name, Source] = {}
        # What is recorded, also by a daemon that ended.
        causes = home.catalog.conditions.causes(ConditionKind.TABLE)
        self._troubles = {Name.parse(name): cause for name, cause in causes.items()}

    @property
    def failing(self) -> dict[str, str]:
        """What prevents commits at present, by table."""
        return {str(name): reason for name, reason in dict(self._troubles).items()}

    def run(self) -> None:
        """Runs in its own thread; returns when stopped."""
        run_loop(self._tick, self._stop, FailureTracker("commits", _log, Backoff()))

    def _tick(self) -> None:
        if self._stop.wait(self._seconds):
            return
        catalog = self._home.catalog
        sweeps = time.monotonic() >= self._next_sweep
        if sweeps:
            self._next_sweep = time.monotonic() + _SWEEP_SECONDS
        tails = catalog.tails.list()
        for dropped in self._troubles.keys() - tails.keys():
            del self._troubles[dropped]
        for name, location in tails.items():
            try:
                if is_table(location):
                    commit(catalog, name, location, lambda: self._home.gateway)
                    self._note(name, None)
                    if sweeps:
                        MovePlanner(location).sweep()
                else:
                    places.check_there(self._home.warehouse)
                    catalog.tails.remove(name)
                    self._troubles.pop(name, None)
            except Exception as error:  # noqa: BLE001  # the rows are safe, and the next turn tries again
                self._note(name, in_brief(error), error)
        if sweeps:
            self._to_expire = {source.name: source for source in catalog.sources.list()}
        for source in list(self._to_expire.values()):
            try:
                if expire(self._home, source):
                    _log.info("events_expired", source=str(source.name))
            except EngineLostError:  # it starts, or is restarted
                continue
            except Exception as error:  # noqa: BLE001  # the next sweep tries again
                _log.warning("expiry_failed", source=str(source.name), error=in_brief(error), exc_info=unexpected(error))
            del self._to_expire[source.name]

    def _note(self, name: Name, reason: str | None, error: Exception | None = None) -> None:
        """Logs and records what prevents a table's commits, once, for ``volstream status``; None: nothing does."""
        if reason == self._troubles.get(name):
            return
        if reason is None:
            del self._troubles[name]
            _log.info("commits_again", table=str(name))
        else:
            self._troubles[name] = reason
            _log.warning("commit_failed", table=str(name), error=reason, exc_info=unexpected(error))
        with suppress(CatalogError):  # while it is unavailable, the log has it
            self._home.catalog.conditions.note(ConditionKind.TABLE, str(name), reason)
