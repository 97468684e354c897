"""Arguments of all public methods: whatever is given, the answer is a result or an error of volstream's own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import _GeneratorContextManager
from typing import Any

import pyarrow as pa
import pytest

from tests import tails
from tests.unit.ingest.test_stream import Recorded, append
from volstream.api import dbapi
from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import StreamMode
from volstream.compat import Session as CompatSession
from volstream.errors import EngineError, InvalidValueError, VolstreamError
from volstream.ingest.options import RealtimeOptionsBuilder, RetryStatus

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
    "size": 1,
    "rows": pa.table({"id": ["a"]}),
    "enable": True,
}

#: None of these is right for all arguments, and each is wrong for most.
ODD = [object(), 5, -1, 2.5, True, "no such word", b"x", [object()], {"a": object()}, [], print]


#: Arguments whose types are imported late, and so are not checked; people do not give them by hand.
LATE = {"observe"}


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
    connection = dbapi.Connection(dbapi._OpenHome(session))
    rows = append(Recorded(tails.create(folder)))
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
        "rows": rows,
        "row": rows.create_row(),
        "connect": dbapi.connect,
    }
    session.close()


def methods(surface: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Returns the public methods of all objects: the name of the object, that of the method, and the method."""
    return [
        (owner, name, getattr(thing, name))
        for owner, thing in surface.items()
        for name, member in inspect.getmembers(type(thing), inspect.isfunction)
        if not name.startswith("_") and name != "close"
    ]


def required(method: Any) -> dict[str, Any]:
    """Returns arguments that a method must have."""
    return {
        parameter.name: GIVEN.get(parameter.name, "x")
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }


def options(method: Any) -> frozenset[str]:
    """Returns the names of the options of a method that a definition describes."""
    found: frozenset[str] = getattr(inspect.unwrap(method), "__volstream_options__", frozenset())
    return found


def refused(method: Any, arguments: dict[str, Any]) -> VolstreamError | None:
    """Calls a method; returns volstream's error. Any other error fails the test."""
    try:
        done = method(**arguments)
        if isinstance(done, _GeneratorContextManager):
            with done:
                pass
    except VolstreamError as error:
        return error
    return None


def test_whatever_is_given_the_answer_is_a_result_or_volstreams_error(surface: dict[str, Any]) -> None:
    tried = 0
    for owner, name, method in methods(surface):
        parameters = [
            parameter
            for parameter in inspect.signature(method).parameters.values()
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        ]
        for argument in [parameter.name for parameter in parameters]:
            for value in ODD:
                error = refused(method, {**required(method), argument: value})
                tried += 1
                annotation = next((parameter.annotation for parameter in parameters if parameter.name == argument), "")
                if type(value) is object and annotation != "Any" and argument not in LATE:
                    assert isinstance(error, InvalidValueError), f"{owner}.{name} takes any object as {argument}"
                    assert argument in error.message
                    assert error.remedy
    assert tried > 1000


def test_an_unknown_keyword_is_named_with_the_one_that_was_meant(surface: dict[str, Any]) -> None:
    for owner, name, method in methods(surface):
        parameters = inspect.signature(method).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            continue  # passed on to a method that checks them, or to Spark
        for known in {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}:
            written = f"{known}_x"
            error = refused(method, {**required(method), written: 1})
            assert isinstance(error, InvalidValueError), f"{owner}.{name}({written}=)"
            assert repr(written) in error.message
            assert "Did you mean" in error.remedy


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda s: s["jobs"].create("j", "f.py:f", "t", on_volume="v"), "no argument 'on_volume'. Did you mean 'volume'?"),
        (lambda s: s["jobs"].create("j", lambda file: s, "t", volume="v"), "uses the variable 's', a dict, which cannot"),
        (lambda s: s["jobs"].create("j", "f.py:f", "t", volume="v", trigger="on_change"), "no argument 'trigger'. There are: "),
        (lambda s: s["jobs"].create("j", "f.py:f", "t", volume="v", write="upsrt"), "Did you mean 'upsert'? Give one of"),
        (lambda s: s["jobs"].create("j", statement="x", retries=3), "runs a statement, which has no retries."),
        (
            lambda s: s["jobs"].create("j", "f.py:f", "t", volume="v", every=-5),
            "every: -5 is not a duration. Give a number of seconds",
        ),
        (lambda s: s["jobs"].create("j", "f.py:f", "t", volume="v", cron=5), "cron: 5 is not text. Give text."),
        (lambda s: s["volumes"].create("w", "/", patterns=5), "patterns: 5 is not a list of text."),
        (
            lambda s: s["streams"].create("x", "v", mode="append"),
            "mode: 'append' is not an allowed value. Did you mean 'append-only'?",
        ),
        (
            lambda s: s["source"].create_table("x", "id", [{"id": 1}], immutable=True, version="v1"),
            "version cannot be 'v1'. Give a whole number or None.",
        ),
        (
            lambda s: s["source"].create_stream("x", retention_policy=30),
            "retention_policy cannot be 30. Give '30 days', a timedelta, or None",
        ),
        (lambda s: s["connector"].upload_kafka("h:1", "x"), "brokers cannot be 'h:1'. Give a list of texts."),
        (
            lambda s: s["connection"].get_realtime_stream(table="items", operate="APEND_ONLY"),
            "operate cannot be 'APEND_ONLY'. Did you mean 'append_only'?",
        ),
        (
            lambda s: s["options"].with_flush_mode("AUTO_FLUSH"),
            "Give one of AUTO_FLUSH_BACKGROUND, AUTO_FLUSH_SYNC, MANUAL_FLUSH.",
        ),
        (lambda s: Session.builder.config("core", 1).create(), "There is no setting 'core'. Did you mean 'cores'?"),
        (lambda s: Session.builder.config("home", 5).create(), "home cannot be 5. Give text, a path or None."),
        (lambda s: s["connect"]("grpc://h:1", token=5), "token cannot be of the type int."),
    ],
)
def test_a_mistake_is_answered_with_what_is_accepted(surface: dict[str, Any], mistake: Any, said: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        mistake(surface)
    assert said in str(caught.value)


def test_words_mean_members_as_in_sql_and_on_the_command_line(surface: dict[str, Any]) -> None:
    for word in ("append-only", "APPEND_ONLY"):
        assert surface["streams"].create("words", "v", mode=word, or_replace=True).mode is StreamMode.APPEND_ONLY
    statuses = ["throttled", RetryStatus.FAILED]
    options = surface["options"].with_request_failed_retry_status(statuses).build()
    assert options.request_failed_retry_status == {RetryStatus.THROTTLED, RetryStatus.FAILED}
