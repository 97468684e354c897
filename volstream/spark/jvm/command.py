"""The properties, command line and environment of the engine's JVM. Text only; ``server`` runs it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from volstream.base.config import Settings
from volstream.spark.jvm import install
from volstream.spark.jvm.install import EXTENSION_CLASS, LISTENER_CLASS, LOG_STORE_CLASS, LOG_STORE_SCHEMES, Java

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

# Java properties files, in ASCII: readers decode them as Latin-1 or UTF-8.


def properties_text(values: Mapping[str, str]) -> str:
    """Returns ``values`` as a properties file."""
    return "".join(f"{escaped(key, ' :=#!')}={escaped(value, '#!')}\n" for key, value in sorted(values.items()))


def escaped(text: str, special: str) -> str:
    """Escapes a key or value of a properties file. ``special`` are the characters that would end it there."""
    out = []
    for position, character in enumerate(text):
        if character == "\\" or character in special or (character == " " and position == 0):
            out.append("\\" + character)
        elif character in "\n\r\t\f":
            out.append({"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}[character])
        elif " " <= character <= "~":
            out.append(character)
        else:
            units = character.encode("utf-16-be")
            out.extend(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
    return "".join(out)


# Settings that make Spark compile or interpret a session's queries.
#
# The engine interprets by default: a commit to a small table takes some twenty queries on few rows, and
# compiling Java for each takes longer than running it, two to three seconds for a session's first commit. But
# interpreting a row takes five times as long, so sessions that read large tables compile. Spark keeps
# compiled code for the lifetime of the session.

#: Settings of an engine that interprets, and of a session that compiles. The latter are Spark's defaults.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}

#: For one column of this many rows, or a table of this many bytes, interpreting takes as long as compiling.
LARGE_ROWS = 250_000
LARGE_BYTES = 16 << 20


def compile_in(session: SparkSession) -> None:
    """Makes Spark compile the session's queries from now on."""
    for key, value in COMPILED.items():
        session.conf.set(key, value)


#: Packages that Spark's own launcher opens (``JavaModuleOptions``).
_OPENED = ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util", "util.concurrent", "util.concurrent.atomic")
_OPENED_INTERNALS = ("jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar")

#: Capabilities that Arrow and Netty need, but Java 24 disables by default.
_JAVA_24_OPTIONS = ("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow", "-Dio.netty.noUnsafe=false")

#: Up to this many values of an IN are pushed down to Parquet individually, so that pages without any of them
#: are skipped. Of more values, only the range is pushed down. Spark passes them as nested ORs, and a task
#: that serializes 600 of these may overflow its stack, which ends the JVM. This is a third of that. Besides,
#: with more random values, nearly every page of a table with 200,000 rows contains one.
_MAX_PUSHED = 200

#: Bytes of heap for each table in Delta's cache: ten times the 3 MB that the first read of a table leaves
#: there.
_BYTES_PER_CACHED_TABLE = 32 << 20

#: Masters whose executor is the driver. Not ``local-cluster``.
_IN_ONE_JVM = re.compile(r"local(\[.*\])?")

_MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@dataclass(frozen=True)
class Files:
    """The files of one engine, all in the home.

    Attributes:
        properties: Spark's settings, including the token. Readable by the owner only.
        log4j: Log4j's configuration.
        pools: the scheduler's pools.
        scratch: shuffles, artifacts, temporary files. Emptied at each start.
        log: directory of the logs.
    """

    properties: Path
    log4j: Path
    pools: Path
    scratch: Path
    log: Path

    @classmethod
    def of(cls, settings: Settings) -> Files:
        """Returns the files of a home's engine."""
        run = settings.run_directory
        return cls(
            run / "spark.properties",
            run / "log4j2.properties",
            run / "pools.xml",
            settings.home / "scratch",
            settings.log_directory,
        )


#: Sessions share the slots evenly. Without this file, FAIR puts all jobs into one FIFO pool.
POOLS = """\
<allocations>
  <pool name="default"><schedulingMode>FAIR</schedulingMode><weight>1</weight><minShare>0</minShare></pool>
</allocations>
"""


