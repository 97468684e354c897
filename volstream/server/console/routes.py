"""The pages and their facts: the table from which the application and its OpenAPI document are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from volstream.api.session import Session
from volstream.catalog.audit import Audit
from volstream.errors import NotFoundError
from volstream.ops.inspection import tables
from volstream.ops.inspection.settings import shown_settings
from volstream.server.console.comparisons import MAX_SAMPLE, MAX_SECONDS, SAMPLE
from volstream.server.console.facts import batches, graph, jobs, overview, volumes
from volstream.server.console.queries import Queries
from volstream.server.console.query import Query

#: What the daemon says about itself.
Probed = Callable[[], Mapping[str, Any]]


#: Tables that the page of queries names.
_MAX_NAMED = 50

#: The newest tasks on an object, of its page.
_FEW_TASKS = 5


@dataclass(frozen=True)
class PageRequest:
    """What a page is made from.

    Attributes:
        names: the parts of the path that name objects.
    """

    session: Session
    probed: Probed
    names: Mapping[str, str]
    query: Query
    queries: Queries

    @property
    def audit(self) -> Audit:
        """What was done from the console."""
        return self.session.home.catalog.audit


@dataclass(frozen=True)
class Page:
    """A page, as HTML and as JSON.

    Attributes:
        path: with names of objects in braces.
        facts: what it shows; its docstring describes it.
        topics: what its facts follow, with names in braces; see :mod:`volstream.catalog.changes`.
        parameters: of the query, with their meaning.
    """

    path: str
    template: str
    facts: Callable[[PageRequest], dict[str, Any]]
    topics: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


def _overview(asked: PageRequest) -> dict[str, Any]:
    """The state of all volumes, streams, jobs, tables and sources, and what is wrong."""
    return overview.overview(asked.session.home, asked.probed())


def _volume(asked: PageRequest) -> dict[str, Any]:
    """A volume: its state, a part of its directory, its newest refreshes."""
    facts = volumes.volume(asked.session.home, asked.names["volume"], asked.query, asked.probed())
    return {**facts, "tasks": asked.audit.tasks(f"volume {facts['status']['volume']}", limit=_FEW_TASKS)}


def _file(asked: PageRequest) -> dict[str, Any]:
    """The history of a file: versions, batches, attempts, failures, rows."""
    return volumes.file(asked.session.home, asked.names["volume"], asked.query)


def _job(asked: PageRequest) -> dict[str, Any]:
    """A job: its run in progress, its newest batches, its failures by cause, and rows of its table."""
    facts = jobs.job(asked.session.home, asked.names["job"], asked.probed())
    return {**facts, "tasks": asked.audit.tasks(f"job {facts['status']['job']}", limit=_FEW_TASKS)}


def _batches(asked: PageRequest) -> dict[str, Any]:
    """The batches of a job, newest first."""
    return jobs.batches(asked.session.home, asked.names["job"], asked.query)


def _batch(asked: PageRequest) -> dict[str, Any]:
    """A batch: its attempts, its files, its failed files."""
    return batches.batch(asked.session.home, asked.names["job"], asked.names["batch"], asked.query)


def _failures(asked: PageRequest) -> dict[str, Any]:
    """The failed files of a job, newest first."""
    return jobs.failures(asked.session.home, asked.names["job"], asked.query)


def _log(asked: PageRequest) -> dict[str, Any]:
    """The last lines that a job's function printed."""
    return jobs.log(asked.session.home, asked.names["job"], asked.query)


def _comparisons(asked: PageRequest) -> dict[str, Any]:
    """The comparisons of a job's code with other code, newest first. POST starts one."""
    job = asked.session.jobs.get(asked.names["job"])
    return {
        "job": str(job.name),
        "function": getattr(job, "function", None),
        "sample": SAMPLE,
        "max_sample": MAX_SAMPLE,
        "max_seconds": MAX_SECONDS,
        "comparisons": asked.audit.tasks(f"job {job.name}", "compare"),
    }


def _comparison(asked: PageRequest) -> dict[str, Any]:
    """A comparison: how far it is, and what other code would change."""
    task = asked.audit.task(asked.names["comparison"])
    name = str(asked.session.jobs.get(asked.names["job"]).name)
    if (task.action, task.object) != ("compare", f"job {name}"):
        raise NotFoundError(f"There is no comparison {task.id} of the job {name}.")
    return {"job": name, "task": task, **(asked.audit.outcome(task.id) or {"comparison": None, "next": None})}


def _tasks(asked: PageRequest) -> dict[str, Any]:
    """The newest background tasks with their progress, newest first."""
    return {"tasks": asked.audit.tasks()}


