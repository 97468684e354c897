"""The logs of the engine's JVM, and short reasons for the end of a JVM."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from pathlib import Path

from volstream.base import processes
from volstream.errors import EngineError
from volstream.spark.jvm.address import Address, EngineAddress

#: Template of Log4j's configuration. The named loggers would warn about intended settings of a local engine.
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
    from volstream.spark.jvm.command import escaped  # late: it imports the settings

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
    """Limits :func:`jvm_log` and :func:`engine_log`: beyond ``maximum`` bytes, a log's content moves to the
    file beside it.

    Copies and truncates the log, because running processes keep it open for appending.
    """
    for path in (jvm_log(directory), engine_log(directory)):
        if path.exists() and path.stat().st_size > maximum:
            shutil.copyfile(path, path.with_name(path.name + ".1"))
            os.truncate(path, 0)


def size(path: Path) -> int:
    """Returns the size of a log in bytes, 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")


def last_lines(path: Path, count: int = 15, since: int = 0) -> str:
    """Returns the last ``count`` lines of a log after byte ``since``, without stack frames. Empty without
    such lines."""
    try:
        text = path.read_bytes()[since:].decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join([line for line in text.splitlines() if not _FRAME.match(line)][-count:])


# Determines from its exit status and its logs why a JVM ended. Only the JVM's owner knows the status. It
# appends the cause to the JVM's log, where clients find it.

#: Exit statuses of ``-XX:+ExitOnOutOfMemoryError``, and of Spark for an uncaught error.
_HEAP = (3, 52)
_UNCAUGHT = (50, 51)

#: A JVM that ends on a signal exits with 128 plus the signal's number.
_SIGNALED = 128

#: Number of log lines to search: the error and its stack.
_SEARCHED_LINES = 400

#: How long a client waits for the owner, which checks its JVM every second, and how often the client checks.
_CAUSE_SECONDS, _POLL_SECONDS = 3.0, 0.1

_HEAP_EXHAUSTED = "its heap was exhausted (setting driver_memory)"
#: Recorded by an engine that ends although clients use it.
ENDED = "it was asked to end, by a daemon that started or by `volstream engine stop`"
_STACK_OVERFLOW = "its stack overflowed (StackOverflowError)"


def cause_of(status: int, logs: Path) -> str:
    """Returns why a home's JVM ended with this exit status, as a clause about the engine.

    Args:
        status: as from ``Popen.poll``, negative for a signal.
        logs: folder of the JVM's logs.
    """
    logged = last_lines(jvm_log(logs), _SEARCHED_LINES)
    if status in _HEAP or "Terminating due to java.lang.OutOfMemoryError" in logged:
        return _HEAP_EXHAUSTED
    if status in _UNCAUGHT:
        logged += last_lines(spark_log(logs), _SEARCHED_LINES)
        overflow, memory = logged.rfind("StackOverflowError"), logged.rfind("OutOfMemoryError")
        if max(overflow, memory) >= 0:
            return _STACK_OVERFLOW if overflow > memory else _HEAP_EXHAUSTED
        return "it was ended by an uncaught error"
    if status == -signal.SIGABRT:
        return "its JVM crashed"
    number = -status if status < 0 else status - _SIGNALED
    try:
        return f"it was killed by signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"its JVM ended with status {status}"


_RESTARTS = "The daemon, or the next command, restarts the engine."


def remedy_of(cause: str) -> str:
    """Returns the remedy for the loss of an engine by this cause."""
    if cause == _HEAP_EXHAUSTED:
        return f"Increase driver_memory in volstream.toml. {_RESTARTS}"
    if cause == _STACK_OVERFLOW:
        return f"Increase the stack size: -Xss16m in jvm_options. {_RESTARTS}"
    if cause == ENDED:
        return "Run the command again; first check whether it changed anything."
    if "SIGKILL" in cause:
        return f"Unless someone killed it, memory ran out: lower driver_memory. {_RESTARTS}"
    return f"{_RESTARTS} To check a server of spark_remote: volstream doctor --cluster"


def not_started(cause: str, lines: str, logs: Path) -> EngineError:
    """Returns the error for an engine that could not be started, with the last lines of its log."""
    last_lines_ = f" Its last lines:\n{lines}\n" if lines else ""
    return EngineError(f"The Spark engine could not be started: {cause}.{last_lines_}", f"See the logs in {logs}.")


def note(logs: Path, pid: int, cause: str) -> None:
    """Appends the cause of a JVM's end to its log. Called by its owner."""
    with jvm_log(logs).open("a", encoding="utf-8") as log:
        log.write(f"{_mark(pid)}{cause}\n")


def noted_cause(address: Address) -> str | None:
    """Returns why the JVM at an address ended, as recorded by its owner, or None if it is alive or nothing is
    recorded.

    Waits for an owner that is alive, because a client may notice the end first.
    """
    if not isinstance(address, EngineAddress) or not address.logs:
        return None
    deadline = time.monotonic() + _CAUSE_SECONDS
    while not processes.is_alive(address.jvm_pid, address.jvm_started):
        present = jvm_log(Path(address.logs))
        # the next JVM may have started a new log
        for log in (present, present.with_name(f"{present.name}.1")):
            match = re.search(f"^{re.escape(_mark(address.jvm_pid))}(.*)$", last_lines(log), re.MULTILINE)
            if match:
                return match[1]
        if time.monotonic() >= deadline or not processes.is_alive(address.engine_pid, address.engine_started):
            return None
        # Nothing to stop here: the caller's operation has already failed.
        time.sleep(_POLL_SECONDS)
    return None


def _mark(pid: int) -> str:
    return f"volstream: the JVM {pid} ended: "
