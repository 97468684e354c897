"""What the engine's JVM writes down, and reading the end of it for an error message.

``spark.log`` holds what Spark logs at WARN and above, ``jvm.log`` what the JVM and the Python workers print themselves.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

#: Text of Log4j's configuration. The loggers named here warn about the way a local engine is meant to be run.
_LOG4J = """\
status = fatal
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p %c{{1}}: %m%n%rEx{{25}}
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 3
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = error
logger.conf.name = org.apache.spark.SparkConf
logger.conf.level = error
logger.sender.name = org.apache.spark.sql.connect.execution.ExecuteGrpcResponseSender
logger.sender.level = error
logger.sink.name = org.apache.spark.sql.execution.streaming.sinks.FileStreamSink
logger.sink.level = error
logger.plans.name = org.apache.spark.util.SparkStringUtils
logger.plans.level = error
"""


def spark_log(directory: Path) -> Path:
    """Spark's log in a home's log directory."""
    return directory / "spark.log"


def jvm_log(directory: Path) -> Path:
    """The standard output and error of the JVM in a home's log directory."""
    return directory / "jvm.log"


def log4j_configuration(directory: Path) -> str:
    """The text of a Log4j configuration that writes :func:`spark_log`, four files of 10 MB at most."""
    # Log4j expands ${...} in values, and reads a backslash as an escape.
    file = str(spark_log(directory)).replace("\\", "\\\\").replace("$", "$$")
    return _LOG4J.format(file=file)


def begin(directory: Path) -> Path:
    """Makes room for a new JVM's :func:`jvm_log`; that of the one before is kept beside it."""
    path = jvm_log(directory)
    if path.exists():
        os.replace(path, path.with_name(path.name + ".1"))
    return path


def roll(directory: Path, most: int = 10_000_000) -> None:
    """Keeps the :func:`jvm_log` of a JVM that runs short: what it has beyond ``most`` bytes goes to the file beside it.

    The JVM and its workers hold the file open, and append to it: so it is copied and emptied.
    """
    path = jvm_log(directory)
    if path.exists() and path.stat().st_size > most:
        shutil.copyfile(path, path.with_name(path.name + ".1"))
        os.truncate(path, 0)


def last_lines(path: Path, count: int = 15, since: int = 0) -> str:
    """The last ``count`` lines of a log after byte ``since``; empty where there is nothing."""
    try:
        text = path.read_bytes()[since:].decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-count:])
