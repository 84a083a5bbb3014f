"""Nodes for producers: never more than fits, the trainer's own last, evenly among the others."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fastfeed.producers.remote.cluster import RayNode, describe_nodes, place

nodes = st.lists(
    st.tuples(st.integers(0, 8), st.booleans()).map(
        lambda given: RayNode("", "", float(given[0]), float(given[0]), own=given[1])
    ),
    max_size=5,
).map(
    lambda found: [
        RayNode(str(n), f"10.0.0.{n}", one.cpus, one.free, own=one.own)
        for n, one in enumerate(found)
    ]
)


@given(nodes, st.integers(0, 20), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
def test_what_fits_is_placed_and_no_more(nodes: list[RayNode], count: int, cpus: float) -> None:
    placed = place(nodes, count, cpus=cpus)
    used = Counter(node for node in placed if node is not None)
    assert len(placed) == count
    for node in nodes:
        assert used[node.node_id] * cpus <= node.free
    if cpus:
        room = sum(int(node.free // cpus) for node in nodes)
        assert sum(used.values()) == min(count, room)


@given(nodes, st.integers(1, 20))
def test_the_own_node_comes_last(nodes: list[RayNode], count: int) -> None:
    placed = place(nodes, count, cpus=1.0)
    free = {node.node_id: node.free for node in nodes}
    own = {node.node_id for node in nodes if node.own}
    for name in placed:
        if name in own:
            assert all(free[other] < 1 for other in set(free) - own)
        if name is not None:
            free[name] -= 1


def test_producers_spread_by_free_cpus() -> None:
    unequal = [RayNode("small", "a", 2, 2), RayNode("large", "b", 8, 6)]
    assert Counter(place(unequal, 4, cpus=1.0)) == {"large": 4}
    assert Counter(place(unequal, 8, cpus=1.0)) == {"large": 6, "small": 2}
    even = [RayNode("one", "a", 4, 4), RayNode("two", "b", 4, 4)]
    assert Counter(place(even, 4, cpus=0.0)) == {"one": 2, "two": 2}


def test_what_is_free_is_said() -> None:
    text = describe_nodes([RayNode("one", "10.0.0.7", 4, 1.5)])
    assert text == "free are 1.5 of 4 CPUs on 10.0.0.7"
    assert "no node is alive" in describe_nodes([])
