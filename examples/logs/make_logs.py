"""Writes an hour's logs of three services into the folder that is named: ``python make_logs.py data/logs``."""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

SERVICES = ("checkout", "login", "search")
BEGIN = datetime(2026, 3, 2, 9, tzinfo=UTC)
TRACEBACK = """Traceback (most recent call last):
  File "/srv/app/pay.py", line 41, in charge
    raise TimeoutError(f"no answer from the bank in {seconds} s")
TimeoutError: no answer from the bank in 30 s"""


def lines(service: str, minutes: int = 60) -> str:
    """Returns a line every two seconds; in minute 20 the checkout fails a lot."""
    chance = random.Random(service)
    found = []
    for second in range(0, minutes * 60, 2):
        at = BEGIN + timedelta(seconds=second)
        bad = service == "checkout" and second // 60 == 20
        if chance.random() < (0.5 if bad else 0.002):
            found.append(f"{at:%Y-%m-%dT%H:%M:%SZ} ERROR payment failed\n{TRACEBACK}")
        else:
            found.append(f"{at:%Y-%m-%dT%H:%M:%SZ} INFO request took {chance.randrange(5, 90)} ms")
    return "\n".join(found) + "\n"


def main() -> None:
    folder = Path(sys.argv[1])
    for service in SERVICES:
        (folder / service).mkdir(parents=True, exist_ok=True)
        (folder / service / f"{BEGIN:%Y-%m-%d}.log").write_text(lines(service), encoding="utf-8")


if __name__ == "__main__":
    main()
