"""Runs SQL statements: volstream's own through its objects, all others through Spark."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volstream.api.objects.all import Objects
from volstream.api.statements import metastore
from volstream.api.statements.metastore import register_after_work
from volstream.api.statements.run import Result, SparkStatements
from volstream.base.definitions import DynamicJob, FileJobSpec, StreamSpec, forms
from volstream.base.definitions.job import TriggerKind, load_keys
from volstream.base.definitions.objects import PROVIDERS, VolumeOptions
from volstream.base.definitions.options import Key, keys
from volstream.base.model.names import Name
from volstream.base.model.text import nearest, to_json
from volstream.base.model.units import format_duration, local
from volstream.changes.directory.table import COLUMNS
from volstream.changes.streams.sources import VolumeSource
from volstream.errors import InvalidValueError, NotFoundError, SqlError
from volstream.functions.types.values import document_values
from volstream.home import Home
from volstream.ops.inspection import details
from volstream.ops.inspection.tables import missing
from volstream.spark.errors import as_sql_errors
from volstream.spark.frames import batches, relation
from volstream.sql import grammar
from volstream.sql.grammar import Statement, Text
from volstream.sql.statement import SparkStatement, one_query
from volstream.sql.text import literal, pairs, quote_column, quote_columns, table_at, type_of
from volstream.sql.tokens import only
from volstream.tables.delta.commits import PROPERTIES as TRACKING
from volstream.tables.delta.opened import schema_at
from volstream.tables.delta.ownership import OWNER
from volstream.tables.delta.schema import CHARACTERS, PRIMARY_KEY, definition_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The statements that create tables like the home's, for SHOW CREATE TABLE.

_CONSTRAINT = "delta.constraints."

#: Prefixes of properties that Delta or a job sets.
_SET_BY_ITSELF = (
    OWNER,
    PRIMARY_KEY,
    _CONSTRAINT,
    "delta.rowTracking.",
    "delta.columnMapping.maxColumnId",
    "delta.inCommitTimestampEnablement",
)


def created_dynamic_table(job: DynamicJob) -> str:
    """Returns the statement that creates a dynamic table."""
    match job.trigger.kind:
        case TriggerKind.EVERY:
            assert job.trigger.every is not None, "of this kind"
            refresh = f" REFRESH EVERY '{format_duration(job.trigger.every)}'"
        case TriggerKind.CRON:
            refresh = f" REFRESH SCHEDULE '{job.trigger.cron}'"
        case TriggerKind.ON_CHANGE:
            refresh = " REFRESH ON CHANGE"
        case _:
            refresh = ""
    comment = f" COMMENT {literal(job.comment)}" if job.comment else ""
    return f"CREATE DYNAMIC TABLE {job.name.qualified}{refresh}{comment} AS\n{job.query}"


def created_table(home: Home, name: Name) -> str:
    """Returns the statement that creates a table, and others for its constraints. Queries Spark for its
    clustering.

    Raises:
        NotFoundError: there is no such table.
    """
    location = metastore.locate(home, name)
    schema = schema_at(location)
    if schema is None:
        raise missing(home, name)
    [detail] = home.spark.sql(f"DESCRIBE DETAIL {table_at(location)}").collect()
    key = f"PRIMARY KEY ({quote_columns(schema.primary_key)})" if schema.primary_key else ""
    inside = ",\n".join(f"  {part}" for part in (*map(_column, schema.fields), key) if part)
    properties = {key: value for key, value in schema.properties.items() if not key.startswith(_SET_BY_ITSELF)}
    if TRACKING.items() <= properties.items():
        tracked = {"change_tracking": "true"}
        properties = tracked | {key: value for key, value in properties.items() if key not in TRACKING}
    clauses = [
        f"CREATE TABLE {name.qualified} (\n{inside}\n)",
        f"COMMENT {literal(detail['description'])}" if detail["description"] else "",
        f"PARTITIONED BY ({quote_columns(schema.partitions)})" if schema.partitions else "",
        f"CLUSTER BY ({quote_columns(detail['clusteringColumns'])})" if detail["clusteringColumns"] else "",
        f"TBLPROPERTIES ({pairs(properties)})" if properties else "",
    ]
    constraints = (
        f"ALTER TABLE {name.qualified} ADD CONSTRAINT {quote_column(key.removeprefix(_CONSTRAINT))} CHECK ({value})"
        for key, value in schema.properties.items()
        if key.startswith(_CONSTRAINT)
    )
    return ";\n".join(["\n".join(clause for clause in clauses if clause), *constraints])


def _column(field: Any) -> str:
    characters = (field.get("metadata") or {}).get(CHARACTERS, "")
    return definition_of(field, str(characters).upper() or type_of(field["type"]))


# Runs volstream's own SQL statements.

_QUEUES = {words.sql_queue_type: words.queue_type for words in PROVIDERS.values()}

_CONNECTION_KEYS = {
    "external_id": "externalId",
    "role_arn": "roleArn",
    "trust_policy": "trustPolicy",
    "permission_policy": "permissionPolicy",
}

#: Columns of SHOW by kind, in order.
_SHOWN: Mapping[str, Sequence[str]] = {
    "connection": ("name", "type", "region", "endpoint", "role_arn", "comment", "created_on"),
    "volume": ("name", "location", "queue_type", "virtual_cluster", "recursive", "comment", "created_on"),
    "stream": (
        "name",
        "source_kind",
        "source_name",
        "mode",
        "offset",
        "initial",
        "has_data",
        "stale",
        "stale_after",
        "comment",
        "created_on",
    ),
    "dynamic": ("name", "statement", "trigger", "state", "last_ended", "last_outcome", "comment", "created_on"),
    "job": ("name", "function", "statement", "into", "trigger", "state", "last_outcome", "comment", "created_on"),
}

#: Columns of RUN JOB, and of SHOW DYNAMIC TABLE REFRESH HISTORY.
_RUN = ("processed", "failed", "removals", "rows")
_HISTORY = ("name", "state", "rows", "attempts", "created_on", "committed_on")


class Ddl:
    """Runs volstream's own statements: each is one operation of a collection. No Spark, unless documented."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._home = objects.home

    def run(self, statement: Statement) -> Result:
        """Runs a statement. Raises the operation's VolstreamError."""
        match statement.action, statement.kind:
            case "create", kind:
                existed = statement.if_not_exists and self._exists(kind, statement.target)
                created = getattr(self, f"_create_{kind}")(statement)
                said = "exists" if existed else "is created"
                if statement.or_replace and kind in self._objects.by_kind:
                    [change, *_] = self._objects.by_kind[kind].history(str(created.name))
                    said = f"is replaced: {change.text or 'nothing differs'}" if change.what == "replaced" else said
                return Result(["status"], [{"status": f"{_said(kind)} {created.name} {said}."}])
            case "drop", kind:
                dropped = self._objects.by_kind[kind].drop(statement.target, if_exists=statement.if_exists)
                said = "is dropped" if dropped else "does not exist"
                return Result(["status"], [{"status": f"{_said(kind)} {statement.name} {said}."}])
            case "show", "directory":
                return self._show_directory(statement)
            case "show", "create":
                text = self._shown_definition(statement.target)
                return Result(["createtab_stmt"], [{"createtab_stmt": text}])
            case "show", "history":
                return self._show_history(statement)
            case "show", kind:
                return self._show(statement, kind)
            case "describe", kind:
                attributes = details.described(self._home, self._objects.by_kind[kind].get(statement.target))
                if kind == "connection":
                    attributes = {_CONNECTION_KEYS.get(key, key): value for key, value in attributes.items()}
                rows = [{"property": key, "value": _plain(details.as_written(key, value))} for key, value in attributes.items()]
                return Result(["property", "value"], rows)
            case "alter", "volume":
                done = self._objects.volumes.refresh(
                    statement.target,
                    statement.options.get("string", ""),
                    accept_removals=statement.options.get("accept_removals", False),
                )
                row = {"inserted": done.inserted, "updated": done.updated, "deleted": done.deleted, "held": done.held}
                return Result(list(row), [row])
            case "alter", "table":
                return SparkStatements(self._home).set_properties(statement)
            case "alter", "stream":
                return self._reset(statement)
            case "run", "job":
                run = self._objects.jobs.run(statement.target).document
                return Result(_RUN, [run])
            case "refresh", "dynamic":
                written = self._objects.dynamic_tables.refresh(statement.target)
                return Result(["num_affected_rows"], [{"num_affected_rows": written}])
            case "alter", "job" | "dynamic" as kind:
                self._objects.by_kind[kind].get(statement.target)
                act = self._objects.jobs.pause if "pause" in statement.options else self._objects.jobs.resume
                job = act(statement.target)
                return Result(["status"], [{"status": f"{_said(kind)} {job.name} is {job.state}."}])
            case _:
                raise SqlError(f"{statement.action.upper()} {statement.kind.upper()} is not supported.")

    def _exists(self, kind: str, name: str) -> bool:
        try:
            self._objects.by_kind["source" if kind == "external" else kind].get(name)
        except NotFoundError:
            return False
        return True

    def _create_connection(self, statement: Statement) -> Any:
        options = dict(statement.options)
        type_ = options.pop("word").lower()
        return self._objects.connections.create(statement.target, type_, if_not_exists=statement.if_not_exists, **options)

    def _create_volume(self, statement: Statement) -> Any:
        options = dict(statement.options)
        if "location" not in options:
            raise SqlError("A volume needs LOCATION 'uri'.")
        if options.pop("directory", True) is False:
            raise InvalidValueError("A volume always has a directory table.", "Leave DIRECTORY out.")
        notification = options.pop("notification", {})
        unknown = sorted({*notification} - {"queue_type", "queue_name", "virtual_cluster"})
        if unknown:
            raise InvalidValueError(
                f"NOTIFICATION has no {unknown[0].upper()}.",
                "It has QUEUE_TYPE, QUEUE_NAME, VIRTUAL_CLUSTER, and 'properties' of the queue in quotes.",
            )
        queue: dict[str, Any] = {key: value for key, value in notification.items() if key != "queue_type"}
        if "queue_type" in notification:
            queue["queue_type"] = _QUEUES.get(notification["queue_type"].upper(), notification["queue_type"])
        return self._objects.volumes.create(
            statement.target,
            options.pop("location"),
            **self._existing(statement),
            **queue,
            connection=options.pop("using_connection", None),
            **_properties("volume", VolumeOptions, options.pop("properties", {})),
            **options,
        )

    def _create_stream(self, statement: Statement) -> Any:
        options = statement.options
        properties = {key.lower(): value for key, value in options.get("properties", {}).items()}
        if "table_stream_mode" in properties:
            properties["mode"] = properties.pop("table_stream_mode")
        parsed = {"comment": options.get("comment"), **_properties("stream", StreamSpec, properties)}
        if "timestamp_as_of" in options:
            parsed["at_timestamp"] = self._moment(options["timestamp_as_of"])
        kind = "volume" if options["source_kind"].upper() == "VOLUME" else "table"
        source: dict[str, Any] = {kind: options["source"]}
        return self._objects.streams.create(statement.target, **(source | self._existing(statement) | parsed))

    def _create_job(self, statement: Statement) -> Any:
        options = statement.options
        if "as_statement" in options:
            return self._create_job_of_statement(statement)
        if "load" in options:
            return self._create_load(statement)
        for clause in ("function", "into"):
            if clause not in options:
                raise SqlError(f"A job needs {clause.upper()}.", "CREATE JOB j ON STREAM s FUNCTION 'f.py:f' INTO TABLE t")
        return self._objects.jobs.create(
            statement.target,
            options["function"],
            options["into"],
            stream=options.get("on_stream"),
            volume=options.get("on_volume"),
            returns=options.get("returns"),
            **self._of_files(statement),
        )

    def _create_load(self, statement: Statement) -> Any:
        options = statement.options
        useless = sorted(options.keys() & {"function", "returns", "on_stream"})
        if useless or not {"on_volume", "into"} <= options.keys():
            what = f"has no {useless[0].upper().replace('_', ' ')}" if useless else "needs ON VOLUME and INTO"
            raise SqlError(f"A job that loads files {what}.", "CREATE JOB j ON VOLUME v LOAD (FORMAT 'csv') INTO t")
        common = self._of_files(statement)
        if "arguments" in common:
            raise InvalidValueError("A job that loads files has no property 'arg.KEY'.", "Its options follow LOAD.")
        return self._objects.jobs.load(
            statement.target,
            options["on_volume"],
            options["into"],
            **_parsed(load_keys(options["load"]), options["load"]),
            **common,
        )

    def _of_files(self, statement: Statement) -> dict[str, Any]:
        """Returns the options of a job on files, for any kind of job."""
        options = statement.options
        properties = _properties("job", FileJobSpec, options.get("properties", {}))
        return {"where": options.get("where"), **self._of_all(statement), **properties}

    def _of_all(self, statement: Statement) -> dict[str, Any]:
        """Returns the options of all objects with a schedule."""
        options = statement.options
        return {"comment": options.get("comment"), **_schedule(options), **self._existing(statement)}

    def _create_job_of_statement(self, statement: Statement) -> Any:
        options = statement.options
        useless = sorted(options.keys() & {"function", "load", "into", "returns", "where", "properties", "on_volume"})
        if useless:
            clause = useless[0].upper().replace("_", " ")
            raise SqlError(f"A job of a statement has no {clause}.", "CREATE JOB j EVERY '1m' AS INSERT INTO t SELECT ...")
        return self._objects.jobs.create(
            statement.target, statement=options["as_statement"].text, stream=options.get("on_stream"), **self._of_all(statement)
        )

    def _create_function(self, statement: Statement) -> Any:
        options = statement.options
        return self._objects.functions.create(
            statement.target,
            options["string"],
            options["expression"].text,
            comment=options.get("comment"),
            **self._existing(statement),
        )

    def _create_dynamic(self, statement: Statement) -> Any:
        query = statement.options["as_statement"].text
        return self._objects.dynamic_tables.create(statement.target, query, **self._of_all(statement))

    def _create_external(self, statement: Statement) -> Any:
        """Creates a table that a topic fills, from the options of Spark's Kafka source."""
        options = dict(statement.options["options"])
        missing = sorted({"kafka.bootstrap.servers", "subscribe"} - options.keys())
        if missing:
            raise InvalidValueError(f"USING kafka needs the option {missing[0]!r}.", f"OPTIONS ('{missing[0]}' = '...')")
        if options.pop("startingOffsets", "earliest") != "earliest":
            raise InvalidValueError("Topics are read from their earliest message.", "Leave startingOffsets out.")
        brokers, topic = options.pop("kafka.bootstrap.servers"), options.pop("subscribe")
        source_format, retention = options.pop("format", "json"), options.pop("retention_policy", None)
        properties = {name[6:]: options.pop(name) for name in list(options) if name.startswith("kafka.")}
        if options:
            raise InvalidValueError(
                f"USING kafka has no option {min(options)!r}.",
                "It has subscribe, format, retention_policy and kafka.PROPERTY, with librdkafka's properties.",
            )
        return self._objects.connector.upload_kafka(
            [broker.strip() for broker in brokers.split(",")],
            statement.target,
            source_format,
            topic=topic,
            properties=properties,
            retention_policy=retention,
            comment=statement.options.get("comment"),
            if_not_exists=statement.if_not_exists,
        )

    def _reset(self, statement: Statement) -> Result:
        options = statement.options
        if "number" in options:
            stream = self._objects.streams.reset(statement.target, to_version=_count(options["number"], "VERSION"))
        else:
            moment = self._moment(options["expression"])
            stream = self._objects.streams.reset(statement.target, to_timestamp=moment)
        return Result(["status"], [{"status": f"Stream {stream.name} is at version {stream.offset}."}])

    def _show(self, statement: Statement, kind: str) -> Result:
        rows = [
            {key: _plain(value) for key, value in attributes.items() if key in _SHOWN[kind]}
            for attributes in details.shown(self._home, self._matching(statement, kind))
        ]
        return Result(list(_SHOWN[kind]), rows)

    def _matching(self, statement: Statement, kind: str) -> list[Any]:
        pattern = statement.options.get("string", "%").replace("%", "*").replace("_", "?").lower()
        return [
            definition
            for definition in self._objects.by_kind[kind].list()
            if fnmatch.fnmatchcase(definition.name.name, pattern)
            # IN takes a schema, which the grammar reads as a name.
            and (statement.name is None or definition.name.schema == statement.name.name)
        ]

    def _show_history(self, statement: Statement) -> Result:
        """Returns the refreshes of dynamic tables that read changes, the newest of each table first."""
        rows = [
            {"name": str(job.name), **{key: _plain(getattr(batch, key)) for key in _HISTORY[1:]}}
            for job in self._matching(statement, "dynamic")
            for batch in self._objects.batches.list(str(job.name))
        ]
        return Result(_HISTORY, rows)

    def _shown_definition(self, name: Name) -> str:
        job = self._home.catalog.jobs.find(name)
        return created_table(self._home, name) if not isinstance(job, DynamicJob) else created_dynamic_table(job)

    def _show_directory(self, statement: Statement) -> Result:
        name = statement.target
        volume = self._home.catalog.volumes.get(name)
        below = statement.options.get("string", "").strip("/")
        prefix = f"{below}/" if below else ""
        condition = f" WHERE startswith(relative_path, {literal(prefix)})" if below else ""
        query = f"SELECT * FROM DIRECTORY(VOLUME {name.qualified}){condition} ORDER BY relative_path"
        snapshot = VolumeSource(self._home.catalog, self._home.warehouse, volume.id).find()
        tables = [] if snapshot is None else snapshot.at(prefixes=[prefix])
        return Result(COLUMNS, (row for rows in tables for row in rows.select(COLUMNS).to_pylist()), query)

    def _moment(self, written: Text) -> datetime:
        text = written.text.strip()
        if text[:1] in ("'", '"') and text[-1:] == text[:1]:
            with suppress(InvalidValueError):  # Spark may read more
                return self._home.moment(text[1:-1])
        return self._home.evaluated_moment(text)

    @staticmethod
    def _existing(statement: Statement) -> dict[str, Any]:
        return {"or_replace": statement.or_replace, "if_not_exists": statement.if_not_exists}


