"""The part of a value that cannot be pickled: found by pickling its parts, and their parts, each
alone."""

from __future__ import annotations

import contextlib
import functools
import io
import reprlib
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, replace
from types import BuiltinMethodType, FunctionType, MethodType, MethodWrapperType
from typing import Any
from weakref import ProxyTypes

import cloudpickle
import numpy as np

MAX_PARTS = 10_000  # parts that are tried; beyond them only the bare reason is reported
_ATOMS = (type(None), bool, int, float, complex, str, bytes)
_METHODS = (MethodType, BuiltinMethodType, MethodWrapperType)
_ADVICE = (
    "Open it inside the function, so that every worker has its own; or leave it out in "
    "`__getstate__` of the object that holds it; or use threads= instead of processes=."
)
_TOO_DEEP = (
    "Hold it in a list, a dict or an array rather than in objects that each hold the next one."
)


def complaint(value: Any, error: Exception, *, what: str, dump: Callable[[Any], object]) -> str:
    """Return the error text for the user who passed `what`, where dump(value) raised `error`. The
    elements of a tuple count as passed one by one."""
    parts = value if type(value) is tuple else (value,)
    if isinstance(error.__cause__ or error, RecursionError):
        return f"{what} cannot be sent to worker processes ({text_of(error)}). {_TOO_DEEP}"
    found = _culprit([(_Place(f"the {_name(type(part))}"), part) for part in parts], dump)
    if found is None:
        return f"{what} cannot be sent to worker processes ({text_of(error)}). {_ADVICE}"
    place, culprit, reason = found
    noun = _a(type(culprit))
    named = noun if any(culprit is part for part in parts) else f"{place}, {noun},"
    return f"{what} cannot be sent to worker processes: {named} cannot be pickled ({text_of(reason)}). {_advice(culprit)}"


def text_of(error: Exception) -> str:
    """Return type and message, which a failing __str__ cannot prevent, and the notes of an
    error."""
    return "".join(traceback.format_exception_only(error)).strip()


@dataclass(frozen=True)
class _Place:
    """Where something was found: an expression, such as `loader.db`, in a scope; `scope` alone if
    it has no name."""

    scope: str
    expression: str = ""
    kind: str = ""

    def part(self, step: str, kind: str) -> _Place:
        """Return the place of a part; `kind` describes it if there is no name."""
        if self.expression:
            return replace(self, expression=self.expression + step)
        return _Place(f"of {self.scope}", step.removeprefix("."), kind)

    def inside(self, phrase: str) -> _Place:
        """Return the place of a part without a name."""
        return _Place(f"{phrase} {self}")

    def __str__(self) -> str:
        return (
            f"{self.kind} `{self.expression}` {self.scope}".lstrip()
            if self.expression
            else self.scope
        )


Parts = Iterable[tuple[_Place, Any]]


def _culprit(roots: Parts, dump: Callable[[Any], object]) -> tuple[_Place, Any, Exception] | None:
    """Return what cannot be pickled although all its parts can, with the shortest way to it; None
    if the search was too long."""
    # keeps the parts alive: else an id could be reused
    tried: dict[int, tuple[Any, Exception | None]] = {}
    waiting: deque[tuple[_Place, Any]] = deque()

    def fault(place: _Place, part: Any) -> Exception | None:
        if id(part) not in tried:
            tried[id(part)] = part, _error(part, dump)
            if tried[id(part)][1] is not None:
                waiting.append((place, part))
        return tried[id(part)][1]

    for place, root in roots:
        fault(place, root)
    while waiting:
        place, holder = waiting.popleft()
        innocent = False
        for inner, part in _parts(place, holder):
            # the failing part may be among the rest: only one without parts can be blamed now
            if len(tried) > MAX_PARTS:
                innocent = True
                break
            innocent |= type(part) not in _ATOMS and fault(inner, part) is not None
        reason = tried[id(holder)][1]
        if not innocent and reason is not None:
            return place, holder, reason
    return None


def _error(value: Any, dump: Callable[[Any], object]) -> Exception | None:
    try:
        dump(value)
    except Exception as error:
        return error.with_traceback(None)  # its frames would keep everything that was pickled
    return None


