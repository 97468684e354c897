"""A graph as text: a tree for terminals, DOT for Graphviz, Mermaid for documents. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from volstream.base.model.text import one_line
from volstream.ops.inspection.lineage import Graph, Node, NodeKind

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
    """Returns trees from what nothing leads to. What several arrows lead to is drawn once, and named again with a mark."""
    drawn: set[Node] = set()
    # Circles, such as of a job that writes what its stream is on, have no root.
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
    """Returns text with the characters that Mermaid, or the HTML that it makes, would read as more than text."""
    return "".join(character if character.isalnum() or character in " _.-" else f"#{ord(character)};" for character in text)
