"""The background engine: ``python -m volstream.spark.engine --home H``, settings as JSON on standard input.

Ends after ``engine_idle_seconds`` without connections. On SIGTERM, ends once its clients have finished, or
after ``shutdown_seconds``. On a second SIGTERM, ends immediately. If the JVM dies, ends with exit code 4.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from volstream.base import config
from volstream.base import log as logs
from volstream.base.config import Settings
from volstream.base.privacy import keep_private
from volstream.base.processes import is_connected
from volstream.base.threads import Stop, stop_on_signals
from volstream.errors import EngineBusyError, EngineLostError, InterruptedByUserError, VolstreamError
from volstream.spark.engine.owner import Engine
from volstream.spark.jvm import log_file
from volstream.spark.jvm.address import EngineAddress
from volstream.spark.jvm.log_file import ENDED, note

#: Delay between announcing the end and ending, in which a client that read the record earlier connects.
_ENDING_SECONDS = 1.0
_CHECK_SECONDS = 1.0


def main(arguments: list[str] | None = None) -> int:
    """Runs the engine. Returns the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m volstream.spark.engine", description="The background engine of a home.")
    parser.add_argument("--home", required=True)
    home = parser.parse_args(arguments).home
    logs.configure("info")
    text = "" if sys.stdin.isatty() else sys.stdin.read()
    try:
        settings = config.load(home, **(json.loads(text) if text else {}))
        keep_private(settings)
        _serve(settings)
    except EngineBusyError:
        return 0  # another engine was started concurrently and serves
    except InterruptedByUserError:
        return 0
    except VolstreamError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201  # shown by the process that started us
        return error.exit_code
    return 0


def _serve(settings: Settings) -> None:
    stop = Stop()
    engine = Engine(settings, kind="background", stop=stop)
    log = logs.get("engine")
    with stop_on_signals(stop, second=engine.kill):
        began = time.monotonic()
        address = engine.start()
        try:
            log.info("engine_started", jvm_pid=address.jvm_pid, seconds=round(time.monotonic() - began, 1))
            cause = _until_idle(engine, address, stop, settings)
            log.info("engine_ends", cause=cause)
            note(settings.log_directory, address.jvm_pid, ENDED)
        finally:
            engine.stop()


def _until_idle(engine: Engine, address: EngineAddress, stop: Stop, settings: Settings) -> str:
    """Waits until the engine should end. Returns the reason.

    Raises:
        EngineLostError: the JVM died.
    """
    idle_seconds = settings.engine_idle_seconds
    used = time.monotonic()
    interval = min(_CHECK_SECONDS, idle_seconds / 4)
    while not stop.wait(interval):
        _check(engine)
        log_file.roll(settings.log_directory)
        if is_connected(address.jvm_pid, address.port):
            used = time.monotonic()
        elif time.monotonic() - used >= idle_seconds:
            engine.announce(ending=True)
            stop.wait(_ENDING_SECONDS)
            if not is_connected(address.jvm_pid, address.port):
                return "idle"
            engine.announce(ending=False)
    engine.announce(ending=True)
    finish = time.monotonic() + settings.shutdown_seconds
    # The stop signal is already set and cannot be waited for; a second signal ends the process during this
    # sleep.
    while is_connected(address.jvm_pid, address.port) and time.monotonic() < finish:
        _check(engine)
        time.sleep(interval)
    return "asked to"


def _check(engine: Engine) -> None:
    if engine.failed:
        raise EngineLostError(f"The Spark engine was lost: {engine.cause()}.")


if __name__ == "__main__":
    sys.exit(main())