def _parts(place: _Place, holder: Any) -> Parts:
    """Return what is pickled with `holder`. One whose reduction fails is itself the cause."""
    with contextlib.suppress(Exception):
        if isinstance(holder, FunctionType):
            yield from _of_function(place, holder)
        elif isinstance(holder, _METHODS):
            yield (
                _Place(f"the {_name(type(holder.__self__))} that `{_name(holder)}` is bound to"),
                holder.__self__,
            )
            yield place.inside("the function of"), getattr(holder, "__func__", None)
        elif isinstance(holder, functools.partial):
            yield from _of_partial(place, holder)
        elif isinstance(holder, tuple):
            yield from ((place.part(f"[{i}]", "item"), item) for i, item in enumerate(holder))
            yield place.inside("the class of"), type(holder)
        elif isinstance(holder, np.ndarray):
            yield from (
                (place.part(f"{list(index)}", "item"), item)
                for index, item in np.ndenumerate(holder)
            )
        elif isinstance(holder, (set, frozenset)):
            yield from ((place.inside("an element of"), item) for item in holder)
        else:
            yield from _of_object(place, holder)


def _of_function(place: _Place, function: FunctionType) -> Parts:
    name = _name(function)
    of = f"`{name}`" if place.expression in ("", name.rpartition(".")[2]) else f"`{name}` ({place})"
    for variable, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True
    ):
        with contextlib.suppress(ValueError):  # not assigned yet
            yield _Place(f"in the closure of {of}", variable), cell.cell_contents
    _, slots = _reduced(function)[2]
    for variable, value in slots["__globals__"].items():
        yield _Place(f"that {of} uses", variable, "global variable"), value
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = dict(zip(reversed(arguments), reversed(function.__defaults__ or ()), strict=False))
    for variable, value in {**defaults, **(function.__kwdefaults__ or {})}.items():
        yield _Place(f"of {of}", variable, "default argument"), value
    for attribute, value in vars(function).items():
        yield _Place(f"of {of}", attribute, "attribute"), value


def _of_partial(place: _Place, call: functools.partial[Any]) -> Parts:
    of = f"of functools.partial(`{_name(call.func)}`)"
    for i, value in enumerate(call.args):
        yield _Place(of, f"args[{i}]", "argument"), value
    for keyword, value in call.keywords.items():
        yield _Place(of, keyword, "argument"), value
    yield place.inside("the function of"), call.func


def _of_object(place: _Place, holder: Any) -> Parts:
    """Return the parts of its reduction: attributes, items, and the arguments that make it
    again."""
    _, arguments, state, items, pairs = (*_reduced(holder), None, None, None)[:5]
    owner = _Place(f"the class `{_name(holder)}`") if isinstance(holder, type) else place
    for values in state if isinstance(state, tuple) and len(state) == 2 else (state,):
        if not isinstance(values, dict):
            yield place.inside("the state of"), values
            continue
        yield from (
            (owner.part(f".{attribute}", "attribute"), value) for attribute, value in values.items()
        )
    for i, item in enumerate(items or ()):
        yield place.part(f"[{i}]", "item"), item
    for key, item in pairs or ():
        yield place.part(f"[{reprlib.repr(key)}]", "item"), item
        yield place.inside("a key of"), key
    for argument in arguments:
        yield place.inside("a part of"), argument


def _reduced(holder: Any) -> Any:
    """Return the reduction that cloudpickle uses."""
    reduced = cloudpickle.Pickler(io.BytesIO(), 5).reducer_override(holder)
    if reduced is not NotImplemented:
        return reduced
    special = cloudpickle.Pickler.dispatch_table.get(type(holder))
    return special(holder) if special else holder.__reduce_ex__(5)


def _name(holder: Any) -> str:
    """Return its name in the code around it."""
    name = (
        getattr(holder, "__qualname__", None)
        or getattr(holder, "__name__", None)
        or reprlib.repr(holder)
    )
    return str(name).rpartition("<locals>.")[2]


def _a(kind: type) -> str:
    """Return `a sqlite3.Connection`; without the module if that is Python itself or the main
    one."""
    name = (
        _name(kind)
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{_name(kind)}"
    )
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _advice(culprit: Any) -> str:
    kind = type(culprit)
    if issubclass(kind, (Iterator, AsyncIterator, Coroutine)) and not issubclass(
        kind, (io.IOBase, *ProxyTypes)
    ):
        name = getattr(culprit, "__name__", None)
        example = f": `{name}`, not `{name}()`" if name else ""
        return f"What is running already cannot go on in another process; hand in the function that makes it{example}."
    return _ADVICE
