"""Uploads a file of rows as a version of an immutable table.

The file is read as jobs that load files do, its keys are checked, and it is stored in one commit.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from volstream.base.definitions import Connection, FileFormat, LoadKeys, NewColumns, Source
from volstream.base.definitions.job import load_keys
from volstream.base.definitions.objects import PROVIDERS
from volstream.base.definitions.options import read
from volstream.base.model.names import quote
from volstream.base.model.paths import without_secrets
from volstream.base.model.units import format_size
from volstream.base.model.work import FailureKind
from volstream.base.processes import disk_error
from volstream.errors import InvalidValueError, StorageError
from volstream.files.providers.base import provider_of
from volstream.files.storage import open_store
from volstream.files.volumes.access import access_by
from volstream.functions.call import Work
from volstream.functions.child import ChildWorker
from volstream.functions.file import File
from volstream.functions.finding import find
from volstream.functions.loading.columns import with_rescued
from volstream.functions.loading.loader import Loader, columns_of
from volstream.functions.loading.options import RESCUED, LoadOptions, may_be_read, recognize
from volstream.functions.outcomes import FileTask
from volstream.functions.rejection import FileRejectedError
from volstream.functions.schema import from_ddl, to_ddl
from volstream.ingest.sources import tables, versions
from volstream.ingest.sources.tables import KEPT
from volstream.spark.errors import map_spark_errors, sql_error
from volstream.spark.frames import Views
from volstream.sql.text import table_at
from volstream.tables.delta import places
from volstream.tables.delta.commits import PROPERTIES as TRACKING
from volstream.tables.delta.opened import schema_at
from volstream.tables.delta.schema import PRIMARY_KEY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.home import Home

#: Bytes copied at a time; maximum keys that an error names.
_CHUNK_BYTES, _MAX_NAMED_KEYS = 1 << 20, 5

#: The function that writes the rows of a file, and the name of its output file.
_WRITER, _OUTPUT = f"{__name__}:RowsWriter", "output.parquet"

_HTTP_SECONDS = 60.0

#: Schemes of files that Spark reads, because it has the client.
_SPARK_SCHEMES = ("hdfs", "viewfs")


@dataclass(frozen=True)
class Upload:
    """A file to upload.

    Attributes:
        uri: a path, or the URI of a bucket, ``hdfs://`` or ``https://``. It may be presigned, which
            :attr:`shown` hides.
        name: the last part of its path, which tells the format.
        load: how to read it.
        connection: how to reach its object store. The provider's settings by default.
    """

    uri: str
    name: str
    load: LoadKeys
    connection: Connection | None

    @property
    def shown(self) -> str:
        """The file's location for messages, without secrets."""
        return without_secrets(self.uri)

    @classmethod
    def of(cls, uri: str, format_: str | None, options: Mapping[str, Any], connection: Connection | None) -> Upload:
        """Returns the upload of a file. The file's name tells the format by default. Raises
        InvalidValueError."""
        try:
            place = urlsplit(uri)
        except ValueError:
            raise InvalidValueError(f"{without_secrets(uri)} is neither a path nor a URL.") from None
        load_keys(options)
        values = read(LoadKeys, options if format_ is None else {**options, "format": format_})
        # In other URIs a name may contain # and ?.
        path = place.path if place.scheme in ("http", "https") else uri
        upload = cls(uri, path.rpartition("/")[2], LoadKeys(**values), connection)
        if not may_be_read(upload.name, upload.options):
            raise InvalidValueError(
                f"The format of {upload.shown} is unknown.", f"Pass format=..., one of: {', '.join(FileFormat)}."
            )
        return upload

    @property
    def options(self) -> LoadOptions:
        """How to read the file, except its columns."""
        return LoadOptions(**{**vars(self.load), "schema": None, "new_columns": NewColumns.RESCUE})