def _said(kind: str) -> str:
    return f"{kind.capitalize()} table" if kind in ("dynamic", "external") else kind.capitalize()


def _schedule(options: Mapping[str, Any]) -> dict[str, Any]:
    schedule = {key: options[key] for key in ("schedule", "every", "on_change") if key in options}
    if len(schedule) > 1:
        raise SqlError("SCHEDULE, EVERY and ON CHANGE are mutually exclusive.")
    return {"cron": schedule.pop("schedule"), **schedule} if "schedule" in schedule else schedule


def _properties(kind: str, described: type[Any], said: Mapping[str, str]) -> dict[str, Any]:
    """Returns the options that PROPERTIES of a statement say: all that have no clause of their own."""
    allowed = {name: key for name, key in keys(described).items() if not key.option.clause}
    single = {key.word: key for key in allowed.values() if key.form is forms.PAIRS}
    nested: dict[str, Any] = {}
    plain: dict[str, str] = {}
    for written, value in said.items():
        word, dot, item = written.partition(".")
        if dot and word.lower() in single:
            nested.setdefault(single[word.lower()].name, {})[item] = value
        else:
            plain[written.lower()] = value
    words = [name for name, key in allowed.items() if key.form is not forms.PAIRS] + [f"{word}.KEY" for word in single]
    if unknown := sorted(plain.keys() - allowed):
        raise InvalidValueError(f"A {kind} has no property {unknown[0]!r}.", nearest(unknown[0], words))
    return {**nested, **_parsed(allowed, plain)}


