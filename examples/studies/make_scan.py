"""Writes the slices of a scan, as a scanner does: ``python make_scan.py data/scans/knee 12``; ``--done`` after the last one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, count + 1):
        np.save(folder / f"{number:04}.npy", np.full((64, 64), number, np.int16))
    if "--done" in sys.argv:
        (folder / "series.json").write_text(json.dumps({"patient": folder.name, "slices": count, "spacing_mm": 0.5}))


if __name__ == "__main__":
    main()
