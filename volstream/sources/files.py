"""Uploads a file of rows as a version of an immutable table, by Spark: it is copied, checked, and stored in one commit."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

import pyarrow as pa

from volstream.definitions import Connection, FeedTable
from volstream.delta import folders
from volstream.delta.log import PRIMARY_KEY, DeltaLog
from volstream.delta.places import filesystem_of, make_folder
from volstream.delta.tracking import PROPERTIES as TRACKING
from volstream.delta.writer import DeltaWriter
from volstream.errors import InvalidValueError, StorageError, in_brief
from volstream.loading import parquet_files
from volstream.loading.content import most_expanded
from volstream.model.locations import without_secrets
from volstream.model.names import quote
from volstream.model.units import format_size
from volstream.sources import avro, tables, versions
from volstream.sources.tables import KEPT
from volstream.spark.errors import condition_of, map_spark_errors, sql_error
from volstream.spark.views import Views
from volstream.sqltext import table_at
from volstream.storage import open_store
from volstream.volumes.access import access_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.home import Home

FORMATS = ("csv", "json", "parquet", "avro", "orc")

#: Options of Spark's readers; a file with a broken line is refused.
_READING: dict[str, dict[str, Any]] = {
    "csv": {"header": True, "inferSchema": True, "multiLine": True, "escape": '"', "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
    "parquet": {},
    "orc": {},
}

_COMPRESSIONS = (".gz", ".bz2", ".zst", ".snappy")

#: Bytes copied at a time; records of an Avro file converted at a time; keys that an error names.
_PIECE, _RECORDS, _SHOWN = 1 << 20, 10_000, 5

#: Ends of the names of files that are decompressed to see how large they are.
_COMPRESSED = (".gz", ".bz2", ".zst")

_HTTP_SECONDS = 60.0

#: Spark's conditions for a file that does not have its format.
_BROKEN = (
    "FAILED_READ_FILE",
    "MALFORMED_RECORD_IN_PARSING",
    "UNABLE_TO_INFER_SCHEMA",
    "CANNOT_READ_FILE_FOOTER",
    "INVALID_CSV",
)


@dataclass(frozen=True)
class Upload:
    """A file to upload.

    Attributes:
        uri: a path, or ``s3://``, ``oss://``, ``hdfs://``, ``https://``. It may sign itself; :attr:`shown` does not.
        format: one of :data:`FORMATS`.
        options: further options of Spark's reader, such as ``delimiter``.
        connection: how to reach its object store; None: with the provider's own settings.
    """

    uri: str
    format: str
    options: Mapping[str, Any]
    connection: Connection | None

    @property
    def shown(self) -> str:
        """The file's place in messages."""
        return without_secrets(self.uri)

    @classmethod
    def of(cls, uri: str, format_: str | None, options: Mapping[str, Any], connection: Connection | None) -> Upload:
        """Returns the upload of a file. Its name tells its format by default. Raises InvalidValueError."""
        try:
            place = urlsplit(uri)
        except ValueError:
            raise InvalidValueError(f"{without_secrets(uri)} is neither a path nor a URL.") from None
        # Elsewhere a name may have # and ?.
        stem = (place.path if place.scheme in ("http", "https") else uri).lower()
        stem = stem.removesuffix(_compression(stem))
        found = format_ or {"jsonl": "json", "ndjson": "json"}.get(stem.rpartition(".")[2], stem.rpartition(".")[2])
        if found not in FORMATS:
            raise InvalidValueError(
                f"The format of {without_secrets(uri)} is not known.", f"Pass format=..., one of: {', '.join(FORMATS)}."
            )
        return cls(uri, found, options, connection)


