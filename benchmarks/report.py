"""The results, as a table for the terminal and a JSON document. Seconds are the medians of all rounds.

What does not belong here: the chart of such a document (``chart``).
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

#: Ratios are to this contender, if it has a figure.
BASE = "raw loop"


@dataclass
class Figure:
    """One contender in one scenario.

    Attributes:
        seconds: of each round.
        parts: seconds of each round, by the parts that the contender reports.
        wrong: maximum number of wrong rows at the end.
    """

    scenario: str
    files: int
    contender: str
    seconds: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)
    wrong: int = 0

    @property
    def median(self) -> float:
        """The median of the seconds."""
        return statistics.median(self.seconds)


class Figures:
    """All figures of a run, in order of first appearance."""

    def __init__(self) -> None:
        self._figures: dict[tuple[str, int, str], Figure] = {}
        self._started = datetime.now(UTC)
        self._load: list[float] = []

    def note(
        self, scenario: str, files: int, contender: str, seconds: float, parts: Mapping[str, float] | None = None, wrong: int = 0
    ) -> None:
        """Adds one measurement."""
        figure = self._figures.setdefault((scenario, files, contender), Figure(scenario, files, contender))
        figure.seconds.append(seconds)
        for name, part in (parts or {}).items():
            figure.parts.setdefault(name, []).append(part)
        figure.wrong = max(figure.wrong, wrong)
        self._load.append(os.getloadavg()[0])

    def all(self) -> Sequence[Figure]:
        """Returns the figures."""
        return list(self._figures.values())

    def ratio(self, figure: Figure) -> float | None:
        """Returns the ratio of the figure's median to that of :data:`BASE`, for the same scenario and number of files."""
        base = self._figures.get((figure.scenario, figure.files, BASE))
        return None if base is None else figure.median / base.median

    def document(self) -> dict[str, Any]:
        """Returns everything, for JSON."""
        return {
            "started": self._started.isoformat(timespec="seconds"),
            "machine": {
                "processors": os.cpu_count(),
                "architecture": platform.machine(),
                "python": platform.python_version(),
                "load": round(statistics.median(self._load), 2) if self._load else None,
            },
            "figures": [
                {**dataclasses.asdict(_rounded(one)), "median": round(one.median, 3), "ratio": _short(self.ratio(one))}
                for one in self.all()
            ],
        }

    def table(self) -> Table:
        """Returns everything, as a table for the terminal."""
        table = Table(title="Seconds, medians")
        for heading in ("scenario", "files", "contender"):
            table.add_column(heading)
        for heading in ("seconds", f"to {BASE}", "rounds", "wrong rows"):
            table.add_column(heading, justify="right")
        before = None
        for one in sorted(self.all(), key=lambda one: (one.files, one.scenario)):
            if before is not None and before != (one.scenario, one.files):
                table.add_section()
            before = (one.scenario, one.files)
            ratio = self.ratio(one)
            parts = "".join(f"\n  {name} {statistics.median(values):.2f}" for name, values in one.parts.items())
            table.add_row(
                one.scenario,
                f"{one.files:,}",
                one.contender + parts,
                f"{one.median:.2f}",
                "" if ratio is None else f"{ratio:.2f}",
                str(len(one.seconds)),
                str(one.wrong or ""),
            )
        return table


def write(figures: Figures, target: Path) -> None:
    """Writes the JSON document."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(figures.document(), indent=1) + "\n", encoding="utf-8")


def _rounded(figure: Figure) -> Figure:
    parts = {name: [round(value, 3) for value in values] for name, values in figure.parts.items()}
    return dataclasses.replace(figure, seconds=[round(value, 3) for value in figure.seconds], parts=parts)


def _short(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 2)