def _parsed(allowed: Mapping[str, Key], said: Mapping[str, str]) -> dict[str, Any]:
    return {name: allowed[name].parse(value) for name, value in said.items()}


def _count(text: str, what: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise InvalidValueError(f"{what} cannot be {text!r}.", "Write a number of up to 18 digits.")
    return int(text)


def _plain(value: Any) -> str | None:
    """Formats a value as text, for DESCRIBE and SHOW."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return local(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return to_json(value) if isinstance(value, dict | list | tuple) else str(value)


def run_statement(objects: Objects, statement: str, *, read_only: bool = False) -> DataFrame:
    """Runs one statement; a query runs when rows of its DataFrame are requested.

    Args:
        read_only: only a query, SHOW or DESCRIBE of what the home has: no path, no other catalog.

    Raises:
        SqlError: volstream or Spark rejects it.
    """
    with as_sql_errors():
        done = _run(objects, statement, read_only=read_only)
        if isinstance(done, Result) and done.query is not None:
            done = _run(objects, done.query)
        if not isinstance(done, Result):
            return done
        text = pa.schema([(name, pa.string()) for name in done.columns])
        records = [{name: _text(row.get(name)) for name in done.columns} for row in done.rows]
        return relation(objects.home.spark, pa.Table.from_pylist(records, schema=text))


def rows(objects: Objects, statement: str) -> tuple[list[str], Iterator[Mapping[str, Any]]]:
    """Runs one statement and returns its columns and its rows, which are fetched from Spark batch by batch.

    Names of columns are distinct, values as :func:`~volstream.functions.types.values.document_values` has
    them.

    Raises:
        SqlError: as :func:`run_statement`; also while rows are fetched.
    """
    if SparkStatement(statement).is_query:
        return objects.home.unless_yielded(lambda: _begun(objects, statement))
    return _begun(objects, statement)


def _begun(objects: Objects, statement: str) -> tuple[list[str], Iterator[Mapping[str, Any]]]:
    """Runs one statement up to its first row."""
    with as_sql_errors():
        done = _run(objects, statement)
        if isinstance(done, Result):
            return list(done.columns), iter(done.rows)
        columns, parts = _distinct(done.columns), _parts(done)
        first = list(islice(parts, 1))

    def found() -> Iterator[dict[str, Any]]:
        with as_sql_errors():
            for part in chain(first, parts):
                for row in zip(*part, strict=True):
                    yield dict(zip(columns, row, strict=True))

    return columns, found()


def _parts(frame: DataFrame) -> Iterator[list[list[Any]]]:
    """Yields the values of each column, batch by batch: times as UTC's, so that two never look the same."""
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import VariantType, VariantVal

    kinds = [field.dataType for field in frame.schema.fields]
    for part in batches(frame):
        columns = []
        for values, kind in zip(part.columns, kinds, strict=True):
            if "tz=" in str(values.type):
                values = values.cast(to_arrow_type(kind, timezone="UTC"))
            cells = document_values(values)
            if isinstance(kind, VariantType):
                cells = [None if cell is None else VariantVal(cell["value"], cell["metadata"]) for cell in cells]
            columns.append(cells)
        yield columns


def _distinct(names: Sequence[str]) -> list[str]:
    """Returns the names of columns; of several with one name, ``a``, the later ones are ``a_2``, ``a_3``."""
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in count(2))
        distinct.append(name if name not in distinct else next(new for new in numbered if new not in {*distinct, *names}))
    return distinct


def _run(objects: Objects, text: str, *, read_only: bool = False) -> DataFrame | Result:
    statement = SparkStatement(one_query(text) if read_only else only(text))
    grammar.check(statement.text)
    words = statement.words
    if grammar.owned(words) or _drops_function(objects.home, statement):
        done: DataFrame | Result = Ddl(objects).run(grammar.parse(statement.text))
    elif read_only:
        done = SparkStatements(objects.home).read(statement)
    else:
        done = SparkStatements(objects.home).run(statement)
    if words[:1] in (["CREATE"], ["DROP"]):
        register_after_work(objects.home)
    return done


def _drops_function(home: Home, statement: SparkStatement) -> bool:
    """Returns whether a statement drops a function of the home, rather than one of Spark's."""
    if not statement.begins("DROP", "FUNCTION"):
        return False
    try:
        name = statement.named
    except InvalidValueError:
        return False
    return home.catalog.functions.find(name) is not None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
