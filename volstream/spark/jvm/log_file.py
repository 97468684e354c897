"""The logs of the engine's JVM, and reading their ends for error messages.

``spark.log`` has Spark's messages at WARN and above, ``jvm.log`` the output of the JVM and the Python workers, and
``engine.log`` that of the process around the JVM, if it is in the background.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from volstream.spark.jvm.properties_file import escaped

#: Template of Log4j's configuration. The named loggers would warn about the intended configuration of a local engine.
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
    """Returns the path of Spark's log in a home's log directory."""
    return directory / "spark.log"


def jvm_log(directory: Path) -> Path:
    """Returns the path of the JVM's standard output and error in a home's log directory."""
    return directory / "jvm.log"


def engine_log(directory: Path) -> Path:
    """Returns the path of the background engine's output in a home's log directory."""
    return directory / "engine.log"


def log4j_configuration(directory: Path) -> str:
    """Returns a Log4j configuration that writes :func:`spark_log`, at most four files of 10 MB."""
    # Log4j expands ${...} in values.
    file = escaped(str(spark_log(directory)), "#!").replace("${", "$${")
    return _LOG4J.format(file=file)


def begin(directory: Path) -> Path:
    """Starts a new :func:`jvm_log`, keeping the previous JVM's log beside it."""
    path = jvm_log(directory)
    if path.exists():
        os.replace(path, path.with_name(path.name + ".1"))
    return path


def roll(directory: Path, maximum: int = 10_000_000) -> None:
    """Limits :func:`jvm_log` and :func:`engine_log`: beyond ``maximum`` bytes, the content of one moves to the file beside it.

    It is copied and truncated, because running processes keep the file open for appending.
    """
    for path in (jvm_log(directory), engine_log(directory)):
        if path.exists() and path.stat().st_size > maximum:
            shutil.copyfile(path, path.with_name(path.name + ".1"))
            os.truncate(path, 0)


def size(path: Path) -> int:
    """Returns the size of a log in bytes; 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")


def last_lines(path: Path, count: int = 15, since: int = 0) -> str:
    """Returns the last ``count`` lines of a log after byte ``since``, without frames of stacks; empty if there are none."""
    try:
        text = path.read_bytes()[since:].decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join([line for line in text.splitlines() if not _FRAME.match(line)][-count:])
