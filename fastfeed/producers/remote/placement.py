"""Choice of nodes for remote producers: away from the trainer, and spread by free CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RayNode:
    """A living node: its CPUs, how many of them are free, and True for the trainer's own."""

    node_id: str
    address: str
    cpus: float
    free: float
    own: bool = False


def place(nodes: Sequence[RayNode], count: int, *, cpus: float) -> list[str | None]:
    """Return a node for each of `count` producers that need `cpus` each; None leaves it to Ray,
    which may add a node, or wait.

    The trainer's own node is taken last: its CPUs belong to the training. Among the others, each
    producer goes where most CPUs are free, so nodes of different sizes fill evenly.
    """
    free = {node.node_id: node.free for node in nodes}
    own = {node.node_id for node in nodes if node.own}
    placed: list[str | None] = []
    for _ in range(count):
        fitting = [node for node in free if free[node] >= cpus]
        best = max(fitting, key=lambda node: (node not in own, free[node]), default=None)
        if best is not None:
            free[best] -= cpus or 1e-6  # so that producers without a reservation spread, too
        placed.append(best)
    return placed


def describe_nodes(nodes: Sequence[RayNode]) -> str:
    """Return what is free on each node, as text."""
    parts = [f"{node.free:g} of {node.cpus:g} CPUs on {node.address}" for node in nodes]
    return "free are " + (", ".join(parts) if parts else "no CPUs: no node is alive")
