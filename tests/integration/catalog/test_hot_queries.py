"""What a daemon asks the catalog again and again costs the same however long the history is: it is found by index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from tests import objects
from volstream.base.definitions import FileJob
from volstream.base.model.hints import Rejection
from volstream.catalog import Catalog

#: Tables that grow with time.
_HISTORY = ("audit", "batches", "failures", "intents", "plans", "refreshes", "rejected_messages")

#: Those of which few rows are of work that has not ended: a search without the state reads the others, too.
_WORK = ("batches", "failures", "intents", "plans")

QUESTIONS: dict[str, Callable[[Catalog, FileJob, str], object]] = {
    "files to retry": lambda catalog, job, _: catalog.failures.due(job.id, objects.NOW, 10),
    "the next retry": lambda catalog, job, _: catalog.failures.next_due(job.id),
    "the open plan": lambda catalog, job, _: catalog.consumptions.open_plan(job.stream_id),
    "the open attempt": lambda catalog, job, _: catalog.consumptions.open_intent(job.stream_id),
    "open batches": lambda catalog, job, _: catalog.reports.waiting(job.id),
    "the newest refresh": lambda catalog, _, volume: catalog.refreshes.last(volume),
    "the history that is needed": lambda catalog, _, volume: catalog.refreshes.needed_after(volume),
    "open tasks": lambda catalog, _, __: catalog.audit.open("DEFAULT"),
    "messages to forget": lambda catalog, _, volume: catalog.refreshes.reject(volume, [Rejection("odd", "no event")]),
}


@contextmanager
def statements(catalog: Catalog) -> Iterator[list[tuple[str, Any]]]:
    """The statements that are run in the block, with their parameters."""
    found: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *more: Any) -> None:
        found.append((statement, parameters))

    event.listen(catalog.database._engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(catalog.database._engine, "before_cursor_execute", note)


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_of_a_daemon_reads_the_whole_history(tmp_path: Path, question: str) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    volume, _, job = objects.store_job(catalog)
    with statements(catalog) as asked:
        QUESTIONS[question](catalog, job, volume.id)
    reading = ("SELECT", "DELETE")
    queries = [(statement, parameters) for statement, parameters in asked if statement.lstrip().startswith(reading)]
    assert queries
    with catalog.database._engine.connect() as connection:
        for statement, parameters in queries:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            steps = [str(step[3]) for step in plan]
            scanned = [step for step in steps if step.startswith("SCAN") and step.split()[1] in _HISTORY and "INDEX" not in step]
            searched = [
                step for step in steps if step.startswith("SEARCH") and step.split()[1] in _WORK and "state=?" not in step
            ]
            assert not scanned + searched, f"{statement}\n{steps}"
    catalog.close()