def _task(asked: PageRequest) -> dict[str, Any]:
    """A background task: how far it is, how it ended, and what a run did, or what ``verify`` found."""
    task = asked.audit.task(asked.names["task"])
    return {"task": task, "outcome": asked.audit.outcome(task.id)}


def _tables(asked: PageRequest) -> dict[str, Any]:
    """The tables of the home, and what fills them."""
    return {"tables": tables.list_tables(asked.session.home)}


def _table(asked: PageRequest) -> dict[str, Any]:
    """A table: columns, rows, newest commits, streams on it."""
    return tables.described_table(asked.session.home, asked.names["table"])


def _graph(asked: PageRequest) -> dict[str, Any]:
    """All objects of the home and the arrows between them, with what is wrong; ``picture`` has pixels."""
    facts = graph.graph(asked.session.home, asked.probed())
    return {**facts, "width": graph.WIDTH, "height": graph.HEIGHT}


def _sql(asked: PageRequest) -> dict[str, Any]:
    """The box for a query. POST runs it."""
    names = [str(name) for name in tables.table_names(asked.session.home, _MAX_NAMED)]
    return {
        "query": asked.query.text("q") or "",
        "tables": names,
        "recent": list(asked.queries.recent),
        "examples": [
            "SELECT job, state, files, failed, rows, seconds FROM volstream.batches LIMIT 20",
            "SELECT * FROM volstream.failures LIMIT 20",
            "SHOW STREAMS",
            *(f"DESCRIBE HISTORY {name}" for name in names[:1]),
        ],
        "engine": asked.probed().get("engine", {}),
        "result": None,
        "error": None,
    }


def _settings(asked: PageRequest) -> dict[str, Any]:
    """The settings of the home, without secrets."""
    home = asked.session.home
    return {"settings": shown_settings(home.settings, home.catalog.database.describe())}


def _doctor(asked: PageRequest) -> dict[str, Any]:
    """The volumes that can be checked. POST checks the home, and one of them."""
    defined = asked.session.home.catalog.volumes.list()
    return {"volumes": [str(volume.name) for volume in defined], "volume": asked.query.text("volume"), "checks": None}


def _audit(asked: PageRequest) -> dict[str, Any]:
    """What was done from the console, newest first."""
    limit = asked.query.limit
    entries = asked.audit.newest(before=asked.query.number("before"), limit=limit)
    return {"entries": entries, "next": entries[-1].id if len(entries) == limit else None}


_LIMIT = {"limit": "Rows of the answer, up to 500."}

PAGES = (
    Page("/", "overview.html", _overview, "*"),
    Page(
        "/volumes/{volume}",
        "volume.html",
        _volume,
        "volume:{volume} tasks",
        {
            "prefix": "Entries of the directory whose paths begin with this.",
            "search": "Instead: files whose paths contain this.",
            "after": "`directory.next` of an earlier answer.",
            "before": "`refreshes_before` of an earlier answer.",
            **_LIMIT,
        },
    ),
    Page("/volumes/{volume}/files", "file.html", _file, "volume:{volume}", {"path": "The path of the file."}),
    Page("/jobs/{job}", "job.html", _job, "job:{job} tasks"),
    Page(
        "/jobs/{job}/batches",
        "batches.html",
        _batches,
        "job:{job}",
        {"before": "`next` of an earlier answer.", **_LIMIT},
    ),
    Page(
        "/jobs/{job}/batches/{batch}",
        "batch.html",
        _batch,
        "job:{job}",
        {"after": "`next` of an earlier answer.", **_LIMIT},
    ),
    Page(
        "/jobs/{job}/failures",
        "failures.html",
        _failures,
        "job:{job}",
        {"group": "Only those of this group.", "after": "`next` of an earlier answer.", **_LIMIT},
    ),
    Page(
        "/jobs/{job}/logs",
        "logs.html",
        _log,
        "job:{job}",
        {"path": "Only what was printed for this file.", "batch": "Only what was printed in this batch."},
    ),
    Page("/jobs/{job}/compare", "compare.html", _comparisons, "tasks"),
    Page("/jobs/{job}/compare/{comparison}", "comparison.html", _comparison, "tasks"),
    Page("/tasks", "tasks.html", _tasks, "tasks"),
    Page("/tasks/{task}", "task.html", _task, "tasks"),
    Page("/tables", "tables.html", _tables),
    Page("/tables/{table}", "table.html", _table),
    Page("/graph", "graph.html", _graph, "*"),
    Page("/sql", "sql.html", _sql, parameters={"q": "The query to show; it is not run."}),
    Page("/settings", "settings.html", _settings),
    Page("/doctor", "doctor.html", _doctor),
    Page("/audit", "audit.html", _audit, "home", {"before": "`next` of an earlier answer.", **_LIMIT}),
)
