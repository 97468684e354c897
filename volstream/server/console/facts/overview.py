"""The overview of a home: whether all is well, and each volume, stream, job, table and source in a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from volstream.base.definitions import Job
from volstream.jobs import sizing
from volstream.jobs.home import Home
from volstream.ops.inspection import runs
from volstream.ops.inspection.problems import Problem, most_severe, problems
from volstream.ops.inspection.status import status
from volstream.ops.inspection.tables import ListedTable, list_tables
from volstream.server.console.facts import PageRequest
from volstream.server.console.facts.rows import ListedJob, ListedStream, ListedTail, ListedVolume
from volstream.spark.engine.control import engine_status
from volstream.tables.delta.places import is_remote

#: Objects of a kind that are shown; and tables, of which each is opened.
_MAX_SHOWN, _MAX_TABLES = 200, 20


@dataclass(frozen=True)
class OverviewFacts:
    """A home: whether all is well, what is wrong, how many objects there are of each kind, and the first of them."""

    home: str
    well: bool
    problems: Sequence[Problem]
    engine: Mapping[str, Any]
    counts: Mapping[str, int]
    volumes: Sequence[ListedVolume]
    streams: Sequence[ListedStream]
    jobs: Sequence[ListedJob]
    tables: Sequence[ListedTail]
    sources: Sequence[Mapping[str, Any]]
    all_tables: Sequence[ListedTable]


def overview(asked: PageRequest) -> OverviewFacts:
    """The state of all volumes, streams, jobs, tables and sources, and what is wrong."""
    home, probed = asked.home, asked.probed()
    state = status(home)
    wrong = problems(state, probed)
    now = datetime.now(UTC)
    jobs = {str(job.name): job for job in home.catalog.jobs.list()}
    first = most_severe(wrong)

    def shown(kinds: str, kind: str, key: str | None = None) -> list[dict[str, Any]]:
        return [{**row, "problem": first.get((kind, row[key or kind]))} for row in state[kinds][:_MAX_SHOWN]]

    return OverviewFacts(
        home=state["home"],
        well=not wrong,
        problems=wrong,
        engine=probed.get("engine") or _engine(home),
        counts={kind: len(state[kind]) for kind in ("volumes", "streams", "jobs", "tables", "sources")},
        volumes=[_volume(row, now) for row in shown("volumes", "volume")],
        streams=[ListedStream(**row) for row in shown("streams", "stream")],
        jobs=[_job(home, jobs[row["job"]], row) for row in shown("jobs", "job") if row["job"] in jobs],
        tables=[ListedTail(**row) for row in shown("tables", "table")],
        sources=shown("sources", "source", "name"),
        all_tables=list_tables(home, _MAX_TABLES, extents=not is_remote(home.warehouse)),
    )


def _engine(home: Home) -> dict[str, Any]:
    if home.settings.spark_remote:
        return {"state": "elsewhere"}
    engine = engine_status(home.settings)
    return {"state": "not running" if engine is None else engine.state}


def _volume(row: Mapping[str, Any], now: datetime) -> ListedVolume:
    """Adds the age of the last full listing, and how many events it missed."""
    listed = row["last_listing"]
    counts = [row["added_by_listing"], row["changed_by_listing"], row["removed_by_listing"]]
    # The events of files that were late may still have been under way.
    missed = None if None in counts else max(0, sum(counts) - (row["late_events"] or 0))
    lag = None if listed is None else (now - listed).total_seconds()
    return ListedVolume(**row, missed_events=missed, lag_seconds=lag)


def _job(home: Home, job: Job, row: Mapping[str, Any]) -> ListedJob:
    """Adds how fast a job is, and when it runs next."""
    measured = home.catalog.reports.measured(job.id)
    rate = sizing.typical_rate(measured)
    due, says = runs.next_run(home, job)
    work = runs.open_run(home, job, measured)
    return ListedJob(
        **row,
        into=str(job.into),
        last_ended=job.last_ended,
        files_per_second=None if rate is None else rate.files,
        next_run=due,
        runs=says,
        run_done=None if work is None else work.done,
        seconds_left=None if work is None else work.seconds_left,
    )
