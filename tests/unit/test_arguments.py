"""Arguments of all public methods: whatever is given, the answer is a result or an error of volstream's own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from volstream import config, dbapi, every, on_cron
from volstream.compat import Session as CompatSession
from volstream.errors import EngineError, InvalidValueError, VolstreamError
from volstream.ingest.options import RealtimeOptionsBuilder
from volstream.session import Session

#: Values for arguments that a call must have, by name, so that a call fails by the argument in question.
GIVEN: dict[str, Any] = {
    "primary_key": "id",
    "statement": "SELECT 1",
    "operation": "SELECT 1",
    "query": "SELECT 1",
    "values": {},
    "items": [{"id": 1}],
    "item": {"id": 1},
    "data": [{"id": 1}],
    "brokers": ["h:1"],
    "startingVersion": 0,
    "seq_of_parameters": [],
    "path": "no.toml",
    "paths": [],
    "type": "s3",
    "statuses": [],
    "events": [],
    "on": "id",
}

#: None of these is right for all arguments, and each is wrong for most.
ODD = [object(), 5, -1, 2.5, True, "no such word", b"x", [object()], {"a": object()}, [], print]


class Away:
    """Spark that cannot be reached."""

    def __call__(self) -> Any:
        raise EngineError("There is no engine here.")


@pytest.fixture(scope="module")
def surface(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Public objects, by name."""
    folder = tmp_path_factory.mktemp("arguments")
    (folder / "files").mkdir()
    session = Session(config.load(folder / "home"), Away())
    session.volumes.create("v", str(folder / "files"))
    stream = session.streams.create("s", "v")
    events, items = session.source.create_stream("events"), session.source.create_table("items", "id")
    connection = dbapi.connect(str(folder / "home"))
    yield {
        "session": session,
        "builder": Session.builder,
        **{name: getattr(session, name) for name in ("connections", "volumes", "streams", "jobs", "functions")},
        **{name: getattr(session, name) for name in ("dynamic_tables", "batches", "source", "connector")},
        "open stream": session.streams.get(str(stream.name)),
        "events": events,
        "items": items,
        "connection": connection,
        "cursor": connection.cursor(),
        "options": RealtimeOptionsBuilder(),
        "compat session": CompatSession(session),
        "compat builder": CompatSession.builder,
    }
    connection.close()
    session.close()


def methods(thing: Any) -> list[tuple[str, Any]]:
    return [
        (name, getattr(thing, name))
        for name, member in inspect.getmembers(type(thing))
        if not name.startswith("_") and inspect.isfunction(member) and name != "close"
    ]


def call(method: Any, arguments: dict[str, Any]) -> Any:
    done = method(**arguments)
    if isinstance(done, AbstractContextManager) and not isinstance(done, Session | CompatSession):
        with done:
            pass
    return done


def test_explore(surface):
    import time, traceback
    bad = 0
    for owner, thing in surface.items():
        for name, method in methods(thing):
            parameters = inspect.signature(method).parameters
            required = {
                one.name: GIVEN.get(one.name, "x")
                for one in parameters.values()
                if one.default is inspect.Parameter.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
            }
            for p in parameters.values():
                if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL): continue
                for value in ODD:
                    t=time.time()
                    try:
                        call(method, {**required, p.name: value})
                        res="ok"
                    except VolstreamError as e:
                        res=f"ours {type(e).__name__}"
                    except Exception as e:
                        res=None
                        bad += 1
                        tb=traceback.extract_tb(e.__traceback__)[-1]
                        print(f"BAD {owner}.{name}({p.name}={value!r:.30}): {type(e).__name__}: {str(e)[:90]} @ {tb.filename.split('/')[-1]}:{tb.lineno}")
                    if res == "ok" and type(value) is object: print("ACCEPTS", owner, name, p.name)
                    if time.time()-t>0.5: print("SLOW", owner, name, p.name, repr(value)[:20], time.time()-t)
    print(bad)
