"""The structure of a batch: tuples, lists, dicts, NamedTuples, dataclasses and attrs classes around
leaves.

A list that holds only numbers or bytes, at any depth, is a leaf and becomes one array. A list that
holds arrays, tuples or dicts is a container. Every object that is not a container is a leaf, but
for None inside a container, such as the weights in (x, y, None): it belongs to the structure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fastfeed.errors import SpecError

FIELDS = object  # stands for all classes with named fields
SCALARS = (int, float, complex, bool, bytes, str, np.generic)


def fields_of(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a NamedTuple, a dataclass or an attrs class; else ()."""
    if issubclass(kind, tuple):
        return tuple(getattr(kind, "_fields", ()))
    found = fields(kind) if is_dataclass(kind) else getattr(kind, "__attrs_attrs__", ())
    return tuple(one.name for one in found)


@dataclass(frozen=True)
class Container:
    """One container: its type, and the keys and structures of its children (None is a leaf).

    `structure_of` sorts the keys of a mapping: all processes and runs have one order of leaves.
    `shown` is the order of the first batch. Classes with the same fields are the same: one that is
    defined in a function is another class in each process.
    """

    kind: type = field(compare=False)
    keys: tuple[Any, ...]
    children: tuple[Container | None, ...]
    shown: tuple[Any, ...] = field(default=(), compare=False)
    family: Any = field(init=False)

    def __post_init__(self) -> None:
        named = FIELDS if fields_of(self.kind) else self.kind
        family = dict if issubclass(self.kind, dict) else named
        object.__setattr__(self, "family", family)
        object.__setattr__(self, "shown", self.shown or self.keys)

    @cached_property
    def flat(self) -> bool:
        """True for a plain tuple or list of leaves, the usual batch, which has a fast path."""
        return self.kind in (tuple, list) and not any(self.children)


Structure = Container | None
NOTHING = Container(type(None), (), ())  # None inside a container


def structure_of(value: Any) -> Structure:
    """Return the structure of `value`."""
    if isinstance(value, Mapping):
        kind = OrderedDict if type(value) is OrderedDict else dict
        keys = tuple(sorted(value, key=lambda key: (type(key).__name__, repr(key))))
        return Container(kind, keys, tuple(_part(value[k]) for k in keys), tuple(value))
    names = fields_of(type(value))
    if _is_sequence(value):
        keys = names or tuple(range(len(value)))
        return Container(type(value), keys, tuple(map(_part, value)))
    if names and not hasattr(value, "__array__"):
        parts = tuple(_part(getattr(value, name)) for name in names)
        return Container(type(value), names, parts)
    return None


def _part(value: Any) -> Structure:
    return NOTHING if value is None else structure_of(value)


def leaves_of(structure: Structure, value: Any) -> list[Any] | None:
    """Return the leaves of `value` in order, or None if it does not have this structure."""
    if structure is not None and structure.flat and _is_plain(structure, value):
        return list(value)
    found: list[Any] = []
    return found if _collect(structure, value, found=found) else None


