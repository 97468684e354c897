"""Graphs as text, DOT and Mermaid."""

from __future__ import annotations

from volstream.ops.inspection.lineage import Edge, Graph, Node, NodeKind, as_dot, as_mermaid, as_text

VOLUME, STREAM, JOB = Node(NodeKind.VOLUME, "v"), Node(NodeKind.STREAM, "s"), Node(NodeKind.JOB, "j")
TABLE, OTHER = Node(NodeKind.TABLE, "t"), Node(NodeKind.STREAM, '`a"b`')


def graph(*pairs: tuple[Node, Node]) -> Graph:
    edges = sorted(Edge(*pair) for pair in pairs)
    return Graph(sorted({node for pair in pairs for node in pair}), edges)


CHAIN = graph((VOLUME, STREAM), (VOLUME, OTHER), (STREAM, JOB), (OTHER, JOB), (JOB, TABLE))


def test_a_tree_shows_each_part_once() -> None:
    assert as_text(CHAIN).splitlines() == [
        "volume v",
        '├─ stream `a"b`',
        "│  └─ job j",
        "│     └─ table t",
        "└─ stream s",
        "   └─ job j (above)",
    ]


def test_a_circle_is_drawn_too() -> None:
    circle = graph((TABLE, STREAM), (STREAM, JOB), (JOB, TABLE))
    assert len(as_text(circle).splitlines()) == 4


def test_dot_and_mermaid_have_all_nodes_and_arrows_and_no_raw_quotes() -> None:
    dot, mermaid = as_dot(CHAIN), as_mermaid(CHAIN)
    assert (dot.count("label="), dot.count(" -> "), mermaid.count(" --> ")) == (5, 5, 5)
    assert 'label="stream `a\\"b`"' in dot
    assert '"stream #96;a#34;b#96;"' in mermaid
    assert mermaid.startswith("flowchart LR\n")
