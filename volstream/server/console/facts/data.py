"""The facts of the pages on volumes, tables and the lineage of data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import fmean
from typing import Any

from volstream.base.definitions import Volume
from volstream.base.model.work import AuditEntry, Completeness, Refresh
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.refreshes import RejectedMessage
from volstream.changes.directory import browse
from volstream.changes.directory.snapshot import Snapshot
from volstream.changes.streams.sources import VolumeSource
from volstream.files.volumes.definitions import jobs_on
from volstream.home import Home
from volstream.ops.inspection import details
from volstream.ops.inspection.file_history import FileEvent, tell
from volstream.ops.inspection.lineage import Edge, Graph, Node, as_text, lineage
from volstream.ops.inspection.status import Problem, most_severe, problems, status, volume_status
from volstream.ops.inspection.tables import DescribedTable, ListedTable, described_table, list_tables, table_names
from volstream.server.console.facts import FEW_TASKS, PageRequest
from volstream.server.console.facts.rows import VolumeRow
from volstream.server.console.http import Query
from volstream.server.console.previews import FilePreview, preview
from volstream.server.console.queries import QueryResult

# A volume: its directory folder by folder, its refreshes, and the history of one of its files.

#: Number of refreshes, listings and rejected messages shown with a volume.
_RECENT = 20


@dataclass(frozen=True)
class DirectoryPart:
    """Entries of a folder, or files whose paths contain a text, after one of them."""

    prefix: str
    search: str | None
    after: str | None
    entries: Sequence[browse.Entry]
    next: str | None


@dataclass(frozen=True)
class VolumeFacts:
    """A volume.

    Attributes:
        volume: its definition, as in ``volstream describe``.
        lag_seconds: since its last full listing, or None before the first.
        refreshes_before: the start of the next page of refreshes.
    """

    volume: Mapping[str, Any]
    status: VolumeRow
    problem: Problem | None
    lag_seconds: float | None
    jobs: Sequence[str]
    directory: DirectoryPart
    refreshes: Sequence[Refresh]
    refreshes_before: int | None
    listings: Sequence[Completeness]
    rejected: Sequence[RejectedMessage]
    tasks: Sequence[AuditEntry]


@dataclass(frozen=True)
class FileFacts:
    """A file and its history, oldest first."""

    volume: str
    file: str
    folder: str
    events: Sequence[FileEvent]
    preview: FilePreview


def volume(request: PageRequest) -> VolumeFacts:
    """A volume: its state, a part of its directory, its newest refreshes."""
    home, catalog, definition = request.home, request.home.catalog, request.volume
    refreshes = catalog.refreshes.newest(definition.id, before=request.query.number("before"), limit=_RECENT)
    listed = definition.last_listing
    status = volume_status(home, definition, catalog.conditions.causes(ConditionKind.VOLUME))
    return VolumeFacts(
        volume=details.described(home, definition),
        status=VolumeRow(**status),
        problem=next(iter(problems({"volumes": [status]}, request.probed())), None),
        lag_seconds=None if listed is None else (datetime.now(UTC) - listed).total_seconds(),
        jobs=[str(job.name) for job in jobs_on(catalog, definition)],
        directory=_directory(home, definition, request.query),
        refreshes=refreshes,
        refreshes_before=refreshes[-1].number if len(refreshes) == _RECENT else None,
        listings=catalog.refreshes.reconciles(definition.id, limit=5),
        rejected=catalog.refreshes.rejected(definition.id, limit=_RECENT),
        tasks=request.audit.tasks(f"volume {definition.name}", limit=FEW_TASKS),
    )


def file(request: PageRequest) -> FileFacts:
    """The history of a file: versions, batches, attempts, failures, rows. Raises NotFoundError."""
    path, name = request.query.text("path") or "", str(request.volume.name)
    return FileFacts(name, path, path.rpartition("/")[0], tell(request.home, name, path), preview(request.home, name, path))


def snapshot_of(home: Home, definition: Volume) -> Snapshot | None:
    """Returns a volume's directory, or None if it was never listed."""
    return VolumeSource(home.catalog, home.warehouse, definition.id).find()


def _directory(home: Home, definition: Volume, query: Query) -> DirectoryPart:
    """Returns the entries of a folder, or the files whose paths contain a text."""
    prefix, text, after = query.text("prefix") or "", query.text("search"), query.text("after")
    snapshot = snapshot_of(home, definition)
    part = browse.DirectoryPage([], None)
    if snapshot is not None and text is not None:
        part = browse.search(snapshot, text, after, query.limit)
    elif snapshot is not None:
        part = browse.children(snapshot, prefix, after, query.limit)
    return DirectoryPart(prefix, text, after, part.entries, part.next)


# Tables, and queries on them.

#: Maximum number of tables named on the page of queries.
_MAX_NAMED = 50


@dataclass(frozen=True)
class TablesFacts:
    """The tables of the home, by name."""

    tables: Sequence[ListedTable]


@dataclass(frozen=True)
class SqlFacts:
    """A query, with names of tables, the newest queries, and examples.

    Attributes:
        result: None if it was not run, or failed.
        error: why it failed.
    """

    query: str
    tables: Sequence[str]
    recent: Sequence[str]
    examples: Sequence[str]
    engine: Mapping[str, Any]
    result: QueryResult | None = None
    error: Any = None