def add(home: Home, feed: FeedTable, version: int | None, upload: Upload) -> None:
    """Makes a version of a file's rows, unless the table has it already; the table is created with its first one.

    Args:
        version: None: the next one, unless the newest has the same rows.

    Raises:
        InvalidValueError: there is no such file, it cannot be parsed, or keys are missing or occur twice.
        AlreadyExistsError: the table has that version, with other rows.
        VolstreamError: reading or writing failed. Nothing is left behind.
    """
    location = folders.table_location(home.warehouse, feed.name)
    with _staged(home, upload) as path, versions.alone(home, feed.name), _refusals(upload):
        with home.gateway.fresh() as spark:
            rows = _read(spark, path, upload)
            feed = replace(feed, primary_key=_checked_key(rows, upload, str(feed.primary_key)))
            last = versions.newest(home, feed)
            if version is None and last is not None and _has(spark, rows, location, versions.present(home, feed, last)):
                return
            version = versions.number_for(home.catalog.feeds.find(feed.name) or feed, version)
            existing = versions.present(home, feed, version)
            if existing is not None:
                if not _has(spark, rows, location, existing):
                    raise versions.differs(feed, version)
                versions.note(home, feed, version)
                return
            fields = [(field.name, field.dataType.simpleString()) for field in rows.schema.fields]
        with _first(home, feed):
            _fit(home, location, fields, feed)
            versions.overwrite(home, location, version, lambda session: _read(session, path, upload))
            versions.note(home, feed, version)


@contextmanager
def _first(home: Home, feed: FeedTable) -> Iterator[None]:
    """Stores the definition unless it is stored. If the block fails then, nothing is left of it, nor of the table."""
    if home.catalog.feeds.find(feed.name) is not None:
        yield
        return
    with home.catalog.database.transaction() as transaction:
        home.catalog.feeds.add(transaction, feed)
    try:
        yield
    except BaseException:
        tables.drop(home, feed)
        raise


#: Schemes of files that Spark reads where they are: it has the client.
_SPARKS = ("hdfs", "viewfs")


@contextmanager
def _refusals(upload: Upload) -> Iterator[None]:
    """Maps Spark's errors about the file to InvalidValueError, or to StorageError if it cannot be reached."""
    from pyspark.errors import PySparkException

    with map_spark_errors():
        try:
            yield
        except Exception as error:
            if (condition_of(error) or "").startswith(_BROKEN):
                raise InvalidValueError(
                    f"{upload.shown} cannot be read as {upload.format}: {in_brief(error)}.",
                    "Pass the options of its format: options={'delimiter': ';', ...}.",
                ) from error
            if urlsplit(upload.uri).scheme in _SPARKS and isinstance(error, PySparkException):
                raise StorageError(
                    f"{upload.shown} cannot be read: {sql_error(error).brief.rstrip('.')}.",
                    "Write hdfs://HOST:PORT/path, and check that this machine reaches the host.",
                ) from error
            raise


@contextmanager
def _staged(home: Home, upload: Upload) -> Iterator[str]:
    """Copies the file next to the tables, where Spark finds it on any host; yields where it is."""
    place = urlsplit(upload.uri)
    if place.scheme in _SPARKS:
        yield upload.uri
        return
    folder = f"{home.warehouse}/_staging/upload-{uuid.uuid4().hex}"
    try:
        make_folder(folder)
        filesystem, root = filesystem_of(folder)
        # Spark leaves out files with some names, and cannot open others.
        name = f"rows{_compression(place.path if place.scheme in ('http', 'https') else upload.uri)}"
        with _opened(home, upload) as source:
            if upload.format == "avro":
                _convert(source, folder)
            else:
                with filesystem.open_output_stream(f"{root}/{name}", compression=None) as target:
                    shutil.copyfileobj(source, target, _PIECE)
                _check_expanded(upload, filesystem, f"{root}/{name}")
        yield folder
    finally:
        folders.remove(folder)


