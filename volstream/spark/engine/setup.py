"""Sets up a machine for ``volstream setup``: finds Java, fetches the jars, creates the class archive.

Keeps existing parts, so running it again is cheap. Safe to run concurrently.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from volstream.base import config
from volstream.errors import EngineError
from volstream.spark.jvm import command, install, log_file
from volstream.spark.jvm.server import JvmServer, start_jvm

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.connect.session import SparkSession

#: Timeout for writing 240 MB when the JVM ends. Takes ten seconds on an idle machine.
_ARCHIVE_SECONDS = 300.0


def set_up(say: Callable[[str], None], warehouses: Sequence[str] = (), repository: str = config.MAVEN_CENTRAL) -> None:
    """Prepares an engine for this user. Reports each step in one line.

    Args:
        warehouses: also prepare warehouses of these schemes.
        repository: URL of a Maven repository with the jars.

    Raises:
        JavaError: there is no Java, the cache cannot be created, or the jars cannot be fetched.
        EngineError: the engine that creates the archive did not start.
    """
    cache = config.cache_directory()
    install.create_cache(cache)
    runtime = install.find_java()
    say(f"Java {runtime.major}: {runtime.executable}")
    fetched = install.fetch_jars(cache, repository=repository)
    say(f"Delta {install.DELTA_VERSION} jars: {'fetched into' if fetched else 'in'} {cache / 'jars'}")
    for scheme in warehouses:
        fetched = install.fetch_jars(cache, install.jars_of(f"{scheme}://"), repository)
        say(f"{scheme.upper()} jars: {'fetched into' if fetched else 'in'} {cache / 'jars'}")
    classes = command.class_path(install.cached_jars(cache), install.pyspark_directory())
    with tempfile.TemporaryDirectory(prefix="volstream-setup-") as scratch:
        options = config.load(scratch).jvm_options
        target = install.archive_path(cache, runtime, options, classes)
        if target.is_file():
            say(f"class archive: {target}")
            return
        if not install.has_base_archive(runtime):
            say(f"class archive: left out, because {runtime.executable} has none to add to, and its folder cannot be written.")
            return
        say("class archive: creating it, which takes about a minute ...")
        # Beside the target, because a rename is only atomic within a file system.
        new = cache / f".{target.name}.{os.getpid()}"
        try:
            _make_archive(Path(scratch), new)
            os.replace(new, target)
        finally:
            new.unlink(missing_ok=True)
    install.remove_unused_archives(cache, keep=target)
    say(f"class archive: {target}")


def _make_archive(home: Path, target: Path) -> None:
    """Runs typical statements in an engine that writes the archive when it ends.

    Passes settings explicitly, so that the warehouse or cluster in the user's environment is not touched.
    """
    settings = config.load(home, warehouse="", catalog_url="", spark_remote="", spark_conf={}, engine_start_seconds=300)
    server = start_jvm(settings, archive_to=target)
    try:
        _exercise(server, home)
        server.process.terminate()
        server.process.wait(_ARCHIVE_SECONDS)
    except subprocess.TimeoutExpired:
        raise EngineError("The class archive was not written in time.", "Try again when the machine is less busy.") from None
    finally:
        server.kill()
    if not target.is_file():
        # The log is deleted with its temporary home.
        lines = log_file.last_lines(log_file.jvm_log(settings.log_directory))
        raise EngineError(f"The JVM wrote no class archive. Its last lines:\n{lines}\n")


def _exercise(server: JvmServer, home: Path) -> None:
    """Makes the JVM load the classes for volstream's own work, so that they get into the archive."""
    from volstream.spark.session import SparkGateway

    gateway = SparkGateway(lambda: server.address("background"), stall_seconds=_ARCHIVE_SECONDS)
    try:
        with gateway.fresh() as session:
            _statements(session, str(home / "warehouse" / "t"), str(home / "warehouse" / "staged"))
    finally:
        gateway.close()


def _statements(session: SparkSession, table: str, staged: str) -> None:
    import pyarrow as pa

    columns = "key STRING, size BIGINT, time TIMESTAMP"
    session.sql(
        f"CREATE TABLE delta.`{table}` ({columns}) USING DELTA TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true', "
        "'delta.enableInCommitTimestamps' = 'true', 'delta.enableDeletionVectors' = 'true')"
    ).collect()
    rows = pa.table({"key": ["a", "b", "c"], "size": [1, 2, 3], "time": pa.array([0, 1, 2], pa.timestamp("us", "UTC"))})
    for version in (1, 2):
        frame = session.createDataFrame(rows).coalesce(1)
        frame.write.format("delta").mode("append").option("txnAppId", "a").option("txnVersion", str(version)).save(table)
    session.createDataFrame(rows.slice(0, 2)).createOrReplaceTempView("new")
    session.sql(
        f"MERGE INTO delta.`{table}` t USING new s ON t.key = s.key AND t.key IN ('a') "
        "WHEN MATCHED AND t.size <> s.size THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ).collect()
    session.sql(f"DELETE FROM delta.`{table}` WHERE key = 'b'").collect()
    session.sql(
        f"SELECT key, min_by(size, _commit_version), max(_change_type) FROM table_changes_by_path('{table}', 1) GROUP BY key"
    ).toArrow()
    session.sql(f"DESCRIBE DETAIL delta.`{table}`").collect()
    session.sql(f"SELECT * FROM delta.`{table}` VERSION AS OF 1 WHERE key = 'a'").toArrow()
    mapped = session.sql(f"SELECT key, size FROM delta.`{table}`").mapInArrow(_unchanged, "key STRING, size BIGINT")
    mapped.write.mode("overwrite").parquet(staged)
    session.read.parquet(staged).where("size IS NOT NULL").limit(5).toArrow()


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