def tables(request: PageRequest) -> TablesFacts:
    """The tables of the home, and what fills them."""
    return TablesFacts(list_tables(request.home))


def table(request: PageRequest) -> DescribedTable:
    """A table: columns, rows, newest commits, streams on it."""
    return described_table(request.home, request.names["table"])


def sql(request: PageRequest) -> SqlFacts:
    """The box for a query. POST runs it."""
    names = [str(name) for name in table_names(request.home, _MAX_NAMED)]
    examples = [
        "SELECT job, state, files, failed, rows, seconds FROM volstream.batches LIMIT 20",
        "SELECT * FROM volstream.failures LIMIT 20",
        "SHOW STREAMS",
        *(f"DESCRIBE HISTORY {name}" for name in names[:1]),
    ]
    engine = request.probed().get("engine", {})
    return SqlFacts(request.query.text("q") or "", names, list(request.queries.recent), examples, engine)


# The lineage of a home as a picture: the position of each object, in columns from left to right, and its
# problems.

#: In pixels: the size of a box, and the distance between boxes in a column and between columns.
WIDTH, HEIGHT, _DOWN, _ACROSS = 196, 46, 64, 256

#: Maximum number of drawn objects: a larger picture is unreadable.
_MAX_DRAWN = 400

#: Number of times that columns are sorted by their neighbours. More change little.
_SWEEPS = 6


@dataclass(frozen=True)
class ShownNode:
    """An object and its problem. For a dynamic table, includes the problem of the job that keeps it."""

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
    """The corners of boxes, the curves of arrows as in SVG, and the total size, in pixels."""

    boxes: Mapping[str, Box]
    arrows: Sequence[str]
    width: int
    height: int


@dataclass(frozen=True)
class GraphFacts:
    """The lineage.

    ``picture`` is None if it is too large; ``width``, ``height``: of a box; ``text``: for terminals.
    """

    nodes: Sequence[ShownNode]
    edges: Sequence[Mapping[str, str]]
    picture: Picture | None
    text: str
    width: int = WIDTH
    height: int = HEIGHT


def graph(request: PageRequest) -> GraphFacts:
    """All objects of the home and the arrows between them, with their problems; ``picture`` has pixels."""
    graph = lineage(request.home)
    severe = most_severe(problems(status(request.home), request.probed()))
    kinds = {"dynamic table": "job"}
    return GraphFacts(
        nodes=[
            ShownNode(node.id, node.kind, node.name, severe.get((kinds.get(node.kind, node.kind), node.name)))
            for node in graph.nodes
        ],
        edges=graph.values()["edges"],
        picture=_picture(graph) if len(graph.nodes) <= _MAX_DRAWN else None,
        text=as_text(graph),
    )


@dataclass(frozen=True)
class Waypoint:
    """The point where a long arrow passes a column."""

    edge: Edge
    column: int


#: The column and the row of each object, and of each waypoint.
Places = Mapping[Node | Waypoint, tuple[int, int]]


def places(graph: Graph) -> Places:
    """Returns the positions of objects, right of all their sources and near their neighbours, and of
    waypoints."""
    depths = _depths(graph)
    routes = [_route(edge, depths) for edge in graph.edges]
    columns: list[list[Node | Waypoint]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    for node, depth in depths.items():
        columns[depth].append(node)
    for route in routes:
        for bend in route[1:-1]:
            assert isinstance(bend, Waypoint), "objects are at the ends"
            columns[bend.column].append(bend)
    steps = [step for route in routes for step in pairwise(route)]
    for sweep in range(_SWEEPS):
        rightwards = sweep % 2 == 0
        neighbours: dict[Node | Waypoint, list[Node | Waypoint]] = {}
        for left, right in steps:
            neighbours.setdefault(right if rightwards else left, []).append(left if rightwards else right)
        for column in columns if rightwards else reversed(columns):
            rows = {point: row for other in columns for row, point in enumerate(other)}
            # The lambda is called at once.
            column.sort(key=lambda point: fmean(map(rows.__getitem__, neighbours.get(point, [point]))))
    return {point: (depth, row) for depth, column in enumerate(columns) for row, point in enumerate(column)}


def _route(edge: Edge, depths: Mapping[Node, int]) -> list[Node | Waypoint]:
    """Returns the points that an arrow passes, from start to end. An arrow that points back passes none."""
    columns = range(depths[edge.source] + 1, depths[edge.target])
    return [edge.source, *(Waypoint(edge, column) for column in columns), edge.target]


def _depths(graph: Graph) -> Mapping[Node, int]:
    """Returns the column of each object. Arrows that close a cycle are ignored."""
    depths: dict[Node, int] = {}
    sources: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    for edge in graph.edges:
        sources[edge.target].append(edge.source)

    for start in graph.nodes:
        # Without recursion, because chains may be long.
        path, on_path = [start], {start}
        while path:
            node = path[-1]
            unvisited = [source for source in sources[node] if source not in depths and source not in on_path]
            if unvisited:
                path.append(unvisited[0])
                on_path.add(unvisited[0])
                continue
            depths.setdefault(node, max((depths[source] + 1 for source in sources[node] if source in depths), default=0))
            on_path.discard(path.pop())
    # An object without sources stands beside its first target, such as a function beside its job.
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
    """Returns a curve from the right side of the first box through the centres of the others to the left side
    of the last."""
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
