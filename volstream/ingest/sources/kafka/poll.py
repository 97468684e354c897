"""Reads what a topic has by now into its table, for homes without a daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from volstream.base.definitions import Source
from volstream.base.log import get
from volstream.base.processes import new_owner
from volstream.base.threads import Backoff, Stop
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.leases import lease, of_source
from volstream.errors import InvalidStateError, TailFullError, VolstreamError, reason_of
from volstream.ingest.local import commit
from volstream.ingest.sources.kafka.ingestion import TopicIngestion
from volstream.tables.delta import places

if TYPE_CHECKING:
    from volstream.jobs.home import Home

_log = get("sources")

#: While another process commits a full tail.
_FULL = Backoff(cap_seconds=5.0)


def read_to_end(home: Home, source: Source, stop: Stop) -> int:
    """Reads what a topic has when called into its table, and commits it; returns the number of messages.

    Records what is wrong, if anything is.

    Args:
        stop: set to end early; what was read stays.

    Raises:
        InvalidStateError: another process reads it, such as a daemon.
        VolstreamError: see :class:`TopicIngestion`.
    """
    name, mine, purpose = of_source(source.id), new_owner(), f"reading of source {source.name}"
    ended = Stop()
    lost: list[str] = []
    count = failures = 0
    with lease(home.catalog.leases, name, mine, purpose, home.settings.lease_seconds, ended.set) as other:
        if other is not None:
            raise InvalidStateError(
                f"Source {source.name} is in use: {other.purpose}.",
                "A daemon reads it; stop it first, or wait for the command that reads.",
            )
        try:
            with TopicIngestion(home, source, lost.append) as reading:
                ends = reading.ends()
                # A table that is dropped is deleted once the lease is free.
                while not (reading.has_reached(ends) or stop or ended) and home.catalog.sources.by_id(source.id) is not None:
                    try:
                        count += reading.step(ends)
                        failures = 0
                    except TailFullError:  # the process that commits it makes room
                        failures += 1
                        stop.wait(_FULL.delay(failures))
            commit(home.catalog, source.name, places.table_location(home.warehouse, source.name), lambda: home.gateway)
        except VolstreamError as error:
            home.catalog.conditions.note(ConditionKind.SOURCE, source.id, reason_of(error))
            raise
        home.catalog.conditions.note(ConditionKind.SOURCE, source.id, " ".join(lost) or None)
    for loss in lost:
        _log.error("messages_lost", source=str(source.name), why=loss)
    return count
