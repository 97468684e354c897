"""Writes files of readings, as gateways upload them: ``python make_readings.py data/readings``."""

from __future__ import annotations

import csv
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

GATEWAYS, DEVICES, FILES, MINUTES = 3, 40, 4, 15
BEGIN = datetime(2026, 3, 2, 9, tzinfo=UTC)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for gateway in range(GATEWAYS):
        chance = random.Random(gateway)
        devices = [f"device-{number:02}" for number in range(DEVICES) if number % GATEWAYS == gateway]
        for file in range(FILES):
            begin = BEGIN + timedelta(minutes=file * MINUTES)
            path = folder / f"gateway-{gateway}-{begin:%H%M}.csv"
            with path.open("w", newline="", encoding="utf-8") as target:
                rows = csv.writer(target)
                rows.writerow(["device", "at", "celsius"])
                for minute in range(MINUTES):
                    at = begin + timedelta(minutes=minute)
                    rows.writerows([device, at.isoformat(), round(chance.gauss(20, 3), 1)] for device in devices)


if __name__ == "__main__":
    main()