def add(home: Home, source: Source, version: int | None, upload: Upload) -> None:
    """Makes a version of a file's rows, unless the table already has it. The first version creates the table.

    Args:
        version: None for the next one, unless the newest version has the same rows.

    Raises:
        InvalidValueError: there is no such file, it cannot be parsed, or keys are missing or occur twice.
        AlreadyExistsError: the table has that version, with other rows.
        VolstreamError: reading or writing failed. Nothing is left behind.
    """
    location = places.table_location(home.warehouse, source.name)
    with _staged(home, upload) as path, versions.alone(home, source.name), map_spark_errors(), home.gateway.fresh() as spark:
        rows = spark.read.parquet(path)
        source = replace(source, primary_key=_checked_key(rows, upload, str(source.primary_key)))

        def write(number: int) -> None:
            _fit_table(home, location, places.dataset(path).schema, source)
            versions.overwrite(home, location, number, lambda session: session.read.parquet(path))

        with _registered(home, source):
            versions.make(home, source, version, lambda existing: _has_rows(spark, rows, location, existing), write)


@contextmanager
def _registered(home: Home, source: Source) -> Iterator[None]:
    """Stores the definition if it is new. If the block then fails, removes the definition and the table."""
    if home.catalog.sources.find(source.name) is not None:
        yield
        return
    with home.catalog.database.transaction() as transaction:
        home.catalog.sources.add(transaction, source)
    try:
        yield
    except BaseException:
        tables.drop_source(home, source)
        raise


@contextmanager
def _staged(home: Home, upload: Upload) -> Iterator[str]:
    """Writes the rows of the file next to the tables, where Spark on any host finds them. Yields the path.

    Raises:
        InvalidValueError: the file cannot be read, or has values that its columns cannot hold.
    """
    with places.staged(home.warehouse, "upload") as folder:
        with tempfile.TemporaryDirectory(prefix="volstream-upload-") as scratch:
            # A fixed name: Spark skips names that begin with _, and the original name may be too long.
            name = "rows" + "".join(Path(upload.name).suffixes[-2:])[-40:]
            with _opened(home, upload) as source, open(f"{scratch}/{name}", "wb") as copy:
                _copy(source, copy, upload, home.settings.upload_max_bytes)
            _write(upload, scratch, name, home.settings.function_memory)
            places.put(f"{scratch}/{_OUTPUT}", folder)
        yield folder


def _copy(source: BinaryIO, copy: BinaryIO, upload: Upload, maximum: int) -> None:
    """Copies a file of up to ``maximum`` bytes. Raises InvalidValueError, DiskError."""
    copied = 0
    while chunk := source.read(_CHUNK_BYTES):
        copied += len(chunk)
        if copied > maximum:
            raise InvalidValueError(
                f"{upload.shown} has more than {format_size(maximum)} (setting upload_max_bytes).",
                "Raise the setting, or put the file into a volume and load it with a job.",
            )
        try:
            copy.write(chunk)
            copy.flush()
        except OSError as error:
            raise disk_error(error, f"{tempfile.gettempdir()} (TMPDIR)") or error from error


def _write(upload: Upload, scratch: str, name: str, memory_bytes: int | None) -> None:
    """Writes the rows of a file in ``scratch`` to ``output.parquet`` there. Raises InvalidValueError.

    Runs in a separate process with a memory limit: in some formats, a few bytes expand to gigabytes.
    """
    store = open_store(scratch)
    info = store.head(name)
    assert info is not None, "it was just copied"
    arguments = upload.options.arguments()
    if upload.load.schema:
        arguments["columns"] = upload.load.schema
    with closing(ChildWorker(Work(find(_WRITER), arguments, store, pa.schema([]), memory_bytes=memory_bytes))) as worker:
        [outcome] = worker.call([FileTask(info, 0)])
    if outcome.kind is FailureKind.OUT_OF_MEMORY:
        raise InvalidValueError(
            f"Reading {upload.shown} takes more than {format_size(memory_bytes or 0)} of memory (setting function_memory).",
            "Raise the setting, or split the file.",
        )
    if outcome.kind is not None:
        detected = recognize(name, upload.options)
        raise InvalidValueError(
            f"{upload.shown} cannot be read as {'a file' if detected is None else detected.format}: {outcome.message}",
            "Specify how to read it: options={'delimiter': ';', 'encoding': ..., 'schema': 'id INT, ...'}.",
        )


