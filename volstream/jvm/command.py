"""How the engine's JVM is run: its properties, its command line and its environment. Text only; ``server`` runs it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from volstream.config import Settings
from volstream.jvm import connectors
from volstream.jvm.codegen import INTERPRETED
from volstream.jvm.java import Java

#: What Spark's own launcher opens to it (``JavaModuleOptions``).
_OPENED = (
    "lang",
    "lang.invoke",
    "lang.reflect",
    "io",
    "net",
    "nio",
    "util",
    "util.concurrent",
    "util.concurrent.atomic",
)
_OPENED_INTERNALS = ("jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar")

#: What Java took away by default in release 24, and Arrow and Netty need.
_ALLOWED_SINCE_24 = (
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    "-Dio.netty.noUnsafe=false",
)

#: Up to so many values of an IN go to Parquet one by one, so that pages without any of them are not read; of more, their range
#: does. Spark hands them on as ORs in one another, and a task that serializes 600 of those may run out of stack, which ends the
#: JVM: a third of that. So many values at random places are in most pages of a table of 200,000 rows anyway.
_MOST_PUSHED = 200

#: Masters whose executor is the driver; ``local-cluster`` is not one.
_IN_ONE_JVM = re.compile(r"local(\[.*\])?")

_MAIN_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@dataclass(frozen=True)
class Files:
    """The files that describe one engine, all in the home.

    Attributes:
        properties: Spark's settings, the token among them; only its owner may read it.
        log4j: Log4j's configuration.
        pools: the scheduler's pools.
        scratch: emptied at each start: shuffles, artifacts, temporary files.
        log: the directory of the logs.
    """

    properties: Path
    log4j: Path
    pools: Path
    scratch: Path
    log: Path

    @classmethod
    def of(cls, settings: Settings) -> Files:
        """Those of a home."""
        run = settings.run_directory
        return cls(
            run / "spark.properties",
            run / "log4j2.properties",
            run / "pools.xml",
            settings.home / "scratch",
            settings.log_directory,
        )


#: Sessions share the slots evenly. Without this file FAIR puts all jobs into one pool that is first in, first out.
POOLS = """\
<allocations>
  <pool name="default"><schedulingMode>FAIR</schedulingMode><weight>1</weight><minShare>0</minShare></pool>
</allocations>
"""


def properties(settings: Settings, files: Files, *, cores: int, port: int, token: str) -> dict[str, str]:
    """Spark's settings of the engine; ``settings.spark_conf`` wins."""
    return {
        "spark.app.name": "volstream",
        "spark.master": f"local[{cores}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(files.scratch),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": files.pools.as_uri(),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.authenticate.token": token,
        **_authentication(settings.spark_conf.get("spark.master", "local")),
        "spark.python.daemon.module": "volstream.functions.daemon",
        # Messages for people; the cause is in the exception, the stack in spark.log.
        "spark.sql.connect.serverStacktrace.enabled": "false",
        "spark.sql.pyspark.jvmStacktrace.enabled": "false",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.sources.default": "delta",
        "spark.sql.legacy.createHiveTableByDefault": "false",
        "spark.sql.warehouse.dir": f"{settings.warehouse_path}/tables",
        "spark.sql.session.timeZone": "UTC",
        # The name of a file may look like a variable, and so may text in a user's statement.
        "spark.sql.variable.substitute": "false",
        # A file that is gone is an error with a name, never fewer rows.
        "spark.sql.files.ignoreMissingFiles": "false",
        "spark.sql.files.ignoreCorruptFiles": "false",
        # Versions can be read as long as their files are there; whether they are is looked at first.
        "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
        # Tables here are small against a cluster's: fewer, larger tasks, and pages that a look-up by path can skip.
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(cores),
        "spark.sql.parquet.pushdown.inFilterThreshold": str(_MOST_PUSHED),
        "spark.hadoop.parquet.page.row.count.limit": "1000",
        "spark.hadoop.parquet.block.size": str(8 << 20),
        # What a row group holds is looked at after its first row, not after a hundred: there may be large ones.
        "spark.hadoop.parquet.block.size.row.check.min": "1",
        "spark.hadoop.parquet.page.size.row.check.min": "1",
        # Delta asks its log a dozen queries for each commit. Compiling Java for each took more than half of all processor
        # time of a refresh or a small batch. For the same reason: planning each stage again, and describing plans to a UI
        # that is off, is a fifth of the rest.
        **INTERPRETED,
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.maxPlanStringLength": "100",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.databricks.delta.merge.materializeSource": "none",
        "spark.databricks.delta.changelogV2.enabled": "true",
        # With it every session has Python workers of its own, and the process that forks them stays when the session ends.
        # volstream ships functions as source, by itself.
        "spark.sql.artifact.isolation.enabled": "false",
        **connectors.properties(settings),
    } | settings.spark_conf