#: Settings that are false in all sessions, and advice for users of each. With them, Spark would read other
#: names and texts in a statement than volstream does, so the statement could get past volstream's guards.
LEXING = {
    "spark.sql.variable.substitute": "Use parameters.",
    "spark.sql.ansi.doubleQuotedIdentifiers": "Write names in backticks.",
    "spark.sql.parser.escapedStringLiterals": r"Write texts with backslashes as r'\d'.",
    "spark.sql.parser.quotedRegexColumnNames": "List the columns.",
}


def properties(settings: Settings, files: Files, *, cores: int, port: int, token: str) -> dict[str, str]:
    """Returns the engine's Spark settings.

    ``settings.spark_conf`` overrides them, except :data:`LEXING`, and cannot remove volstream's extension.
    """
    values = {
        "spark.app.name": "volstream",
        "spark.master": f"local[{cores + settings.residents}]",
        "spark.default.parallelism": str(cores),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(files.scratch),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": f"file:{files.pools}",  # Hadoop's paths are not percent-encoded
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.authenticate.token": token,
        **_authentication(settings.spark_conf.get("spark.master", "local")),
        "spark.python.daemon.module": "volstream.jobs.batches.forkserver",
        # On a port, it would fork a process for anyone who connects, before asking for a secret.
        "spark.python.unix.domain.socket.enabled": "true",
        # Messages for people: the cause is in the exception, the stack trace in spark.log.
        "spark.sql.connect.serverStacktrace.enabled": "false",
        "spark.sql.pyspark.jvmStacktrace.enabled": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.sources.default": "delta",
        "spark.sql.legacy.createHiveTableByDefault": "false",
        "spark.sql.warehouse.dir": f"{settings.warehouse_path}/tables",
        "spark.sql.session.timeZone": "UTC",
        # A file name, or text in a user's statement, may look like a variable.
        "spark.sql.variable.substitute": "false",
        # Other readers decode INT96, Spark's default, to nanoseconds, which cannot hold years before 1677 and
        # after 2262.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # Delta reads a change feed through rows of Java, whose older classes lack ten days of October 1582.
        "spark.sql.datetime.java8API.enabled": "true",
        # Delta stores CHAR unchanged. If Spark pads it on reading, an UPDATE stores it in another form than
        # an INSERT, and Delta cannot resolve a MERGE on it.
        "spark.sql.readSideCharPadding": "false",
        # A missing file is an error with its name, instead of missing rows.
        "spark.sql.files.ignoreMissingFiles": "false",
        "spark.sql.files.ignoreCorruptFiles": "false",
        # Versions can be read as long as their files exist, which is checked first.
        "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
        # Tables here are small compared to a cluster's: use fewer, larger tasks, and pages that a path
        # look-up can skip.
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(cores),
        "spark.sql.parquet.pushdown.inFilterThreshold": str(_MAX_PUSHED),
        "spark.hadoop.parquet.page.row.count.limit": "1000",
        "spark.hadoop.parquet.block.size": str(8 << 20),
        # Check the size of a row group after its first row instead of after a hundred, because rows may be
        # large.
        "spark.hadoop.parquet.block.size.row.check.min": "1",
        "spark.hadoop.parquet.page.size.row.check.min": "1",
        # Delta runs a dozen queries on its log for each commit. Compiling Java for each took more than half
        # of the processor time of a refresh or a small batch. For the same reason, adaptive replanning of
        # stages and plan descriptions for the disabled UI are off: they take a fifth of the rest.
        **INTERPRETED,
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.maxPlanStringLength": "100",
        "spark.databricks.delta.snapshotPartitions": "1",
        # The default is 10,000 tables of the last hour, until the heap is full. Reading a table again takes
        # as long as a query.
        "spark.databricks.delta.delta.log.cacheSize": str(max(16, settings.driver_memory // _BYTES_PER_CACHED_TABLE)),
        "spark.databricks.delta.merge.materializeSource": "none",
        # No commit replaces another engine's commit.
        **{f"spark.delta.logStore.{scheme}.impl": LOG_STORE_CLASS for scheme in LOG_STORE_SCHEMES},
        **install.store_properties(settings),
    } | {key: value for key, value in settings.spark_conf.items() if key not in LEXING}
    if _IN_ONE_JVM.fullmatch(values["spark.master"]):  # elsewhere spark.task.reaper.enabled does the same
        values["spark.extraListeners"] = f"{values.get('spark.extraListeners', '')},{LISTENER_CLASS}".lstrip(",")
    values["spark.sql.extensions"] = f"{values['spark.sql.extensions']},{EXTENSION_CLASS}".lstrip(",")
    return values


def _authentication(master: str) -> dict[str, str]:
    """Restricts the JVM's RPC and block manager ports to the JVM itself, with a secret that Spark generates
    internally.

    A cluster needs a secret shared by its nodes, which belongs in the user's ``spark_conf``.
    """
    return {"spark.authenticate": "true"} if _IN_ONE_JVM.fullmatch(master) else {}


def class_path(jars: Sequence[Path], pyspark: Path) -> list[Path]:
    """Returns the JVM's class path, with Delta's jars first."""
    return [*jars, *sorted((pyspark / "jars").glob("*.jar"))]


def java_command(java: Java, settings: Settings, files: Files, classes: Sequence[Path], archive: Sequence[str]) -> list[str]:
    """Returns the JVM's command line. It contains no secret, because every user of the host can read it.

    Args:
        archive: options that use or create a class archive (see ``archive``).
    """
    opened = [f"java.base/java.{name}" for name in _OPENED] + [f"java.base/{name}" for name in _OPENED_INTERNALS]
    return [
        str(java.executable),
        f"-Xmx{settings.driver_memory}",
        # An exhausted heap would leave hanging threads. An exit is noticed and reported.
        "-XX:+ExitOnOutOfMemoryError",
        f"-XX:ErrorFile={files.log / 'hs_err_%p.log'}",
        "-XX:+IgnoreUnrecognizedVMOptions",
        # With one compiler tier Java reserves 48 MB, less than the code of Spark's queries: constant sweeping
        # and recompiling would double the processor time of a MERGE.
        "-XX:ReservedCodeCacheSize=256m",
        *shlex.split(settings.jvm_options),
        *archive,
        # In another time zone Delta re-reads its whole log at each commit, for verification.
        "-Duser.timezone=UTC",
        f"-Djava.io.tmpdir={files.scratch}",
        f"-Dlog4j2.configurationFile={files.log4j.as_uri()}",
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *(f"--add-opens={name}=ALL-UNNAMED" for name in opened),
        *(_JAVA_24_OPTIONS if java.major >= 24 else ()),
        "-cp",
        os.pathsep.join(map(str, classes)),
        "org.apache.spark.deploy.SparkSubmit",
        "--properties-file",
        str(files.properties),
        "--class",
        _MAIN_CLASS,
        "spark-internal",
    ]


def environment(inherited: Mapping[str, str], pyspark: Path, scratch: Path) -> dict[str, str]:
    """Returns the environment of the JVM. Python workers, and so users' functions, inherit it.

    Removes settings for other Spark installations, and volstream's own settings, which may contain keys.
    Makes relative entries of PYTHONPATH absolute, because the JVM has a different working directory.
    """
    # Settings are case-insensitive. The engine does not need Azure's keys, because no warehouse is there.
    foreign = ("SPARK_", "PYSPARK_", "VOLSTREAM_", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN")
    remaining = {name: value for name, value in inherited.items() if not name.upper().startswith(foreign)}
    if remaining.get("PYTHONPATH"):
        remaining["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, remaining["PYTHONPATH"].split(os.pathsep)))
    added = {
        "SPARK_HOME": str(pyspark),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # A killed worker leaves copies of objects behind. Here they are private to the user, and the next
        # start removes them.
        "TMPDIR": str(scratch),
        # For executors that are JVMs on this machine (local-cluster). Without the first, Spark's launcher
        # looks for the folders of a build. Without the second, the executors listen on the network.
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return remaining | added
