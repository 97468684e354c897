"""Readings of 500 sensors from three processes, kept as a keyed table: `make demo-ingest`.

Three writers send a few thousand readings per second to a daemon over Arrow Flight; each replaces the one before of its sensor.
A stream follows the table, and a dynamic table sums it up. In the end all must agree with what the writers sent. Takes about a
minute. Uses .demo/ingest of the checkout, which is re-created each time and kept afterwards.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import volstream
from volstream import Session
from volstream.ingest import RealtimeOperation

HOME = Path(__file__).resolve().parents[2] / ".demo" / "ingest"
WRITERS, SENSORS, TOGETHER = 3, 500, 250

#: How long readings are sent, and how long the rest may take at most.
SECONDS, LIMIT_SECONDS = 20.0, 90.0

COMMANDS = (
    "CREATE TABLE readings (sensor STRING NOT NULL PRIMARY KEY, number BIGINT, degrees DOUBLE, seen TIMESTAMP) "
    "TBLPROPERTIES ('change_tracking' = 'true')",
    "CREATE STREAM changed ON TABLE readings",
    "CREATE DYNAMIC TABLE summary REFRESH ON CHANGE AS SELECT count(*) AS sensors, sum(number) AS numbers, "
    "max(degrees) AS hottest FROM readings",
)


def write(address: str, token: str, stop: Event, writer: int, results: Any) -> None:
    """Sends readings of a third of the sensors until told to stop; puts each sensor's last number into ``results``."""
    mine = [f"sensor-{number:03}" for number in range(SENSORS) if number % WRITERS == writer]
    choice, numbers, sent = random.Random(writer), dict.fromkeys(mine, 0), 0
    with (
        volstream.connect(address, token=token) as connection,
        connection.get_realtime_stream(table="readings", operate=RealtimeOperation.CDC) as stream,
    ):
        while not stop.is_set():
            for sensor in choice.choices(mine, k=TOGETHER):
                numbers[sensor] += 1
                sent += 1
                row = stream.create_row()
                row.set_values(
                    {"sensor": sensor, "number": numbers[sensor], "degrees": choice.gauss(20, 5), "seen": datetime.now(UTC)}
                )
                stream.apply(row)
            stream.flush()
            time.sleep(0.1)
    results.put((sent, {sensor: number for sensor, number in numbers.items() if number}))


def main() -> int:
    """Runs the demo; returns 0 if everything agrees."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    print("Creating the table readings, a stream and a dynamic table on it (an engine starts) ...")
    with Session.builder.config("home", HOME).create() as session:
        for command in COMMANDS:
            session.sql(command).collect()
    daemon, address = start()
    try:
        # The daemon ends the engine that made the tables, and starts its own: a new session waits for that.
        with Session.builder.config("home", HOME).create() as session:
            show(session, time.monotonic())  # the first of its kind takes long
            return follow(session, address)
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(60)


def start() -> tuple[subprocess.Popen[bytes], str]:
    """Starts the daemon; returns it and the address for writers."""
    print("Starting the daemon, which receives readings, commits them every 2 s, and keeps the dynamic table ...")
    log = HOME / "daemon.log"
    environment = {**os.environ, "VOLSTREAM_INGEST_ADDRESS": "127.0.0.1:0", "VOLSTREAM_COMMIT_SECONDS": "2"}
    command = [sys.executable, "-m", "volstream", "daemon", "--home", str(HOME), "--format", "json", "--http-port", "0"]
    with log.open("wb") as file:
        daemon = subprocess.Popen(command, stderr=file, stdout=file, env=environment)
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline and daemon.poll() is None:
        for line in log.read_text().splitlines():
            told = json.loads(line) if line.startswith("{") else {}
            if "address" in told:
                return daemon, str(told["address"])
        time.sleep(0.1)
    daemon.kill()
    raise SystemExit(f"The daemon did not start: see {log}.")


def follow(session: Session, address: str) -> int:
    """Lets the writers write, tells how far everything is, and compares in the end."""
    token = (HOME / "ingest.token").read_text().strip()
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.Queue()
    writers = [context.Process(target=write, args=(address, token, stop, one, results)) for one in range(WRITERS)]
    for writer in writers:
        writer.start()
    print("Writing:")
    began = time.monotonic()
    while time.monotonic() < began + SECONDS:
        show(session, began)
    stop.set()
    done = [results.get() for _ in writers]
    for writer in writers:
        writer.join()
    sent = sum(one for one, _ in done)
    last = {sensor: number for _, numbers in done for sensor, number in numbers.items()}
    print(f"Sent {sent:,} readings of {len(last)} sensors, {sent / SECONDS:,.0f} per second. Waiting for the last commit:")
    deadline = time.monotonic() + LIMIT_SECONDS
    wanted = (len(last), sum(last.values()))
    while show(session, began) != wanted and time.monotonic() < deadline:
        time.sleep(1)
    queried = {row.sensor: row.number for row in session.sql("SELECT sensor, number FROM readings").collect()}
    streamed = {row.sensor: row.number for row in session.sql("SELECT sensor, number FROM changed").collect()}
    for name, found in (("the table", queried), ("the stream", streamed)):
        if found != last:
            print(f"WRONG: {name} has not the last reading of each sensor.")
            return 1
    print("Table, stream and dynamic table have the last reading of each sensor.")
    return 0


def show(session: Session, began: float) -> tuple[int, int]:
    """Prints what a query, the stream and the dynamic table see; returns the latter's sensors, and the sum of their numbers."""
    (arrived,) = session.sql("SELECT coalesce(sum(number), 0) AS numbers FROM readings").collect()
    (changed,) = session.sql("SELECT count(*) AS rows FROM changed").collect()
    (summary,) = session.sql("SELECT sensors, coalesce(numbers, 0) AS numbers, hottest FROM summary").collect() or [None]
    sensors, numbers, hottest = (0, 0, None) if summary is None else summary
    seen = f"arrived: {arrived.numbers:>7,} readings   stream: {changed.rows:>3} sensors changed"
    print(
        f"{time.monotonic() - began:5.1f} s  {seen}   dynamic table: {numbers:>7,} readings, hottest {hottest or 0:.1f} degrees"
    )
    return int(sensors), int(numbers)


if __name__ == "__main__":
    sys.exit(main())