class RowsWriter:
    """The function that writes a file's rows to ``output.parquet`` beside it.

    Args:
        columns: DDL. Inferred from all rows of the file by default.
        options: see :meth:`LoadOptions.of`.
    """

    def __init__(self, columns: str | None = None, **options: str) -> None:
        self._columns = None if columns is None else from_ddl(columns)
        self._options = options

    def __call__(self, file: File) -> None:
        """Writes a file's rows. Raises FileRejectedError."""
        columns = self._columns
        if columns is None:
            columns = columns_of([file], LoadOptions.of(self._options), whole=True)
        if not columns.names:
            raise FileRejectedError("It has no rows to infer its columns from.")
        load = Loader(with_rescued(to_ddl(columns)), **self._options)
        with pq.ParquetWriter(f"{Path(file.local_path()).parent}/{_OUTPUT}", columns) as target:
            for batch in load(file):
                rescued = batch.column(RESCUED).drop_null()
                if len(rescued):
                    raise FileRejectedError(f"It has a row with values that fit no column: {rescued[0].as_py()[:200]}.")
                target.write_batch(batch.select(columns.names))


@contextmanager
def _opened(home: Home, upload: Upload) -> Iterator[BinaryIO]:
    uri = upload.uri
    place = urlsplit(uri)
    match place.scheme:
        case "" | "file":
            path = Path(os.path.expanduser(place.path if place.scheme else uri))
            if "\0" in uri:
                raise InvalidValueError(f"{uri!r} is not a path.")
            if path.exists() and not path.is_file():  # a pipe may never end
                raise InvalidValueError(f"{path} is not a regular file.")
            try:
                with path.open("rb") as file:
                    yield file
            except OSError as error:
                raise InvalidValueError(f"{path} cannot be read: {error.strerror}.") from None
        case _ if place.scheme in _SPARK_SCHEMES:
            yield io.BytesIO(_read_by_spark(home, upload))
        case _ if provider_of(uri) is not None:
            parent, _, name = uri.rpartition("/")
            store = open_store(parent, access_by(upload.connection, parent, home.settings))
            try:
                with store.open(name) as file:
                    yield file
            except FileNotFoundError:
                raise InvalidValueError(f"{upload.shown} does not exist.") from None
        case "http" | "https" if "@" in place.netloc:
            raise InvalidValueError(
                f"{upload.shown} has a user or a password in front of the host.", "Use a presigned URL, or copy the file."
            )
        case "http" | "https" if place.hostname in home.settings.upload_hosts:
            try:
                with _fetcher(home).open(uri, timeout=_HTTP_SECONDS) as response:
                    yield response
                    if response.length:  # http.client does not report missing bytes
                        raise StorageError(f"{upload.shown} ended {response.length} bytes too early.", "Try again.")
            except HTTPException as error:
                reason = str(error).replace(f"?{place.query}", "")
                raise InvalidValueError(f"{upload.shown} cannot be fetched: {reason}.") from None
            except OSError as error:
                raise StorageError(f"{upload.shown} cannot be read: {error}.") from error
        case "http" | "https":
            raise _not_allowed(place.hostname)
        case other:
            buckets = "".join(f" {scheme}://," for scheme in PROVIDERS)
            raise InvalidValueError(f"{other}:// is not supported.", f"Use a path,{buckets} hdfs:// or https://.")


