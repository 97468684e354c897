"""The background engine: ``python -m volstream.engine --home H``, settings as JSON on standard input.

Ends when nobody was connected for ``engine_idle_seconds``, on SIGTERM after those who are connected (thirty seconds at
most), on a second SIGTERM at once, and with exit code 4 when the JVM dies.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import psutil

from volstream import config
from volstream import log as logs
from volstream.config import Settings
from volstream.engine.process import Engine
from volstream.errors import EngineBusyError, EngineLostError, InterruptedByUserError, VolstreamError
from volstream.jvm import log_file
from volstream.jvm.address import EngineAddress
from volstream.lifecycle.privacy import keep_private
from volstream.lifecycle.stop import Stop, stop_on_signals

#: How long those who are connected may go on after SIGTERM.
FINISH_SECONDS = 30.0
#: Between saying that it ends and ending: who read the record before that has connected by then.
_LAST_CALL_SECONDS = 1.0
_LOOK_SECONDS = 1.0


def main(arguments: list[str] | None = None) -> int:
    """Runs the engine; the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m volstream.engine", description="The background engine of a home.")
    parser.add_argument("--home", required=True)
    home = parser.parse_args(arguments).home
    logs.configure("info")
    text = "" if sys.stdin.isatty() else sys.stdin.read()
    try:
        settings = config.load(home, **(json.loads(text) if text else {}))
        keep_private(settings)
        _serve(settings)
    except EngineBusyError:
        return 0  # two were started at the same time; the other one serves
    except InterruptedByUserError:
        return 0
    except VolstreamError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)  # noqa: T201  # whoever started us shows these lines
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
            cause = _until_idle(engine, address, stop, settings.engine_idle_seconds, settings.log_directory)
            log.info("engine_ends", cause=cause)
        finally:
            engine.stop()


def _until_idle(engine: Engine, address: EngineAddress, stop: Stop, idle_seconds: float, logs_in: Path) -> str:
    """Returns why the engine is to end.

    Raises:
        EngineLostError: the JVM died.
    """
    used = time.monotonic()
    look = min(_LOOK_SECONDS, idle_seconds / 4)
    while not stop.wait(look):
        _check(engine)
        log_file.roll(logs_in)
        if _connected(address):
            used = time.monotonic()
        elif time.monotonic() - used >= idle_seconds:
            engine.announce(ending=True)
            stop.wait(_LAST_CALL_SECONDS)
            if not _connected(address):
                return "idle"
            engine.announce(ending=False)
    engine.announce(ending=True)
    finish = time.monotonic() + FINISH_SECONDS
    # The stop signal is set and waits no more; a second signal ends the process from within this sleep.
    while _connected(address) and time.monotonic() < finish:
        _check(engine)
        time.sleep(look)
    return "asked to"


def _check(engine: Engine) -> None:
    if engine.failed:
        raise EngineLostError(f"The Spark engine was lost: {engine.cause()}.")


def _connected(address: EngineAddress) -> bool:
    """Whether anybody has a connection to the JVM."""
    try:
        connections = psutil.Process(address.jvm_pid).net_connections(kind="tcp")
    except psutil.NoSuchProcess:
        return False
    return any(
        one.status == psutil.CONN_ESTABLISHED and one.laddr and one.laddr.port == address.port for one in connections
    )


if __name__ == "__main__":
    sys.exit(main())
