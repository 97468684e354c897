"""The lineage of a home as a picture: where each object is drawn, in columns from left to right, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from volstream.ops.inspection.lineage import Edge, Graph, Node, as_text, lineage
from volstream.ops.inspection.status import Problem, most_severe, problems, status
from volstream.server.console.facts import PageRequest

#: Pixels: of a box; from one to the next in a column, and from column to column.
WIDTH, HEIGHT, _DOWN, _ACROSS = 196, 46, 64, 256

#: Objects that are drawn: a larger picture is unreadable.
_MAX_DRAWN = 400

#: How often columns are put in order by their neighbours. It changes little after this.
_SWEEPS = 6


@dataclass(frozen=True)
class ShownNode:
    """An object, and what is wrong with it: of a dynamic table, with the job that keeps it."""

    id: str
    kind: str
    name: str
    problem: Problem | None


@dataclass(frozen=True)
class Box:
    """The upper left corner of an object."""

    x: int
    y: int


@dataclass(frozen=True)
class Picture:
    """The corners of boxes, the curves of arrows as SVG writes them, and the size of it all; in pixels."""

    boxes: Mapping[str, Box]
    arrows: Sequence[str]
    width: int
    height: int


@dataclass(frozen=True)
class GraphFacts:
    """The lineage. ``picture``: None: it is too large; ``width``, ``height``: of a box; ``text``: for terminals."""

    nodes: Sequence[ShownNode]
    edges: Sequence[Mapping[str, str]]
    picture: Picture | None
    text: str
    width: int = WIDTH
    height: int = HEIGHT


def graph(asked: PageRequest) -> GraphFacts:
    """All objects of the home and the arrows between them, with what is wrong; ``picture`` has pixels."""
    graph = lineage(asked.home)
    wrong = most_severe(problems(status(asked.home), asked.probed()))
    kinds = {"dynamic table": "job"}
    return GraphFacts(
        nodes=[
            ShownNode(node.id, node.kind, node.name, wrong.get((kinds.get(node.kind, node.kind), node.name)))
            for node in graph.nodes
        ],
        edges=graph.values()["edges"],
        picture=_picture(graph) if len(graph.nodes) <= _MAX_DRAWN else None,
        text=as_text(graph),
    )


@dataclass(frozen=True)
class Waypoint:
    """Where a long arrow passes a column."""

    edge: Edge
    column: int


#: The column and the row of each object, and of each bend.
Places = Mapping[Node | Waypoint, tuple[int, int]]


def places(graph: Graph) -> Places:
    """Returns where objects are drawn: right of all that leads to them, near to their neighbours; and where long arrows pass."""
    depths = _depths(graph)
    ways = [_route(edge, depths) for edge in graph.edges]
    columns: list[list[Node | Waypoint]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    for node, depth in depths.items():
        columns[depth].append(node)
    for way in ways:
        for bend in way[1:-1]:
            assert isinstance(bend, Waypoint), "objects are at the ends"
            columns[bend.column].append(bend)
    steps = [step for way in ways for step in pairwise(way)]
    for sweep in range(_SWEEPS):
        rightwards = sweep % 2 == 0
        near: dict[Node | Waypoint, list[Node | Waypoint]] = {}
        for left, right in steps:
            near.setdefault(right if rightwards else left, []).append(left if rightwards else right)
        for column in columns if rightwards else reversed(columns):
            rows = {point: row for other in columns for row, point in enumerate(other)}
            column.sort(key=lambda point: fmean(map(rows.__getitem__, near.get(point, [point]))))  # called at once
    return {point: (depth, row) for depth, column in enumerate(columns) for row, point in enumerate(column)}


def _route(edge: Edge, depths: Mapping[Node, int]) -> list[Node | Waypoint]:
    """Returns what an arrow passes, from its beginning to its end. One that points back passes nothing."""
    between = range(depths[edge.source] + 1, depths[edge.target])
    return [edge.source, *(Waypoint(edge, column) for column in between), edge.target]


def _depths(graph: Graph) -> Mapping[Node, int]:
    """Returns the column of each object; arrows that close a circle are left out of account."""
    depths: dict[Node, int] = {}
    before: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    for edge in graph.edges:
        before[edge.target].append(edge.source)

    for start in graph.nodes:
        # Without recursion: chains may be long.
        path, below = [start], {start}
        while path:
            node = path[-1]
            open_ones = [source for source in before[node] if source not in depths and source not in below]
            if open_ones:
                path.append(open_ones[0])
                below.add(open_ones[0])
                continue
            depths.setdefault(node, max((depths[source] + 1 for source in before[node] if source in depths), default=0))
            below.discard(path.pop())
    # What nothing leads to stands beside what it leads to, such as a function beside its job.
    for node in graph.roots():
        depths[node] = max(0, min((depths[target] for target in graph.after(node)), default=1) - 1)
    return depths


def _boxes(positions: Places) -> dict[Node | Waypoint, tuple[int, int]]:
    """Returns the upper left corner of each box, with columns centred."""
    heights: dict[int, int] = {}
    for column, row in positions.values():
        heights[column] = max(heights.get(column, 0), row + 1)
    highest = max(heights.values(), default=0)
    return {
        point: (column * _ACROSS + 1, row * _DOWN + (highest - heights[column]) * _DOWN // 2 + 1)
        for point, (column, row) in positions.items()
    }


def _picture(graph: Graph) -> Picture:
    positions = places(graph)
    corners = _boxes(positions)
    depths = {node: positions[node][0] for node in graph.nodes}
    return Picture(
        boxes={node.id: Box(*corners[node]) for node in graph.nodes},
        arrows=[_curve([corners[point] for point in _route(edge, depths)]) for edge in graph.edges],
        width=max((x for x, _ in corners.values()), default=0) + WIDTH + 1,
        height=max((y for _, y in corners.values()), default=0) + HEIGHT + 1,
    )


def _curve(corners: Sequence[tuple[int, int]]) -> str:
    """Returns a curve from the right of the first box through the middle of the others to the left of the last one."""
    middles = [(x, y + HEIGHT // 2) for x, y in corners]
    points = [(middles[0][0] + WIDTH, middles[0][1])]
    for x, y in middles[1:-1]:
        points += [(x, y), (x + WIDTH, y)]
    points.append(middles[-1])
    parts = [f"M{points[0][0]} {points[0][1]}"]
    for number, ((x1, y1), (x2, y2)) in enumerate(pairwise(points)):
        bends = number % 2 == 0  # every second piece passes a column, straight on
        parts.append(f"C{x1 + 30} {y1} {x2 - 30} {y2} {x2} {y2}" if bends else f"L{x2} {y2}")
    return " ".join(parts)
