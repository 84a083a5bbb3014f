"""What a session's run does with its input, found in the graph once for each set of fetches."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastfeed.steps.timeline import Leaf

DEQUEUE_OPS = {"QueueDequeueV2", "QueueDequeueManyV2", "QueueDequeueUpToV2"}
ENQUEUE_OPS = {"QueueEnqueueV2", "QueueEnqueueManyV2"}
CLOSE_OPS = {"QueueCloseV2"}
ITERATOR_OPS = ("IteratorGetNext", "MultiDeviceIteratorGetNext")  # beginnings of names
# Operations that change a variable, such as those of optimisers and of moving averages, or that may
# do so in a function.
UPDATE_OPS = re.compile(r"^(Resource)?(Sparse)?(Apply|Scatter)|^Assign|^StatefulPartitionedCall")
MAX_NAMES = 3  # fetches in the name of a plan


@dataclass(frozen=True)
class RunPlan:
    """Operations of a run on queues and iterators.

    `take`: the operation that takes from a queue. `puts`: names of the queues that the run puts
    into. `closes`: it closes a queue. `waits`: names of the operations that may wait for input.
    `updates`: the run changes variables. `held` keeps the objects alive whose ids are the key of
    the plan.
    """

    name: str
    take: Any
    puts: frozenset[str]
    closes: bool
    iterates: bool
    waits: frozenset[str]
    updates: bool
    held: Any

    @property
    def feeds(self) -> bool:
        """True if the run is a part of the input: it takes nothing, and puts into a queue."""
        return self.take is None and bool(self.puts or self.closes)


def is_monitored(fetches: Any) -> bool:
    """Return True for fetches of a monitored session, which include those of its hooks."""
    return isinstance(fetches, dict) and "caller" in fetches


def fetch_key(fetches: Any) -> Any:
    """Return a cheap key of fetches; in a monitored session only the script's own fetches count."""
    own = fetches["caller"] if is_monitored(fetches) else fetches
    if isinstance(own, (dict, list, tuple)):
        parts = own.values() if isinstance(own, dict) else own
        return tuple([one if isinstance(one, str) else fetch_key(one) for one in parts])
    return own if isinstance(own, str) else id(own)


def feed_key(feeds: Mapping[Any, Any] | None) -> Any:
    """Return a key of a set of fed tensors."""
    return tuple([one if isinstance(one, str) else id(one) for one in feeds]) if feeds else ()


def plan_of(graph: Any, fetches: Any, *, feeds: Iterable[Any] = ()) -> RunPlan:
    """Return the plan of a run, from all operations that the fetches need.

    The operations behind a fed tensor are not needed.
    """
    own = fetches["caller"] if is_monitored(fetches) else fetches
    fed = [element for element in (_element(graph, one) for one in feeds) if element is not None]
    roots = [_operation(graph, leaf) for leaf in _flat(fetches)]
    ops = list(_ancestors(roots, {one.name for one in fed}))
    takes = [op for op in ops if op.type in DEQUEUE_OPS]
    iterators = [op for op in ops if op.type.startswith(ITERATOR_OPS)]
    names = [getattr(_element(graph, leaf), "name", "") for leaf in _flat(own)]
    return RunPlan(
        ", ".join(names[:MAX_NAMES]) + (", ..." if len(names) > MAX_NAMES else ""),
        take=takes[0] if takes else None,
        puts=frozenset(queue_of(op).name for op in ops if op.type in ENQUEUE_OPS),
        closes=any(op.type in CLOSE_OPS for op in ops),
        iterates=bool(iterators),
        waits=frozenset(op.name for op in (*takes, *iterators)),
        updates=any(UPDATE_OPS.search(op.type) for op in ops),
        held=(fetches, fed),
    )


def queue_of(op: Any) -> Any:
    """Return the operation that creates the queue of an operation on it."""
    queue = op.inputs[0].op
    while queue.inputs and queue.type in ("Identity", "RefIdentity"):
        queue = queue.inputs[0].op
    return queue


def queue_facts(take: Any) -> tuple[str, int | None]:
    """Return a note about the queue of an operation that takes from it, and its buffer in steps."""
    queue = queue_of(take)
    elements = 1 if take.type == "QueueDequeueV2" else _constant(take.inputs[1])
    capacity = int(queue.get_attr("capacity"))
    try:
        minimum = int(queue.get_attr("min_after_dequeue"))
    except ValueError:  # only the shuffling queue has it
        minimum = 0
    bounded = capacity >= 0 and elements
    note = f"takes {elements or 'some'} of a {queue.type} of {capacity if capacity >= 0 else None}"
    buffer = max(0, capacity - minimum) // int(elements) if bounded else None
    return f"{note}, at least {minimum} kept", buffer


def fed_leaves(feeds: Mapping[Any, Any]) -> tuple[Leaf, ...]:
    """Return the arrays that a run is fed, without scalars."""
    found = []
    for key, fed in feeds.items():
        for value, shape in _arrays(fed):
            kind = type(value)
            dtype = str(getattr(value, "dtype", "")) or str(_numpy().asarray(value).dtype)
            name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
            found.append(Leaf(f"feed[{getattr(key, 'name', key)!r}]", dtype, shape, name))
    return tuple(found)


def converts(graph: Any, feeds: Mapping[Any, Any]) -> bool:
    """Return True if an array that is fed has another type than its placeholder takes."""
    for key, fed in feeds.items():
        wanted = getattr(getattr(_element(graph, key), "dtype", None), "as_numpy_dtype", None)
        given = [getattr(value, "dtype", None) for value, _ in _arrays(fed)]
        if wanted is not None and any(one != wanted for one in given):
            return True
    return False


def _arrays(value: Any) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """Yield the arrays of a fed value with their shapes: one, or those of a sparse tensor."""
    try:
        shape = tuple(_numpy().shape(value))
    except ValueError:  # its indices, values and shape
        for part in value:
            yield from _arrays(part)
        return
    if shape:
        yield value, shape


def _flat(fetches: Any) -> Iterator[Any]:
    if isinstance(fetches, Mapping):
        fetches = tuple(fetches.values())
    if isinstance(fetches, (list, tuple)):
        for one in fetches:
            yield from _flat(one)
    elif fetches is not None:
        yield fetches


def _element(graph: Any, thing: Any) -> Any:
    """Return the tensor or operation that a fetch or feed stands for; None for anything else."""
    try:
        return graph.as_graph_element(thing, allow_tensor=True, allow_operation=True)
    except (TypeError, ValueError, KeyError):
        return None


def _operation(graph: Any, fetch: Any) -> Any:
    if hasattr(fetch, "values") and hasattr(fetch, "indices"):  # a sparse tensor, slices
        fetch = fetch.values
    element = _element(graph, fetch)
    return getattr(element, "op", element)


def _ancestors(roots: list[Any], fed: set[str]) -> Iterator[Any]:
    todo = [op for op in roots if op is not None]
    seen = {op.name for op in todo}
    while todo:
        op = todo.pop()
        yield op
        inputs = [tensor.op for tensor in op.inputs if tensor.name not in fed]
        for before in (*inputs, *op.control_inputs):
            if before.name not in seen:
                seen.add(before.name)
                todo.append(before)


def _constant(tensor: Any) -> Any:
    return sys.modules["tensorflow.python.framework.tensor_util"].constant_value(tensor)


def _numpy() -> Any:
    """Return numpy, which TensorFlow has imported: it must not be imported before the script."""
    return sys.modules["numpy"]
