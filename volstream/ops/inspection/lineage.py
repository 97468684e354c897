"""The sources and targets of a home's data: volumes, streams, jobs, tables, sources and functions as one
graph. No Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from volstream.base.definitions import DynamicJob, FileJob, Job, SourceKind, StatementJob, Stream
from volstream.base.model.names import Name
from volstream.base.model.text import one_line
from volstream.sql.statement import SparkStatement

if TYPE_CHECKING:
    from volstream.home import Home


class NodeKind(StrEnum):
    """The kind of a node's object."""

    VOLUME = "volume"
    SOURCE = "source"
    TABLE = "table"
    STREAM = "stream"
    FUNCTION = "function"
    JOB = "job"
    DYNAMIC_TABLE = "dynamic table"


@dataclass(frozen=True, order=True)
class Node:
    """An object of a graph.

    Attributes:
        name: as users write it.
    """

    kind: NodeKind
    name: str

    @property
    def id(self) -> str:
        """Its identity, for programs."""
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, order=True)
class Edge:
    """An arrow: data, or code, goes from ``source`` to ``target``."""

    source: Node
    target: Node


@dataclass(frozen=True)
class Graph:
    """Objects and the arrows between them, both sorted."""

    nodes: Sequence[Node]
    edges: Sequence[Edge]

    def values(self) -> dict[str, list[dict[str, str]]]:
        """Returns it as plain values, for programs."""
        return {
            "nodes": [{"id": node.id, "kind": str(node.kind), "name": node.name} for node in self.nodes],
            "edges": [{"source": edge.source.id, "target": edge.target.id} for edge in self.edges],
        }

    def after(self, node: Node) -> Sequence[Node]:
        """Returns the targets of a node's arrows."""
        return [edge.target for edge in self.edges if edge.source == node]

    def roots(self) -> Sequence[Node]:
        """Returns the nodes that are not the target of an arrow."""
        reached = {edge.target for edge in self.edges}
        return [node for node in self.nodes if node not in reached]


def lineage(home: Home) -> Graph:
    """Returns the graph of a home's objects."""
    catalog = home.catalog
    streams = {stream.id: stream for stream in catalog.streams.list()}
    jobs = catalog.jobs.list()
    volumes = {volume.name for volume in catalog.volumes.list()}
    objects = _Known(
        dynamic={job.name for job in jobs if isinstance(job, DynamicJob)},
        sources={source.name for source in catalog.sources.list()},
        streams={stream.name for stream in streams.values()},
        functions={function.name for function in catalog.functions.list()},
    )
    nodes = {Node(NodeKind.VOLUME, str(name)) for name in volumes}
    nodes |= {objects.relation(name) for name in (*objects.dynamic, *objects.sources, *objects.streams)}
    nodes |= {Node(NodeKind.FUNCTION, str(name)) for name in objects.functions}
    edges = {edge for stream in streams.values() for edge in _of_stream(stream, objects)}
    for job in jobs:
        edges |= set(_of_job(job, streams, objects))
    nodes |= {node for edge in edges for node in (edge.source, edge.target)}
    return Graph(sorted(nodes), sorted(edges))


@dataclass(frozen=True)
class _Known:
    """The names of objects that statements can mention."""

    dynamic: set[Name]
    sources: set[Name]
    streams: set[Name]
    functions: set[Name]

    def relation(self, name: Name) -> Node:
        """Returns the node of a relation of that name. An unknown name is a table."""
        kinds: Mapping[NodeKind, set[Name]] = {
            NodeKind.STREAM: self.streams,
            NodeKind.DYNAMIC_TABLE: self.dynamic,
            NodeKind.SOURCE: self.sources,
        }
        kind = next((kind for kind, names_ in kinds.items() if name in names_), NodeKind.TABLE)
        return Node(kind, str(name))


def _of_stream(stream: Stream, objects: _Known) -> Iterator[Edge]:
    if stream.source_kind is SourceKind.VOLUME:
        source = Node(NodeKind.VOLUME, str(stream.source_name))
    else:
        source = objects.relation(stream.source_name)
    yield Edge(source, Node(NodeKind.STREAM, str(stream.name)))