def rebuild(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Return the containers of `structure` around `leaves`: the reverse of `leaves_of`."""
    if structure is None:
        return leaves[0]
    if structure.flat:
        make: Callable[..., Any] = structure.kind
        return make(leaves)
    return _build(structure, iter(leaves))


def paths_of(structure: Structure, prefix: str = "batch") -> list[str]:
    """Return the path of every leaf as written in code: batch[0]['image']."""
    if structure is None:
        return [prefix]
    steps = [f".{key}" if structure.family is FIELDS else f"[{key!r}]" for key in structure.keys]
    return [
        p
        for step, child in zip(steps, structure.children, strict=True)
        for p in paths_of(child, prefix + step)
    ]


def placed(path: str, place: str) -> str:
    """Return where a leaf lies, for an error: batch[0] of batch 5, or batch 5 if it is all of
    it."""
    return place if path == "batch" and place.startswith("batch ") else f"{path} of {place}"


def describe(structure: Structure) -> str:
    """Return the structure as text for an error: (array, {'a': array})."""
    if structure is None or structure.kind is NOTHING.kind:
        return "array" if structure is None else "None"
    inner = [describe(child) for child in structure.children]
    if structure.family is dict:
        texts = dict(zip(structure.keys, inner, strict=True))
        return "{" + ", ".join(f"{key!r}: {texts[key]}" for key in structure.shown) + "}"
    if structure.family is FIELDS:
        pairs = ", ".join(f"{key}={text}" for key, text in zip(structure.keys, inner, strict=True))
        return f"{structure.kind.__name__}({pairs})"
    return f"[{', '.join(inner)}]" if issubclass(structure.kind, list) else f"({', '.join(inner)})"


def containers(structure: Structure) -> Iterator[Container]:
    """Yield every container, the outer ones first; None inside one counts, as NOTHING."""
    if structure is not None:
        yield structure
        for child in structure.children:
            yield from containers(child)


def flattenable(structure: Structure) -> Structure:
    """Return the structure with tuples for lists, which tf.data converts to one tensor. Raise
    SpecError for a dict whose keys a framework cannot sort, as it does to flatten it, and for a
    class that it does not know."""
    if structure is None:
        return None
    if structure.family is FIELDS and not issubclass(structure.kind, tuple):
        raise SpecError(
            f"a batch has a {structure.kind.__name__}, a class that TensorFlow and Keras do not "
            "hold: make a dict of it, as with batch_transform=dataclasses.asdict"
        )
    try:
        sorted(structure.keys)
    except TypeError:
        raise SpecError(
            f"{describe(structure)} has keys of several types, and the framework sorts the keys of "
            "a dict: use keys of one type"
        ) from None
    kind = tuple if issubclass(structure.kind, list) else structure.kind
    children = tuple(map(flattenable, structure.children))
    return Container(kind, structure.keys, children, structure.shown)


def flatten_like(structure: Structure, given: Any) -> list[Any] | None:
    """Return `given`, a structure like the batch's, as one value for each leaf.

    Tuples and lists count as the same. Return None if the structures differ.
    """
    if structure is None:
        return [given]
    if structure.kind is NOTHING.kind:
        return [] if given is None else None
    if isinstance(given, Mapping):
        if set(given) != set(structure.keys):
            return None
        parts: list[Any] = [given[key] for key in structure.keys]
    elif issubclass(structure.kind, dict):
        return None
    elif isinstance(given, (tuple, list)) and len(given) == len(structure.children):
        parts = list(given)
    else:
        return None
    parts = [
        flatten_like(child, part) for child, part in zip(structure.children, parts, strict=True)
    ]
    return None if any(s is None for s in parts) else [leaf for s in parts for leaf in s or []]


def _is_plain(structure: Container, value: Any) -> bool:
    # Compared, not narrowed: a subclass, such as a NamedTuple, is another container.
    kind: Any = type(value)
    return kind is structure.kind and [type(part) for part in value] == [np.ndarray] * len(
        structure.children
    )


def _is_sequence(value: Any) -> bool:
    return isinstance(value, tuple) or (isinstance(value, list) and not _is_list_of_scalars(value))


def _is_list_of_scalars(value: list[Any]) -> bool:
    if not all(isinstance(v, (list, *SCALARS)) for v in value):
        return False
    # numpy would convert the numbers to text
    if len({isinstance(v, (bytes, str)) for v in value}) > 1:
        return False
    first: Any = value
    while isinstance(first, list):
        if not first:
            return True
        first = first[0]
    return isinstance(first, SCALARS)


def _collect(node: Structure, value: Any, *, found: list[Any]) -> bool:
    if node is None:
        found.append(value)
        return not isinstance(value, (tuple, Mapping))
    if node.kind is NOTHING.kind:
        return value is None
    if node.family is dict:
        if not isinstance(value, Mapping) or len(value) != len(node.keys):
            return False
        return all(
            key in value and _collect(child, value[key], found=found) for key, child in _pairs(node)
        )
    # NamedTuples that are defined twice, for instance in two workers, are compared by their fields.
    alike = node.family is FIELDS and fields_of(type(value)) == node.keys
    if not alike and type(value) is not node.kind:
        return False
    parts = (
        value if isinstance(value, (tuple, list)) else [getattr(value, name) for name in node.keys]
    )
    return len(parts) == len(node.children) and all(
        _collect(child, part, found=found) for child, part in zip(node.children, parts, strict=True)
    )


def _pairs(node: Container) -> Iterator[tuple[Any, Structure]]:
    return zip(node.keys, node.children, strict=True)


def _build(node: Structure, leaves: Iterator[Any]) -> Any:
    if node is None or node.kind is NOTHING.kind:
        return next(leaves) if node is None else None
    children = [_build(child, leaves) for child in node.children]
    found = dict(zip(node.keys, children, strict=True))
    if node.family is dict:
        return node.kind((key, found[key]) for key in node.shown)
    make: Callable[..., Any] = node.kind
    if issubclass(node.kind, (tuple, list)):
        return make(*children) if node.family is FIELDS else make(children)
    made = object.__new__(node.kind)  # no code of the user's runs, which may expect other values
    for name, part in found.items():
        object.__setattr__(made, name, part)
    return made
