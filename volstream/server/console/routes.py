"""The pages and their facts: the table from which the application and its OpenAPI document are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from volstream.server.console.facts import PageRequest, batches, code, graph, jobs, overview, settings, tables, tasks, volumes


@dataclass(frozen=True)
class Page:
    """A page, as HTML and as JSON.

    Attributes:
        path: with names of objects in braces.
        facts: what it shows, as a dataclass: it describes the JSON, as does its docstring.
        topics: what its facts follow, with names in braces; see :mod:`volstream.catalog.changes`.
        parameters: of the query, with their meaning.
    """

    path: str
    template: str
    facts: Callable[[PageRequest], Any]
    topics: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)


_LIMIT = {"limit": "Rows of the answer, up to 500."}

PAGES = (
    Page(
        "/",
        "overview.html",
        overview.overview,
        "*",
        {"span": "Of the timeline: minutes (ten), hour, day or week.", "search": "Only objects whose names contain this."},
    ),
    Page(
        "/volumes/{volume}",
        "volume.html",
        volumes.volume,
        "volume:{volume} tasks",
        {
            "prefix": "Entries of the directory whose paths begin with this.",
            "search": "Instead: files whose paths contain this.",
            "after": "`directory.next` of an earlier answer.",
            "before": "`refreshes_before` of an earlier answer.",
            **_LIMIT,
        },
    ),
    Page("/volumes/{volume}/files", "file.html", volumes.file, "volume:{volume}", {"path": "The path of the file."}),
    Page("/jobs/{job}", "job.html", jobs.job, "job:{job} tasks"),
    Page(
        "/jobs/{job}/batches", "batches.html", batches.batches, "job:{job}", {"before": "`next` of an earlier answer.", **_LIMIT}
    ),
    Page(
        "/jobs/{job}/batches/{batch}",
        "batch.html",
        batches.batch,
        "job:{job}",
        {"after": "`next` of an earlier answer.", **_LIMIT},
    ),
    Page(
        "/jobs/{job}/failures",
        "failures.html",
        jobs.failures,
        "job:{job}",
        {"group": "Only those of this group.", "after": "`next` of an earlier answer.", **_LIMIT},
    ),
    Page(
        "/jobs/{job}/logs",
        "logs.html",
        jobs.log,
        "job:{job}",
        {"path": "Only what was printed for this file.", "batch": "Only what was printed in this batch."},
    ),
    Page(
        "/jobs/{job}/code",
        "code.html",
        code.code,
        "job:{job}",
        {"old": "Number of the version to compare.", "new": "Number of the other; default: the newest."},
    ),
    Page("/jobs/{job}/compare", "compare.html", tasks.comparisons, "tasks"),
    Page("/jobs/{job}/compare/{comparison}", "comparison.html", tasks.comparison, "tasks"),
    Page(
        "/failures",
        "all_failures.html",
        jobs.all_failures,
        "*",
        {"search": "Only failures whose message, path or job contains this."},
    ),
    Page("/tasks", "tasks.html", tasks.tasks, "tasks"),
    Page("/tasks/{task}", "task.html", tasks.task, "tasks"),
    Page("/tables", "tables.html", tables.tables),
    Page("/tables/{table}", "table.html", tables.table),
    Page("/graph", "graph.html", graph.graph, "*"),
    Page("/sql", "sql.html", tables.sql, parameters={"q": "The query to show; it is not run."}),
    Page("/settings", "settings.html", settings.settings),
    Page("/doctor", "doctor.html", settings.doctor),
    Page("/audit", "audit.html", tasks.audit, "home", {"before": "`next` of an earlier answer.", **_LIMIT}),
)
