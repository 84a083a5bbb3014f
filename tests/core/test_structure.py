"""Containers around leaves: flattened, rebuilt, named and compared."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field, make_dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given

from fastfeed.core.structure import (
    describe,
    flatten_like,
    flattenable,
    leaves_of,
    paths_of,
    rebuild,
    structure_of,
)
from fastfeed.errors import SpecError
from tests.helpers.batches import (
    Pair,
    make,
    same,
    templates,
)

A = np.arange(3)
B = np.arange(3.0)
C = np.ones((3, 2))


def leaf_ids(value: Any) -> list[int] | None:
    leaves = leaves_of(structure_of(value), value)
    return None if leaves is None else list(map(id, leaves))


@given(templates)
def test_apart_and_together_gives_the_same(template: Any) -> None:
    batch = make(template, range(3))
    structure = structure_of(batch)
    leaves = leaves_of(structure, batch)
    assert leaves is not None
    assert all(type(leaf) is np.ndarray for leaf in leaves)
    assert len(paths_of(structure)) == len(set(paths_of(structure))) == len(leaves)
    assert same(rebuild(structure, leaves), batch)
    assert structure_of(make(template, range(5))) == structure


@given(templates)
def test_each_path_leads_to_its_leaf(template: Any) -> None:
    batch = make(template, range(3))
    structure = structure_of(batch)
    for path, leaf in zip(paths_of(structure), leaves_of(structure, batch) or [], strict=True):
        assert eval(path, {"batch": batch}) is leaf


@pytest.mark.parametrize("leaf", [A, [1, 2], [[1.5], [2]], [b"a", b"b"], [], [True], 3, "text"])
def test_a_list_of_scalars_is_a_leaf(leaf: Any) -> None:
    assert structure_of(leaf) is None
    assert leaves_of(structure_of((leaf, A)), (leaf, A)) == [leaf, A]


@given(templates)
def test_none_inside_a_container_is_structure(template: Any) -> None:
    batch = {"x": (make(template, range(3)), [None]), "weights": None}
    structure = structure_of(batch)
    leaves = leaves_of(structure, batch) or []
    back = rebuild(structure, leaves)
    assert same(back["x"][0], batch["x"][0])
    assert (back["x"][1], back["weights"]) == ([None], None)
    assert len(paths_of(structure)) == len(leaves)
    assert leaves_of(structure, {**batch, "weights": A}) is None
    assert flatten_like(structure, {**batch, "weights": A}) is None
    assert len(flatten_like(structure, batch) or []) == len(leaves)


def test_frameworks_get_tuples_for_lists_and_only_keys_that_have_an_order() -> None:
    batch = [A, {"b": [B, None], "a": Pair(A, [B, C])}]
    leaves = leaves_of(structure_of(batch), batch) or []
    assert rebuild(flattenable(structure_of(batch)), range(len(leaves))) == (
        0,
        {"b": (4, None), "a": Pair(1, (2, 3))},
    )
    for keys in ((1, "a"), (3, (1, 2))):
        nested = structure_of((A, {"x": dict.fromkeys(keys, A)}))
        with pytest.raises(SpecError, match=r"^\{.* has keys of several types.*use keys of one"):
            flattenable(nested)


@pytest.mark.parametrize("value", [[A, B], [(1, 2)], [{"a": 1}], [[A], [B]], [3, A], [3, (1, 2)]])
def test_a_list_of_arrays_or_containers_is_a_container(value: list[Any]) -> None:
    assert isinstance(structure_of(value), type(structure_of((A,))))
    assert type(rebuild(structure_of(value), leaves_of(structure_of(value), value) or [])) is list


@pytest.mark.parametrize(
    ("value", "comes_back"),
    [
        (OrderedDict(x=A), OrderedDict),
        (defaultdict(list, x=A), dict),
        (MappingProxyType({"x": A}), dict),
    ],
)
def test_mappings_come_back_as_what_can_be_made(value: Any, comes_back: type) -> None:
    structure = structure_of(value)
    back = rebuild(structure, leaves_of(structure, value) or [])
    assert type(back) is comes_back
    assert back["x"] is A


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ((A, B), (A, B, A)),
        ((A, B), [A, B]),
        ((A, B), A),
        (A, (A, B)),
        (A, {"x": A}),
        ({"x": A}, {"y": A}),
        ({"x": A}, {"x": A, "y": B}),
        ({"x": A}, (A,)),
        ((A, (B,)), (A, B)),
        (Pair(A, B), (A, B)),
        ((A, B), Pair(A, B)),
        (Pair(A, B), namedtuple("Other", "image target")(A, B)),
    ],
)
def test_another_structure_is_seen(first: Any, other: Any) -> None:
    assert leaves_of(structure_of(first), other) is None


def test_in_words() -> None:
    assert describe(structure_of((A, {"a": B}))) == "(array, {'a': array})"
    assert describe(structure_of((A, None))) == "(array, None)"
    assert describe(structure_of([Pair(A, B)])) == "[Pair(image=array, label=array)]"
    assert paths_of(structure_of((A, {"a": Pair(A, [B, C])}))) == [
        "batch[0]",
        "batch[1]['a'].image",
        "batch[1]['a'].label[0]",
        "batch[1]['a'].label[1]",
    ]


@pytest.mark.parametrize(
    ("value", "given_", "leaves"),
    [
        (A, 1, [1]),
        ((A, B), (1, 2), [1, 2]),
        ((A, B), [1, 2], [1, 2]),
        (Pair(A, B), (1, 2), [1, 2]),
        (Pair(A, B), {"label": 2, "image": 1}, [1, 2]),
        ({"x": A, "y": (B, C)}, {"y": (2, 3), "x": 1}, [1, 2, 3]),
        ((A, B), (None, 2), [None, 2]),
        ((A, B), 1, None),
        ((A, B), (1,), None),
        ({"x": A}, {"z": 1}, None),
        ((A, (B, C)), (1, 2), None),
    ],
)
def test_a_value_for_each_leaf(value: Any, given_: Any, leaves: list[Any] | None) -> None:
    assert flatten_like(structure_of(value), given_) == leaves


@dataclass
class Plain:
    image: Any
    label: Any


@dataclass(frozen=True, slots=True)
class Frozen:
    image: Any
    label: Any = field(init=False)
    again: ClassVar[int] = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.image[0] + 1)


def attrs_class() -> Any:
    attrs = pytest.importorskip("attrs")
    return attrs.make_class("Attrs", ["image", "_label"])(A, B)


@pytest.mark.parametrize("make_", [lambda: Plain(A, B), lambda: Frozen(A), attrs_class])
def test_fields_of_classes_are_leaves_and_the_class_comes_back(make_: Any) -> None:
    value = make_()
    structure = structure_of({"x": (value, C)})
    leaves = leaves_of(structure, {"x": (value, C)}) or []
    names = [path.rpartition(".")[2] for path in paths_of(structure)[:2]]
    assert [getattr(value, name) for name in names] == leaves[:2]
    back = rebuild(structure, [leaves[1], leaves[0], C])["x"][0]
    assert type(back) is type(value)
    assert [getattr(back, name) for name in names] == leaves[1::-1]
    assert describe(structure).startswith(f"{{'x': ({type(value).__name__}(image=array, ")
    assert leaves_of(structure, {"x": (A, C)}) is None


def test_a_class_that_says_it_is_an_array_is_a_leaf() -> None:
    @dataclass
    class Image:
        data: Any

        def __array__(self, *given: Any, **named: Any) -> Any:
            return self.data

    assert structure_of(Image(A)) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": A, "y": (B, {1: C, "z": A})}, {"y": (B, {"z": A, 1: C}), "x": A}),
        (OrderedDict(x=A, y=B), {"y": B, "x": A}),
        (Pair(A, B), namedtuple("Pair", "image label")(A, B)),
        (Plain(A, B), make_dataclass("Plain", ["image", "label"])(A, B)),
    ],
)
def test_the_same_in_other_words_is_the_same_structure(one: Any, other: Any) -> None:
    assert structure_of(one) == structure_of(other)
    assert paths_of(structure_of(one)) == paths_of(structure_of(other))
    assert leaf_ids(one) == list(map(id, leaves_of(structure_of(one), other) or []))


def test_keys_come_back_in_the_order_of_the_first() -> None:
    structure = structure_of({"y": B, "x": A})
    assert list(rebuild(structure, [A, B]).items()) == [("y", B), ("x", A)]
    assert describe(structure) == "{'y': array, 'x': array}"


def test_tensorflow_and_keras_hold_no_classes() -> None:
    with pytest.raises(SpecError, match=r"Plain, a class that .*batch_transform="):
        flattenable(structure_of(({"x": Plain(A, B)},)))
