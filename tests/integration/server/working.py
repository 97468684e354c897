"""What a daemon has beside a console that is under test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from volstream.api.session import Session
from volstream.base.definitions.objects import DEFAULT_VIRTUAL_CLUSTER
from volstream.base.model.work import AuditEntry
from volstream.server.console.actions import task_body
from volstream.server.console.queries import TaskBody
from volstream.server.daemon.tasks import TaskWorker


@contextmanager
def working(
    session: Session, doing: Callable[[AuditEntry], TaskBody] | None = None, engine_is_up: Callable[[], bool] = lambda: True
) -> Iterator[TaskWorker]:
    """Does tasks during the block."""
    home = session.home
    doing = doing or partial(task_body, session)
    worker = TaskWorker(home.catalog, home.settings, DEFAULT_VIRTUAL_CLUSTER, doing, engine_is_up)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.end()
        thread.join(30)
