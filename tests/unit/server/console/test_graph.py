"""The picture of a lineage."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from volstream.ops.inspection.lineage import Edge, Graph, Node, NodeKind
from volstream.server.console.facts.data import Waypoint, places

NODES = [Node(NodeKind.TABLE, f"t{number}") for number in range(9)]


def graph(edges: set[tuple[int, int]]) -> Graph:
    return Graph(NODES, sorted(Edge(NODES[source], NODES[target]) for source, target in edges))


@given(edges=st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8))))
def test_every_object_has_a_place_of_its_own_even_in_circles(edges: set[tuple[int, int]]) -> None:
    found = places(graph(edges))
    assert {one for one in found if isinstance(one, Node)} == set(NODES)
    assert len(set(found.values())) == len(found)


@given(edges=st.sets(st.tuples(st.integers(0, 8), st.integers(0, 8)).filter(lambda edge: edge[0] < edge[1])))
def test_arrows_point_to_the_right(edges: set[tuple[int, int]]) -> None:
    drawn = graph(edges)
    found = places(drawn)
    assert all(found[edge.source][0] < found[edge.target][0] for edge in drawn.edges)


def test_a_long_arrow_passes_each_column_at_a_place_of_its_own() -> None:
    found = places(graph({(0, 1), (1, 2), (2, 3), (0, 3)}))
    assert sorted(column for one, (column, _) in found.items() if isinstance(one, Waypoint)) == [1, 2]


def test_what_nothing_leads_to_stands_beside_what_it_leads_to() -> None:
    found = places(graph({(0, 1), (1, 2), (8, 2)}))
    assert found[NODES[8]][0] == found[NODES[2]][0] - 1


def test_neighbours_are_drawn_beside_each_other() -> None:
    found = places(graph({(0, 5), (1, 4), (2, 3)}))
    assert [found[NODES[target]][1] for target in (5, 4, 3)] == [found[NODES[source]][1] for source in (0, 1, 2)]