def _check_expanded(upload: Upload, filesystem: Any, path: str) -> None:
    """Raises InvalidValueError if a copied file expands too far for Spark, as far as its footer or its compression shows."""
    size = filesystem.get_file_info(path).size
    most, expanded = most_expanded(size), 0
    try:
        if upload.format in ("parquet", "orc"):
            with filesystem.open_input_file(path) as file:
                expanded = _claimed(file, upload.format)
        elif path.lower().endswith(_COMPRESSED):
            with filesystem.open_input_stream(path) as stream:  # decompresses by the name
                while expanded <= most and (piece := stream.read(_PIECE)):
                    expanded += len(piece)
    except (pa.ArrowException, OSError):  # Spark says what is wrong
        return
    if expanded > most:
        raise InvalidValueError(
            f"{upload.shown} has {format_size(size)} and expands to {format_size(expanded)} or more.",
            f"It may expand to {format_size(most)}: split it.",
        )


def _claimed(file: Any, format_: str) -> int:
    """Returns how many bytes the rows are, at least, by the file's footer."""
    import pyarrow.orc
    import pyarrow.parquet

    if format_ == "parquet":
        return parquet_files.claimed(pyarrow.parquet.ParquetFile(file).metadata)
    orc = pyarrow.orc.ORCFile(file)
    return int(orc.nrows * len(orc.schema) * parquet_files.WIDTH)


def _compression(path: str) -> str:
    """Returns the end of a file's name that says how it is compressed; empty if it is not."""
    return next((one for one in _COMPRESSIONS if path.lower().endswith(one)), "")


@contextmanager
def _opened(home: Home, upload: Upload) -> Iterator[BinaryIO]:
    uri = upload.uri
    place = urlsplit(uri)
    match place.scheme:
        case "" | "file":
            path = Path(os.path.expanduser(place.path if place.scheme else uri))
            if "\0" in uri:
                raise InvalidValueError(f"{uri!r} is not a path.")
            try:
                with path.open("rb") as file:
                    yield file
            except OSError as error:
                raise InvalidValueError(f"{path} cannot be read: {error.strerror}.") from None
        case "s3" | "s3a" | "oss":
            parent, _, name = uri.replace("s3a://", "s3://").rpartition("/")
            store = open_store(parent, access_by(upload.connection, parent, home.settings))
            try:
                with store.open(name) as file:
                    yield file
            except FileNotFoundError:
                raise InvalidValueError(f"There is no {upload.shown}.") from None
        case "http" | "https" if "@" in place.netloc:
            raise InvalidValueError(
                f"{upload.shown} has a user or a password in front of the host.",
                "Use a presigned URL, or copy the file.",
            )
        case "http" | "https" if place.hostname in home.settings.upload_hosts:
            try:
                with _fetcher(home).open(uri, timeout=_HTTP_SECONDS) as answer:
                    yield answer
                    if answer.length:  # http.client is silent about the rest
                        raise StorageError(f"{upload.shown} ended {answer.length} bytes too early.", "Try again.")
            except HTTPException as error:
                said = str(error).replace(f"?{place.query}", "")
                raise InvalidValueError(f"{upload.shown} cannot be fetched: {said}.") from None
            except OSError as error:
                raise StorageError(f"{upload.shown} cannot be read: {error}.") from error
        case "http" | "https":
            raise _not_allowed(place.hostname)
        case other:
            raise InvalidValueError(f"{other}:// is not supported.", "Use a path, s3://, oss://, hdfs:// or https://.")


def _fetcher(home: Home) -> urllib.request.OpenerDirector:
    """Returns what opens URLs, and follows redirects to allowed hosts only."""

    class Redirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            place = urlsplit(newurl)
            if place.scheme not in ("http", "https") or place.hostname not in home.settings.upload_hosts:
                raise _not_allowed(place.hostname)
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    return urllib.request.build_opener(Redirects)


def _not_allowed(host: str | None) -> InvalidValueError:
    return InvalidValueError(
        f"Files are not fetched from {host}.", "Add the host to the setting upload_hosts to allow it."
    )


def _convert(source: BinaryIO, folder: str) -> None:
    """Writes the records of an Avro file as Parquet: Spark reads Avro only with a jar of its own."""
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(source, copy, _PIECE)
        schema = pa.schema([])
        for part in _records(copy):  # a column may be NULL in the first million
            schema = pa.unify_schemas([schema, part.schema], promote_options="permissive")
        with folders.written(folder, schema) as file:
            for part in _records(copy):
                file.write_table(pa.Table.from_pylist(part.to_pylist(), schema=schema))


