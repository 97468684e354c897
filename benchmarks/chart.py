"""The chart of a run: a block of lines per scenario, a line per contender, a column per number of files.

Every dot has its own line, with its value beside it, on one logarithmic axis for all: nothing can overlap, and milliseconds
are visible beside minutes. It has its own background, so that it is readable on light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The contender whose dots are highlighted.
_OWN = "volstream"

_GROUND, _TEXT, _FAINT, _BAND, _OTHERS, _ACCENT = "#ffffff", "#1f2328", "#8c959f", "#f3f5f7", "#6e7781", "#d1480f"

_FONT_SIZE = 8.5

#: Inches: of a line, of a column's axis, of a mark's label; at most, of a label's character.
_LINE, _COLUMN, _MARK, _CHARACTER = 0.205, 3.3, 0.5, 0.072

#: Seconds at which the axis is marked; most runs need few enough of them to be readable.
_MARKS = {0.001: "1 ms", 0.01: "10 ms", 0.1: "0.1 s", 1.0: "1 s", 10.0: "10 s", 100.0: "100 s", 1000.0: "1,000 s"}


@dataclass(frozen=True)
class _Line:
    """A line of the chart: a heading, or a contender's in a scenario.

    Attributes:
        contender: None: the heading.
    """

    place: int
    scenario: str
    contender: str | None = None


def draw(document: Mapping[str, Any], target: Path) -> None:
    """Draws the chart of a report's JSON document as a picture."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Chart

    figures = document["figures"]
    counts = sorted({figure["files"] for figure in figures})
    lines = list(_lines(figures))
    names = max(len(line.contender or "") for line in lines)
    width, height = names * _CHARACTER + _COLUMN * len(counts) + 0.4, (len(lines) + 3.5) * _LINE
    with rc_context({"font.size": _FONT_SIZE, "text.color": _TEXT}):
        chart = Chart(figsize=(width, height), layout="constrained", facecolor=_GROUND)
        panels = chart.subplots(1, len(counts), squeeze=False, sharex=True, sharey=True)[0]
        for panel, count in zip(panels, counts, strict=True):
            _fill(panel, lines, [figure for figure in figures if figure["files"] == count], _limits(figures))
            panel.set_title(f"{count:,} files", fontsize=_FONT_SIZE + 1)
        panels[0].set_zorder(1)  # a long heading extends over the other columns' bands
        for line in lines:
            if line.contender is None:
                panels[0].text(
                    0.01, line.place, line.scenario, transform=panels[0].get_yaxis_transform(), va="center", weight="bold"
                ).set_in_layout(False)
        chart.supxlabel("medians, less is better; logarithmic", color=_FAINT, fontsize=_FONT_SIZE)
        target.parent.mkdir(parents=True, exist_ok=True)
        chart.savefig(target, dpi=144)


def label_of(figure: Mapping[str, Any]) -> str:
    """Returns the label beside a dot."""
    seconds = figure["median"]
    value = f"{seconds:,.0f}" if seconds >= 9.95 else f"{seconds:.1f}" if seconds >= 0.95 else f"{seconds:.2g}"
    wrong = figure.get("wrong")
    return f"{value} s, {wrong:,} rows wrong" if wrong else f"{value} s"


def _lines(figures: Sequence[Mapping[str, Any]]) -> Iterator[_Line]:
    """Yields the lines from top to bottom, with scenarios and contenders in order of first appearance."""
    contenders = list(dict.fromkeys(figure["contender"] for figure in figures))
    place = 0
    for scenario in dict.fromkeys(figure["scenario"] for figure in figures):
        there = {figure["contender"] for figure in figures if figure["scenario"] == scenario}
        for name in (None, *(contender for contender in contenders if contender in there)):
            yield _Line(place, scenario, name)
            place += 1


def _limits(figures: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Returns the limits of the axis: all dots are between them, and their labels end before the right one."""
    places = [math.log10(max(figure["median"], min(_MARKS))) for figure in figures]
    minimum = min(places) - 0.15
    rooms = [min(0.8, (len(label_of(figure)) + 2) * _CHARACTER / _COLUMN) for figure in figures]
    maximum = max(minimum + (place - minimum) / (1 - room) for place, room in zip(places, rooms, strict=True))
    return 10**minimum, 10**maximum


def _fill(panel: Any, lines: Sequence[_Line], figures: Sequence[Mapping[str, Any]], limits: tuple[float, float]) -> None:
    """Draws a column."""
    found = {(one["scenario"], one["contender"]): one for one in figures}
    named = [line for line in lines if line.contender is not None]
    panel.set_xscale("log")
    panel.set_xlim(*limits)
    panel.set_ylim(len(lines) - 0.4, -0.6)
    marks = [mark for mark in _MARKS if limits[0] * 0.99 <= mark <= limits[1] / 3]
    marks = marks[:: math.ceil(len(marks) * _MARK / _COLUMN) or 1]
    panel.set_xticks(marks, [_MARKS[mark] for mark in marks], color=_FAINT)
    panel.minorticks_off()
    panel.set_yticks([line.place for line in named], [line.contender for line in named])
    panel.tick_params(length=0)
    panel.grid(axis="x", color=_BAND, linewidth=1.2)
    panel.set_axisbelow(True)
    panel.patch.set_visible(False)
    for spine in panel.spines.values():
        spine.set_visible(False)
    for line in lines:
        if line.contender is None:
            panel.axhspan(line.place - 0.5, line.place + 0.5, color=_BAND, linewidth=0, zorder=0)
            continue
        figure = found.get((line.scenario, line.contender))
        if figure is None:
            continue
        seconds, own = max(figure["median"], min(_MARKS)), line.contender == _OWN
        color = _ACCENT if own else _OTHERS
        panel.hlines(line.place, limits[0], seconds, color=color, alpha=0.35, linewidth=1.2)
        panel.plot(seconds, line.place, "o", color=color, markersize=6 if own else 4.5)
        panel.annotate(
            label_of(figure),
            (seconds, line.place),
            (6, 0),
            textcoords="offset points",
            va="center",
            color=color if own else _TEXT,
            weight="bold" if own else "normal",
        )