def _authentication(master: str) -> dict[str, str]:
    """Lets only the JVM itself talk to its RPC and block manager ports, with a secret that Spark makes up and keeps to itself.

    A cluster has a secret of its own, which its nodes must know too: that is for the user's ``spark_conf``.
    """
    return {"spark.authenticate": "true"} if _IN_ONE_JVM.fullmatch(master) else {}


def properties_text(values: Mapping[str, str]) -> str:
    """``values`` as a Java properties file, in ASCII."""
    return "".join(f"{_escaped(key, ' :=#!')}={_escaped(value, '#!')}\n" for key, value in sorted(values.items()))


def class_path(jars: Sequence[Path], pyspark: Path) -> list[Path]:
    """Everything that the JVM loads classes from; Delta's jars first."""
    return [*jars, *sorted((pyspark / "jars").glob("*.jar"))]


def java_command(
    java: Java, settings: Settings, files: Files, classes: Sequence[Path], archive: Sequence[str]
) -> list[str]:
    """The command line of the JVM. It holds no secret: everybody on the host can read it.

    Args:
        archive: options that use or make a class archive (see ``archive``).
    """
    opened = [f"java.base/java.{name}" for name in _OPENED] + [f"java.base/{name}" for name in _OPENED_INTERNALS]
    return [
        str(java.executable),
        f"-Xmx{settings.driver_memory}",
        # A heap that is exhausted leaves threads that never answer; an end is seen and said.
        "-XX:+ExitOnOutOfMemoryError",
        f"-XX:ErrorFile={files.log / 'hs_err_%p.log'}",
        "-XX:+IgnoreUnrecognizedVMOptions",
        # With one compiler tier Java reserves 48 MB, and the code of Spark's queries is more: a JVM that sweeps and
        # compiles again all the time takes twice the processor for a MERGE.
        "-XX:ReservedCodeCacheSize=256m",
        *shlex.split(settings.jvm_options),
        *archive,
        # In another zone Delta reads its whole log again at each commit, to verify it.
        "-Duser.timezone=UTC",
        f"-Djava.io.tmpdir={files.scratch}",
        f"-Dlog4j2.configurationFile={files.log4j.as_uri()}",
        "-Djdk.reflect.useDirectMethodHandle=false",
        "-Dio.netty.tryReflectionSetAccessible=true",
        *(f"--add-opens={name}=ALL-UNNAMED" for name in opened),
        *(_ALLOWED_SINCE_24 if java.major >= 24 else ()),
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
    """The JVM's environment, which the Python workers and so the users' functions get too.

    What the user's shell says about other Sparks stays out, and so do volstream's own settings, keys among them.
    Relative entries of PYTHONPATH are made absolute, because the JVM runs in a directory of its own.
    """
    foreign = ("SPARK_", "PYSPARK_", "VOLSTREAM_")  # settings are read in any case
    kept = {name: value for name, value in inherited.items() if not name.upper().startswith(foreign)}
    if kept.get("PYTHONPATH"):
        kept["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, kept["PYTHONPATH"].split(os.pathsep)))
    own = {
        "SPARK_HOME": str(pyspark),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # A worker that is killed leaves copies of objects behind: here they are the user's alone, and the next start
        # removes them.
        "TMPDIR": str(scratch),
        # Where executors are JVMs of this machine (local-cluster): without the first Spark's launcher looks for the folders
        # of a build, without the second they listen on the network.
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return kept | own


def _escaped(text: str, special: str) -> str:
    """``text`` as a key or value of a properties file; ``special`` are the characters that would end it there."""
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
