"""Jobs of statements are changed at each step of a run, by another session: each change of the source is written once, by the
statement that the job has then."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product

import pytest

from tests.integration.conftest import Home, session_on
from tests.interrupts import passing
from volstream.errors import FencedError, NotFoundError, TargetLostError, VolstreamError
from volstream.spark.session import SparkGateway

_INSERT = "INSERT INTO out$ SELECT '{0}', k FROM s$ WHERE __change_type = 'INSERT'"
_MERGE = "MERGE INTO out$ o USING s$ c ON o.k = c.k WHEN NOT MATCHED THEN INSERT (code, k) VALUES ('{0}', c.k)"

_STEPS = {
    "begun": "volstream.api.statements.dynamic.StatementRunner._recover",
    "plan.opened": "plan.opened",
    "batch.intent": "batch.intent",
    "batch.written": "batch.written",
    "commit": "volstream.catalog.consumptions.Consumptions.commit",
    "batch.committed": "batch.committed",
}

#: Whether a change is refused while the run consumes the stream.
_CHANGES = {
    **dict.fromkeys(("pause", "pause and resume", "comment", "more rows"), False),
    **dict.fromkeys(("another run", "another statement", "reset", "drop", "drop and create", "replace"), True),
}

#: Tried in every run of the tests.
_QUICK = {("insert", "begun", "replace"), ("merge", "batch.written", "pause")}

_CELLS = [
    pytest.param(*cell, marks=() if cell in _QUICK else pytest.mark.long)
    for cell in product(("insert", "merge"), _STEPS, _CHANGES)
]


@pytest.mark.parametrize(("kind", "step", "change"), _CELLS)
def test_a_change_beside_a_statement(home: Home, gateway: SparkGateway, kind: str, step: str, change: str) -> None:
    home.tracked(columns="k INT")
    home.sql("CREATE TABLE out$ (code STRING, k INT); INSERT INTO t$ VALUES (1)")
    text = home.own(_INSERT if kind == "insert" else _MERGE)
    first = home.offset()
    job = home.name("j")

    def create(code: str, *, or_replace: bool = False) -> None:
        session.jobs.create(job, statement=text.format(code), or_replace=or_replace)

    def run_another_statement() -> None:
        other.sql("INSERT INTO out$ SELECT 'by hand', k FROM s$")

    with session_on(gateway, home.session.home.settings) as session, ThreadPoolExecutor(1) as pool:
        other, jobs = Home(session, home.schema), session.jobs
        create("v1")
        acts: dict[str, list[Callable[[], object]]] = {
            "pause": [partial(jobs.pause, job)],
            "pause and resume": [partial(jobs.pause, job), partial(jobs.resume, job)],
            "comment": [partial(jobs.alter, job, comment="new")],
            "more rows": [partial(other.sql, "INSERT INTO t$ VALUES (2)")],
            "another run": [partial(jobs.run, job)],
            "another statement": [run_another_statement],
            "reset": [partial(session.streams.reset, home.name("s"), to_version=first)],
            "drop": [partial(jobs.drop, job)],
            "drop and create": [partial(jobs.drop, job), partial(create, "v2")],
            "replace": [partial(create, "v2", or_replace=True)],
        }
        refused: list[VolstreamError] = []

        def act() -> None:
            for one in acts[change]:
                refused.extend(filter(None, [pool.submit(_error, one).result(60)]))

        with passing(_STEPS[step], act):
            ended = _error(partial(home.session.jobs.run, job))
        early, late = step == "begun", step == "batch.committed"
        busy = _CHANGES[change] and not early and (not late or change == "another statement")
        assert bool(refused) == (busy or change == "another run"), refused
        again = change in ("drop and create", "replace") and not busy
        dropped = change == "drop" and not busy
        assert isinstance(ended, FencedError) == (early and (again or dropped)), ended
        assert bool(jobs.list()) != dropped
        rows = [] if early and (again or dropped) else [("by hand" if early and change == "another statement" else "v1", 1)]
        if early and change == "more rows":
            rows.append(("v1", 2))
        assert home.rows("SELECT code, k FROM out$") == rows
        if dropped:
            assert (home.offset() == first) == early
            return
        jobs.resume(job)
        other.sql("INSERT INTO t$ VALUES (3)")
        while jobs.runner(jobs.get(job)).has_work():
            home.session.jobs.run(job)
        delivered = [row[1] for row in rows]
        if late and change == "reset" and kind == "insert":  # delivered again, as asked for
            delivered.remove(1)
        expected = [k for k in (1, 2, 3) if k not in delivered and (k != 2 or change == "more rows")]
        assert home.rows("SELECT code, k FROM out$") == sorted([*rows, *(("v2" if again else "v1", k) for k in expected)])
        assert not session.streams.has_data(home.name("s"))


def _error(act: Callable[[], object]) -> VolstreamError | None:
    try:
        act()
    except VolstreamError as error:
        return error
    return None


@pytest.mark.parametrize(
    "step",
    [pytest.param("plan.opened", marks=pytest.mark.long), "batch.intent", pytest.param("batch.written", marks=pytest.mark.long)],
)
def test_the_target_is_dropped_beside_a_statement(home: Home, gateway: SparkGateway, step: str) -> None:
    home.tracked(columns="k INT")
    home.sql("CREATE TABLE out$ (code STRING, k INT); INSERT INTO t$ VALUES (1)")
    home.session.jobs.create(home.name("j"), statement=home.own(_INSERT.format("v1")))
    with (
        session_on(gateway, home.session.home.settings) as session,
        ThreadPoolExecutor(1) as pool,
        passing(step, lambda: pool.submit(Home(session, home.schema).sql, "DROP TABLE out$").result(60)),
        pytest.raises(TargetLostError) as lost,
    ):
        home.session.jobs.run(home.name("j"))
    undecided = step != "plan.opened"
    assert (f"volstream resolve {home.name('s')} aborted" in lost.value.remedy) == undecided
    with pytest.raises(NotFoundError, match="There is no table"):  # the job does not create it
        home.session.tables.get(home.name("out"))
    home.sql("CREATE TABLE out$ (code STRING, k INT)")
    if undecided:
        home.session.streams.resolve(home.name("s"), committed=False)
    home.session.jobs.run(home.name("j"))
    assert home.rows("SELECT code, k FROM out$") == [("v1", 1)]