def _of_job(job: Job, streams: Mapping[str, Stream], objects: _Known) -> Iterator[Edge]:
    node = Node(NodeKind.DYNAMIC_TABLE if isinstance(job, DynamicJob) else NodeKind.JOB, str(job.name))
    for stream in filter(None, map(streams.get, job.stream_ids)):
        yield Edge(Node(NodeKind.STREAM, str(stream.name)), node)
    match job:
        case FileJob():
            yield Edge(node, objects.relation(job.into))
            if job.outputs_to is not None:
                yield Edge(node, Node(NodeKind.VOLUME, job.outputs_to))
        case StatementJob():
            yield Edge(node, objects.relation(job.into))
            yield from (
                Edge(mentioned, node) for mentioned in _mentioned(job.statement, objects) if mentioned.name != str(job.into)
            )
        case DynamicJob():  # it reads its sources through its own streams
            yield from (
                Edge(mentioned, node) for mentioned in _mentioned(job.query, objects) if mentioned.kind is NodeKind.FUNCTION
            )
        case _:
            raise AssertionError(job)


def _mentioned(text: str, objects: _Known) -> Iterator[Node]:
    """Yields relations, volumes and functions that a statement names."""
    statement = SparkStatement(text)
    for reference in statement.references:
        if reference.directory:
            yield Node(NodeKind.VOLUME, str(reference.name))
        else:
            yield objects.relation(reference.name)
    for call in statement.calls:
        if call.name in objects.functions:
            yield Node(NodeKind.FUNCTION, str(call.name))


# A graph as text: a tree for terminals, DOT for Graphviz, Mermaid for documents. Pure.

#: Shapes of nodes in DOT, and the brackets around their labels in Mermaid.
_SHAPES = {
    NodeKind.VOLUME: ("folder", "[(", ")]"),
    NodeKind.SOURCE: ("cds", "[/", "/]"),
    NodeKind.TABLE: ("cylinder", "[(", ")]"),
    NodeKind.STREAM: ("larrow", "([", "])"),
    NodeKind.FUNCTION: ("component", "[[", "]]"),
    NodeKind.JOB: ("box", "[", "]"),
    NodeKind.DYNAMIC_TABLE: ("cylinder", "[(", ")]"),
}


def as_text(graph: Graph) -> str:
    """Returns trees that start at the roots.

    A node with several incoming arrows is drawn once, then named with a mark.
    """
    drawn: set[Node] = set()
    # Cycles have no root, such as a job that writes to its stream's table.
    lines = [line for root in (*graph.roots(), *graph.nodes) if root not in drawn for line in _tree(graph, root, drawn)]
    return "\n".join(lines)


def as_dot(graph: Graph) -> str:
    """Returns the graph for Graphviz."""
    numbers = {node: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = [f'  {numbers[node]} [label="{_dot(_label(node))}", shape={_SHAPES[node.kind][0]}];' for node in graph.nodes]
    lines += [f"  {numbers[edge.source]} -> {numbers[edge.target]};" for edge in graph.edges]
    return "\n".join(["digraph volstream {", "  rankdir=LR;", *lines, "}"])


def as_mermaid(graph: Graph) -> str:
    """Returns the graph for Mermaid, which code hosts draw in documents."""
    numbers = {node: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = []
    for node in graph.nodes:
        _, opening, closing = _SHAPES[node.kind]
        lines.append(f'  {numbers[node]}{opening}"{_mermaid(_label(node))}"{closing}')
    lines += [f"  {numbers[edge.source]} --> {numbers[edge.target]}" for edge in graph.edges]
    return "\n".join(["flowchart LR", *lines])


def _tree(graph: Graph, node: Node, drawn: set[Node], first: str = "", indent: str = "") -> Iterator[str]:
    again = node in drawn and bool(graph.after(node))
    yield f"{first}{_label(node)}{' (above)' if again else ''}"
    if node in drawn:
        return
    drawn.add(node)
    below = graph.after(node)
    for number, child in enumerate(below, start=1):
        last = number == len(below)
        yield from _tree(graph, child, drawn, f"{indent}{'└─ ' if last else '├─ '}", f"{indent}{'   ' if last else '│  '}")


def _label(node: Node) -> str:
    return one_line(f"{node.kind} {node.name}")


def _dot(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _mermaid(text: str) -> str:
    """Returns text, with the characters escaped that Mermaid, or its HTML, would interpret."""
    return "".join(character if character.isalnum() or character in " _.-" else f"#{ord(character)};" for character in text)