def _fetcher(home: Home) -> urllib.request.OpenerDirector:
    """Returns an opener of URLs that follows redirects only to allowed hosts."""

    class Redirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            place = urlsplit(newurl)
            if place.scheme not in ("http", "https") or place.hostname not in home.settings.upload_hosts:
                raise _not_allowed(place.hostname)
            if place.scheme == "http" and urlsplit(req.full_url).scheme == "https":
                raise InvalidValueError(f"{place.hostname} redirects from https:// to http://, which is not followed.")
            return super().redirect_request(req, fp, code, msg, headers, newurl)

        def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
            try:
                urlsplit(headers.get("location") or "")
            except ValueError:
                raise StorageError(f"{urlsplit(req.full_url).hostname} redirects to what is not a URL.") from None
            return super().http_error_302(req, fp, code, msg, headers)

        http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    return urllib.request.build_opener(Redirects)


def _not_allowed(host: str | None) -> InvalidValueError:
    return InvalidValueError(f"Files are not fetched from {host}.", "Add the host to the setting upload_hosts to allow it.")


def _read_by_spark(home: Home, upload: Upload) -> bytes:
    """Returns a file of up to 2 GiB. Raises StorageError."""
    from pyspark.errors import PySparkException

    with map_spark_errors(), home.gateway.fresh() as spark:
        try:
            [row] = spark.read.format("binaryFile").load(upload.uri).select("content").collect()
        except PySparkException as error:
            raise StorageError(
                f"{upload.shown} cannot be read: {sql_error(error).brief.rstrip('.')}.",
                "Write hdfs://HOST:PORT/path, and check that this machine reaches the host.",
            ) from error
    return bytes(row["content"])


def _checked_key(rows: DataFrame, upload: Upload, primary_key: str) -> str:
    """Returns the key column as the file spells it. Raises InvalidValueError for missing or repeated keys."""
    names = {name.lower(): name for name in rows.columns}
    column = names.get(primary_key.lower())
    if column is None:
        raise InvalidValueError(f"{upload.shown} has no column {primary_key}.", f"Its columns: {', '.join(rows.columns)}.")
    quoted = f"`{column.replace('`', '``')}`"
    counted = rows.groupBy(rows[quoted].alias("key")).count().where("count > 1 OR key IS NULL")
    repeated = counted.orderBy("key").limit(_MAX_NAMED_KEYS + 1).collect()
    if any(row["key"] is None for row in repeated):
        raise InvalidValueError(f"{upload.shown} has rows without a value for {primary_key}.", "Nothing was stored.")
    versions.raise_if_any([row["key"] for row in repeated], column)
    return column


def _has_rows(spark: SparkSession, rows: DataFrame, location: str, version: int | None) -> bool:
    """Returns whether a Delta version has the same rows, with NULL for columns that the file lacks."""
    from pyspark.errors import AnalysisException

    schema = None if version is None else schema_at(location, version)
    columns = [] if schema is None else schema.columns
    uploaded_names = {name.lower() for name in rows.columns}
    if not uploaded_names <= {name.lower() for name in columns}:
        return False
    listed = ", ".join(quote(name) if name.lower() in uploaded_names else f"NULL AS {quote(name)}" for name in columns)
    stored = f"SELECT * FROM {table_at(location)} VERSION AS OF {version}"
    uploaded = f"SELECT {listed} FROM {Views(spark).show(rows)}"
    differing = f"({stored} EXCEPT ALL {uploaded}) UNION ALL ({uploaded} EXCEPT ALL {stored})"
    try:
        return not spark.sql(differing).limit(1).collect()
    except AnalysisException:  # other types
        return False


def _fit_table(home: Home, location: str, columns: pa.Schema, source: Source) -> None:
    """Creates the table, or adds missing columns to it."""
    schema = schema_at(location)
    writer = home.delta
    if schema is None:
        properties = {**TRACKING, **KEPT, PRIMARY_KEY: json.dumps([source.primary_key])}
        writer.create(location, to_ddl(columns), properties)
        return
    existing = {name.lower() for name in schema.columns}
    new = [field for field in columns if field.name.lower() not in existing]
    if new:
        writer.add_columns(location, to_ddl(pa.schema(new)))
