"""Checks a Spark that others started, for ``doctor --cluster``: its settings, and each host of its workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from volstream.base.model.text import counted
from volstream.base.model.work import Check, CheckState
from volstream.errors import InvalidStateError, VolstreamError
from volstream.jobs.batches import handshake
from volstream.jobs.batches.handshake import Answer
from volstream.spark.errors import map_spark_errors
from volstream.spark.frames import given_up

if TYPE_CHECKING:
    from volstream.home import Home

_DOCS = "See docs/operations/cluster.md, Spark elsewhere."


def examine_cluster(home: Home) -> Iterator[Check]:
    """Asks the server of ``spark_remote``, and a task in each of its slots.

    Raises:
        InvalidStateError: the home has an engine of its own.
    """
    if not home.settings.spark_remote:
        raise InvalidStateError("The home has a Spark of its own.", "--cluster is for a home with spark_remote.")
    try:
        with map_spark_errors(), home.gateway.fresh() as session:
            wrong = handshake.settings_of(session)
            yield Check("server", CheckState.OK, f"Spark {session.version} answers")
            yield from (Check("settings", CheckState.FAILED, said, _DOCS) for said in wrong)
            for said in handshake.missing_from(session, home.warehouse):
                yield Check("settings", CheckState.WARNING, said, _DOCS)
            with given_up(session, home.settings.executor_wait_seconds):
                answers = handshake.ask(session, handshake.places_of(home.catalog, home.warehouse))
    except VolstreamError as error:
        yield Check("server", CheckState.FAILED, error.message, error.remedy)
        return
    by_host = defaultdict[str, list[Answer]](list)
    for answer in answers:
        by_host[answer.host].append(answer)
    for host, of_host in sorted(by_host.items()):
        problems = sorted({said for answer in of_host for said in answer.problems})
        yield from (Check("workers", CheckState.FAILED, said, _DOCS) for said in problems)
        if not problems:
            first = of_host[0]
            said = f"{counted(len(of_host), 'task')} ran on {host} as user {first.user} with Python {first.python}"
            yield Check("workers", CheckState.OK, said)
