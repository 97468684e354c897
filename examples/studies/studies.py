"""The job's function: the slices of a study, and the file that describes them, become a row."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from volstream import FileSet


@dataclass
class Study:
    """A row of the table."""

    patient: str
    slices: int
    depth_mm: float
    brightness: float


def measure(files: FileSet) -> Study:
    """Returns the row of a study. It is called when all its files are there, and again when one of them changes."""
    series = json.loads(next(file for file in files if file.name == "series.json").read_text())
    slices = [np.load(file.open()) for file in files if file.name.endswith(".npy")]
    if len(slices) != series["slices"]:
        raise ValueError(f"{files.key} has {len(slices)} slices of {series['slices']}")
    body = np.stack(slices)
    return Study(series["patient"], len(slices), len(slices) * series["spacing_mm"], float(body.mean()))
