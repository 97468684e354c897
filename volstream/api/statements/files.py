"""Files of a volume as rows, for one statement: read on the executors as a job that loads reads them. Nothing is stored."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

import pyarrow as pa

from volstream.base.definitions import LoadKeys, NewColumns, Volume
from volstream.base.definitions.job import load_keys
from volstream.base.model.paths import FileInfo, printable
from volstream.changes.directory import table as directory
from volstream.changes.streams.sources import VolumeSource
from volstream.errors import InvalidValueError, NotFoundError
from volstream.files.volumes.access import store_of
from volstream.functions.loading.columns import inferred_of, with_rescued
from volstream.functions.loading.loader import PATH, FilesAsRows
from volstream.functions.loading.options import INFERRED, LoadOptions
from volstream.functions.schema import from_ddl, to_ddl
from volstream.jobs.rules.columns import SAMPLE, columns_shown, sample
from volstream.jobs.rules.conditions import matching
from volstream.jobs.runs.services import JobServices
from volstream.spark.frames import relation, without_collations
from volstream.sql.tokens import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.base.model.names import Name
    from volstream.home import Home
    from volstream.sql.names import FilesClause

#: The columns of a directory that tell a file, in the order of :class:`FileInfo`.
_FILES = pa.schema([directory.SCHEMA.field(name) for name in FileInfo._fields])


def frame_of(home: Home, spark: SparkSession, name: Name, clause: FilesClause) -> DataFrame:
    """Returns the rows of files, with ``_rescued_data`` and ``_file_path``.

    Raises:
        NotFoundError: there is no such volume or file.
        InvalidValueError: an option is invalid, or no file has rows to find columns from.
        StorageError: a file cannot be read.
    """
    volume, services = home.catalog.volumes.get(name), JobServices(home)
    store = store_of(volume, home.catalog, home.settings)
    load = _load_of(clause)
    options = LoadOptions(**{**vars(load), "schema": None, "new_columns": NewColumns.RESCUE})
    named = {path: store.head(path) for path in clause.files or ()}
    patterns = [path for path, found in named.items() if found is None and set(path) & set("*?[")]
    if named and not patterns:
        infos: Sequence[FileInfo] = [_info(volume, path, found) for path, found in named.items()]
        files = relation(spark, pa.Table.from_pylist([info._asdict() for info in infos], _FILES))
    else:
        exact = [f"relative_path = {literal(path)}" for path in named if path not in patterns]
        where = " OR ".join([*map(matching, patterns), *exact]) or None
        infos = sample(services, volume, options, where)
        if patterns and not infos:
            raise NotFoundError(f"No file of the volume {volume.name} matches {printable(patterns[0])!r}.")
        files = _listed(home, spark, volume, where)
    inferred = None if load.schema else _inferred(services, volume, options, infos)
    ddl = with_rescued(load.schema or to_ddl(inferred))
    # A copied store has keys for tasks: an error while Spark pickles the store would look like a bug.
    read = FilesAsRows(copy(store), ddl, {**options.arguments(), INFERRED: inferred_of(inferred or ())})
    count = min(services.slots(), len(infos)) or 1
    return files.repartition(count).mapInArrow(read, without_collations(pa.schema([*from_ddl(ddl), PATH])))


def _load_of(clause: FilesClause) -> LoadKeys:
    described = load_keys(clause.options)
    values = {name: described[name].parse(text) for name, text in clause.options.items()}
    return LoadKeys(**values, **({} if clause.format is None else {"format": described["format"].parse(clause.format)}))


def _listed(home: Home, spark: SparkSession, volume: Volume, where: str | None) -> DataFrame:
    source = VolumeSource(home.catalog, home.warehouse, volume.id)
    snapshot = source.find()
    if snapshot is None:
        return relation(spark, _FILES.empty_table())
    return spark.sql(f"SELECT {', '.join(_FILES.names)} FROM ({snapshot.at_query(snapshot.newest)}) WHERE {where or 'true'}")


def _info(volume: Volume, path: str, found: FileInfo | None) -> FileInfo:
    if found is None or not volume.selection.accepts(path):
        raise NotFoundError(f"There is no file {printable(path)!r} in the volume {volume.name}.")
    return found


def _inferred(services: JobServices, volume: Volume, options: LoadOptions, infos: Sequence[FileInfo]) -> pa.Schema:
    columns = columns_shown(services, volume, options, infos[:SAMPLE])
    if not columns.names:
        raise InvalidValueError(
            f"The files of {volume.name} have no rows to infer columns from.", "Name the columns: OPTIONS (schema 'id INT')."
        )
    return columns
