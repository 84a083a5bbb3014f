"""What a run of a session does to queues: found once for each set of fetches, from the graph that
leads to them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastfeed.steps.timeline import Leaf

TAKES = {"QueueDequeueV2", "QueueDequeueManyV2", "QueueDequeueUpToV2"}
PUTS = {"QueueEnqueueV2", "QueueEnqueueManyV2"}
CLOSES = {"QueueCloseV2"}
ITERATORS = ("IteratorGetNext", "MultiDeviceIteratorGetNext")  # and names that begin so
NAMED = 3  # fetches in a name


class QueueFlow(NamedTuple):
    """What one operation does to a queue: it moves `elements`; None: as many as the value fed to
    `fed` has rows."""

    queue: Any  # the operation that is the queue
    elements: int | None
    fed: Any = None


@dataclass(frozen=True)
class RunPlan:
    """What a run does. `waits`: the operations that may wait for input, those on queues included,
    by name; `held` keeps the keys of the plan alive."""

    name: str
    takes: tuple[QueueFlow, ...]
    puts: tuple[QueueFlow, ...]
    closes: tuple[Any, ...]
    iterates: bool
    waits: frozenset[str]
    held: Any


def fetch_key(fetches: Any) -> Any:
    """Return a cheap key of fetches; of a monitored session's, only the script's own count."""
    if isinstance(fetches, dict):
        if "caller" in fetches:
            return fetch_key(fetches["caller"])
        return tuple(fetch_key(one) for one in fetches.values())
    if isinstance(fetches, (list, tuple)):
        return tuple([one if isinstance(one, str) else _key_within(one) for one in fetches])
    return fetches if isinstance(fetches, str) else id(fetches)


def feed_key(feeds: Mapping[Any, Any] | None) -> Any:
    """Return a key of a set of fed tensors."""
    return tuple([one if isinstance(one, str) else id(one) for one in feeds]) if feeds else ()


def plan_of(graph: Any, fetches: Any, *, feeds: Iterable[Any] = ()) -> RunPlan:
    """Walk from the fetches to everything that they need, but not beyond what is fed."""
    own = fetches["caller"] if isinstance(fetches, dict) and "caller" in fetches else fetches
    leaves = list(_flat(fetches))
    fed = [element for element in (_element(graph, one) for one in feeds) if element is not None]
    takes, puts, closes, waits, iterates = [], [], [], set(), False
    for op in _ancestors([_operation(graph, leaf) for leaf in leaves], {one.name for one in fed}):
        if op.type in TAKES:
            takes.append(QueueFlow(_queue(op), _taken(op)))
        elif op.type in PUTS:
            puts.append(_put(op, fed))
        elif op.type in CLOSES:
            closes.append(_queue(op))
        if op.type in TAKES or op.type.startswith(ITERATORS):
            waits.add(op.name)
        iterates = iterates or op.type.startswith(ITERATORS)
    names = [getattr(_element(graph, leaf), "name", "") for leaf in _flat(own)]
    name = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    return RunPlan(
        name, tuple(takes), tuple(puts), tuple(closes), iterates, frozenset(waits), (fetches, fed)
    )


def rows(flow: QueueFlow, feeds: Mapping[Any, Any] | None) -> int | None:
    """Return how many elements a put moves; None: unknown."""
    if flow.elements is not None or flow.fed is None or not feeds:
        return flow.elements
    for key, value in feeds.items():
        if key is flow.fed or key == getattr(flow.fed, "name", None):
            return int(_numpy().shape(value)[0])
    return None


def fed_leaves(feeds: Mapping[Any, Any]) -> tuple[Leaf, ...]:
    """Return the values that a run is fed, without scalars."""
    found = []
    for key, value in feeds.items():
        kind = type(value)
        shape = _numpy().shape(value)
        if shape:
            dtype = str(getattr(value, "dtype", "")) or str(_numpy().asarray(value).dtype)
            name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
            found.append(Leaf(f"feed[{getattr(key, 'name', key)!r}]", dtype, tuple(shape), name))
    return tuple(found)


def cast_note(feeds: Mapping[Any, Any]) -> str:
    """Return which placeholder gets another dtype than it takes; "" for none."""
    said = []
    for key, value in feeds.items():
        wanted = getattr(getattr(key, "dtype", None), "name", "")
        given = str(getattr(value, "dtype", ""))
        if wanted and given and _numpy().shape(value) and wanted != given:
            said.append(f"{key.name} takes {wanted} and is fed {given}")
    return "; ".join(said)


def queue_limits(queue: Any) -> tuple[int | None, int]:
    """Return capacity (None: without bound) and min_after_dequeue."""
    capacity = int(queue.get_attr("capacity"))
    try:
        minimum = int(queue.get_attr("min_after_dequeue"))
    except ValueError:  # only the shuffling queue has it
        minimum = 0
    return (None if capacity < 0 else capacity), minimum


def _key_within(one: Any) -> Any:
    return fetch_key(one) if isinstance(one, (list, tuple, dict)) else id(one)


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


def _queue(op: Any) -> Any:
    queue = op.inputs[0].op
    while queue.inputs and queue.type in ("Identity", "RefIdentity"):
        queue = queue.inputs[0].op
    return queue


def _constant(tensor: Any) -> Any:
    return sys.modules["tensorflow.python.framework.tensor_util"].constant_value(tensor)


def _taken(op: Any) -> int | None:
    if op.type == "QueueDequeueV2":
        return 1
    count = _constant(op.inputs[1])
    return None if count is None else int(count)


def _put(op: Any, fed: list[Any]) -> QueueFlow:
    if op.type == "QueueEnqueueV2":
        return QueueFlow(_queue(op), 1)
    component = op.inputs[1]
    static = component.shape.as_list()[0] if component.shape.rank else None
    if static is not None:
        return QueueFlow(_queue(op), int(static))
    above = {
        tensor.name for before in _ancestors([component.op], set()) for tensor in before.outputs
    }
    return QueueFlow(
        _queue(op), None, next((one for one in fed if getattr(one, "name", "") in above), None)
    )


def _numpy() -> Any:
    """Return numpy, which TensorFlow has imported: it must not be imported before the script."""
    return sys.modules["numpy"]