def _records(file: IO[bytes]) -> Iterator[pa.Table]:
    for some in avro.parts(file, "file", _RECORDS):
        try:
            yield pa.Table.from_pylist(some)
        except pa.ArrowException as error:
            raise InvalidValueError(f"The records of the file cannot be rows: {error}.") from None


def _read(spark: SparkSession, path: str, upload: Upload) -> DataFrame:
    format_ = "parquet" if upload.format == "avro" else upload.format
    options = {**_READING[format_], **upload.options}
    if format_ == "json" and "multiLine" not in options and not upload.uri.startswith(("hdfs:", "viewfs:")):
        options["multiLine"] = _is_one_value(path)
    return spark.read.format(format_).options(**options).load(path)


def _is_one_value(folder: str) -> bool:
    """True if a JSON file is an array, rather than a value per line."""
    (file,) = folders.files(folder)
    filesystem, root = filesystem_of(folder)
    with filesystem.open_input_stream(f"{root}/{file.name}") as stream:  # decompresses by the name
        return bool(stream.read(_PIECE).lstrip()[:1] == b"[")


def _checked_key(rows: DataFrame, upload: Upload, primary_key: str) -> str:
    """Returns the key column as the file spells it. Raises InvalidValueError unless every row has a key of its own."""
    names = {name.lower(): name for name in rows.columns}
    column = names.get(primary_key.lower())
    if column is None:
        raise InvalidValueError(
            f"{upload.shown} has no column {primary_key}.", f"Its columns: {', '.join(rows.columns)}."
        )
    quoted = f"`{column.replace('`', '``')}`"
    counted = rows.groupBy(rows[quoted].alias("key")).count().where("count > 1 OR key IS NULL")
    found = counted.orderBy("key").limit(_SHOWN + 1).collect()
    if any(row["key"] is None for row in found):
        raise InvalidValueError(f"{upload.shown} has rows without a value for {primary_key}.", "Nothing was stored.")
    versions.raise_if_any([row["key"] for row in found], column)
    return column


def _has(spark: SparkSession, rows: DataFrame, location: str, version: int | None) -> bool:
    """Returns whether a Delta version of the table has the same rows. Columns that the file lacks are NULL in it."""
    from pyspark.errors import AnalysisException

    schema = None if version is None else DeltaLog(location).schema(version)
    columns = [] if schema is None else schema.columns
    given = {name.lower() for name in rows.columns}
    if not given <= {name.lower() for name in columns}:
        return False
    listed = ", ".join(quote(name) if name.lower() in given else f"NULL AS {quote(name)}" for name in columns)
    stored = f"SELECT * FROM {table_at(location)} VERSION AS OF {version}"
    uploaded = f"SELECT {listed} FROM {Views(spark).show(rows)}"
    differing = f"({stored} EXCEPT ALL {uploaded}) UNION ALL ({uploaded} EXCEPT ALL {stored})"
    try:
        return not spark.sql(differing).limit(1).collect()
    except AnalysisException:  # other types
        return False


def _fit(home: Home, location: str, fields: list[tuple[str, str]], feed: FeedTable) -> None:
    """Creates the table, or adds the columns that it lacks."""
    schema = DeltaLog(location).schema()
    writer = DeltaWriter(home.gateway)
    if schema is None:
        properties = {**TRACKING, **KEPT, PRIMARY_KEY: json.dumps([feed.primary_key])}
        writer.create(location, _ddl(fields), properties)
        return
    known = {name.lower() for name in schema.columns}
    new = [(name, kind) for name, kind in fields if name.lower() not in known]
    if new:
        writer.add_columns(location, _ddl(new))


def _ddl(fields: list[tuple[str, str]]) -> str:
    return ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in fields)
