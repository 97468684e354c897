"""Completes the values of a definition: what depends on the file's folder or on several keys at once."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from volstream.api.pipelines.keys import BOOKKEEPING, KEYS
from volstream.api.pipelines.model import CODE, JOB_KINDS, Kind
from volstream.base.definitions import NO_SCHEDULE, DefinableSource, JobOptions, QueueType, VolumeSpec
from volstream.base.definitions.job import Scheduled
from volstream.base.definitions.options import keys
from volstream.base.model.names import Name
from volstream.base.model.paths import scheme_of
from volstream.errors import InvalidValueError

#: Keys of a job of files that one of another form does not have.
_NOT_OF: Mapping[str, Collection[str]] = {
    "load": ("stream", "returns", "arguments", "environment", "outputs_to", "outputs_prefix"),
    "statement": tuple(KEYS[Kind.JOB].keys() - {"statement", "stream", *keys(JobOptions)}),
    "function": (),
}

#: Keys of each kind of source.
_OF_SOURCE: Mapping[DefinableSource, Collection[str]] = {
    DefinableSource.EVENTS: ("retention_policy",),
    DefinableSource.ITEMS: ("primary_key",),
    DefinableSource.KAFKA: ("brokers", "topic", "format", "properties", "retention_policy"),
}


def complete(kind: Kind, written: str, values: Mapping[str, Any], given: Collection[str], folder: Path) -> Mapping[str, Any]:
    """Returns all values of a definition.

    Args:
        written: its name as the file has it.
        values: those that the file has, in canonical form, and defaults.
        given: the keys that the file has.
        folder: the file's.

    Raises:
        InvalidValueError: keys contradict each other, or a value is invalid.
        FunctionLoadError: the code of a job's function is missing.
    """
    completed = dict(values)
    Scheduled(**{name: completed[name] for name in NO_SCHEDULE if name in completed})
    finish = _FINISH.get(kind)
    return completed if finish is None else {**completed, **finish(written, completed, given, folder)}


def _volume(written: str, values: Mapping[str, Any], _given: Collection[str], folder: Path) -> dict[str, Any]:
    from volstream.files.storage import normalise_location

    place = values["location"]
    if scheme_of(place) == "file" and not place.lower().startswith("file:"):
        place = os.path.join(folder, os.path.expanduser(place))
    place = normalise_location(place)
    return {"location": place, "queue_type": default_queue(written, place, values)}


def default_queue(name: str, location: str, values: Mapping[str, Any]) -> QueueType:
    """Returns a volume's queue type, or the default for its location. Raises InvalidValueError."""
    from volstream.files.volumes.definitions import queue_type_of

    queue = {key: values[key] for key in ("queue_type", "queue_name")}
    return queue_type_of(VolumeSpec(name=Name.parse(name), location=location, **queue), location)


def _function(_written: str, values: Mapping[str, Any], _given: Collection[str], folder: Path) -> dict[str, Any]:
    from volstream.functions.finding import absolute
    from volstream.functions.sql import sql_type

    return {"function": absolute(values["function"], folder), "returns": sql_type(values["returns"])}


def _source(written: str, values: Mapping[str, Any], given: Collection[str], _folder: Path) -> dict[str, Any]:
    kind: DefinableSource = values["kind"]
    for key in sorted(given):
        if key not in ("kind", "comment", *_OF_SOURCE[kind]):
            raise InvalidValueError(
                f"A source of {kind} has no key {key!r}.", f"It has {', '.join(['comment', *_OF_SOURCE[kind]])}."
            )
    if kind is DefinableSource.ITEMS and values["primary_key"] is None:
        raise InvalidValueError("A source of items needs a primary_key.", 'Write primary_key = "COLUMN".')
    if kind is not DefinableSource.KAFKA:
        return {}
    from volstream.api.objects.connectors import as_written

    return {"topic": values["topic"] or as_written(written), "format": values["format"] or "json"}


def _table(_written: str, values: Mapping[str, Any], _given: Collection[str], _folder: Path) -> dict[str, Any]:
    from volstream.api.pipelines.columns import parse_columns
    from volstream.changes.streams.sources import kept_days, tracking

    for key in values["properties"]:
        if key.startswith(BOOKKEEPING):
            raise InvalidValueError(f"properties: {key} is maintained by Delta or volstream.", "Remove it.")
    columns = parse_columns(values["columns"])
    for key in ("primary_key", "partitioned_by"):
        for column in values[key]:
            if column.lower() not in columns:
                raise InvalidValueError(f"{key} names a column {column!r}, which the table lacks.")
    if "change_tracking" in values["properties"]:
        tracking(values["properties"]["change_tracking"])
    properties = dict(values["properties"])
    if (days := properties.pop("data_retention_days", None)) is not None:  # a table has it as Delta's
        properties |= kept_days(days)
    return {"columns": values["columns"].strip(), "properties": properties}


def _stream(_written: str, values: Mapping[str, Any], _given: Collection[str], _folder: Path) -> dict[str, Any]:
    if (values["volume"] is None) == (values["table"] is None):
        raise InvalidValueError("A stream is on a volume or on a table.", "Write one of volume and table.")
    return {}


def _job(_written: str, values: Mapping[str, Any], given: Collection[str], folder: Path) -> dict[str, Any]:
    forms = [form for form in JOB_KINDS if values[form] is not None]
    if len(forms) != 1:
        raise InvalidValueError("A job has a function, a statement or load.", "Write one of them.")
    for key in _NOT_OF[forms[0]]:
        if key in given:
            raise InvalidValueError(f"A job with {forms[0]} has no {key}.", "Leave it out.")
    if forms[0] == "statement":
        return {"statement": values["statement"].strip(), CODE: None}
    if forms[0] == "load":
        if values["volume"] is None or values["into"] is None:
            raise InvalidValueError("A job that loads needs volume and into.")
        load = values["load"]
        return {"load": dataclasses.replace(load, schema=_columns(load.schema)), CODE: None}
    from volstream.functions.finding import absolute, find
    from volstream.jobs.rules.definitions import resolve_environment

    function = absolute(values["function"], folder)
    code = find(function, str(folder)).behaviour
    environment = resolve_environment(values["environment"], folder)
    return {"function": function, "returns": _columns(values["returns"]), "environment": environment, CODE: code}


def _columns(text: str | None) -> str | None:
    """Returns columns as the catalog has them."""
    if text is None:
        return None
    from volstream.functions.schema import as_declared, from_ddl

    return as_declared(from_ddl(text))


def _dynamic_table(_written: str, values: Mapping[str, Any], _given: Collection[str], _folder: Path) -> dict[str, Any]:
    return {"query": values["query"].strip()}


_FINISH: Mapping[Kind, Callable[[str, Mapping[str, Any], Collection[str], Path], dict[str, Any]]] = {
    Kind.VOLUME: _volume,
    Kind.FUNCTION: _function,
    Kind.SOURCE: _source,
    Kind.TABLE: _table,
    Kind.STREAM: _stream,
    Kind.JOB: _job,
    Kind.DYNAMIC_TABLE: _dynamic_table,
}
