"""Search for the part of a value that cannot be pickled: pickle its parts, and their parts, each by
itself."""

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

MAX_PARTS = 10_000  # limit of the search; beyond it, the text gives only the bare reason
_ATOMS = (type(None), bool, int, float, complex, str, bytes)
_METHODS = (MethodType, BuiltinMethodType, MethodWrapperType)
_ADVICE = (
    "Open it inside the function, so that every worker has its own; or leave it out in "
    "`__getstate__` of the object that holds it; or use threads= instead of processes=."
)
_TOO_DEEP = (
    "Store it in a list, a dict or an array rather than in objects that each refer to the next one."
)


def explain(value: Any, error: Exception, *, what: str, dump: Callable[[Any], object]) -> str:
    """Return the error text for `what`, for which dump(value) raised `error`. The elements of a
    tuple count as separate values."""
    parts = value if type(value) is tuple else (value,)
    if isinstance(error.__cause__ or error, RecursionError):
        return f"{what} cannot be sent to worker processes ({text_of(error)}). {_TOO_DEEP}"
    found = _culprit([(_Location(f"the {_name(type(part))}"), part) for part in parts], dump)
    if found is None:
        return f"{what} cannot be sent to worker processes ({text_of(error)}). {_ADVICE}"
    location, culprit, reason = found
    noun = _with_article(type(culprit))
    named = noun if any(culprit is part for part in parts) else f"{location}, {noun},"
    return (
        f"{what} cannot be sent to worker processes: {named} cannot be pickled "
        f"({text_of(reason)}). {_advice(culprit)}"
    )


def text_of(error: Exception) -> str:
    """Return an exception's type, message and notes, even if its __str__ fails."""
    return "".join(traceback.format_exception_only(error)).strip()


@dataclass(frozen=True)
class _Location:
    """Location of a part: an expression, such as `loader.db`, in a scope, or the scope alone if it
    has no name."""

    scope: str
    expression: str = ""
    kind: str = ""

    def part(self, step: str, kind: str) -> _Location:
        """Return the location of a part; `kind` describes it if there is no expression to
        extend."""
        if self.expression:
            return replace(self, expression=self.expression + step)
        return _Location(f"of {self.scope}", step.removeprefix("."), kind)

    def inside(self, phrase: str) -> _Location:
        """Return the location of a part without a name."""
        return _Location(f"{phrase} {self}")

    def __str__(self) -> str:
        return (
            f"{self.kind} `{self.expression}` {self.scope}".lstrip()
            if self.expression
            else self.scope
        )


Parts = Iterable[tuple[_Location, Any]]


def _culprit(
    roots: Parts, dump: Callable[[Any], object]
) -> tuple[_Location, Any, Exception] | None:
    """Return what cannot be pickled though all its parts can, with the shortest path to it. Return
    None if the search takes too long."""
    # Keeps the parts alive, too: ids could be reused otherwise.
    tried: dict[int, tuple[Any, Exception | None]] = {}
    waiting: deque[tuple[_Location, Any]] = deque()

    def fault(location: _Location, part: Any) -> Exception | None:
        if id(part) not in tried:
            tried[id(part)] = part, _error(part, dump)
            if tried[id(part)][1] is not None:
                waiting.append((location, part))
        return tried[id(part)][1]

    for location, root in roots:
        fault(location, root)
    while waiting:
        location, holder = waiting.popleft()
        innocent = False
        for inner, part in _parts(location, holder):
            # An untried part may be the cause: from here on, only a holder without parts can be
            # blamed.
            if len(tried) > MAX_PARTS:
                innocent = True
                break
            innocent |= type(part) not in _ATOMS and fault(inner, part) is not None
        reason = tried[id(holder)][1]
        if not innocent and reason is not None:
            return location, holder, reason
    return None


def _error(value: Any, dump: Callable[[Any], object]) -> Exception | None:
    try:
        dump(value)
    except Exception as error:
        return error.with_traceback(None)  # its frames would keep all that was pickled
    return None


def _parts(location: _Location, holder: Any) -> Parts:
    """Yield what is pickled with `holder`. A holder that fails to list its parts is itself the
    cause."""
    with contextlib.suppress(Exception):
        if isinstance(holder, FunctionType):
            yield from _function_parts(location, holder)
        elif isinstance(holder, _METHODS):
            yield (
                _Location(f"the {_name(type(holder.__self__))} that `{_name(holder)}` is bound to"),
                holder.__self__,
            )
            yield location.inside("the function of"), getattr(holder, "__func__", None)
        elif isinstance(holder, functools.partial):
            yield from _partial_parts(location, holder)
        elif isinstance(holder, tuple):
            yield from ((location.part(f"[{i}]", "item"), item) for i, item in enumerate(holder))
            yield location.inside("the class of"), type(holder)
        elif isinstance(holder, np.ndarray):
            yield from (
                (location.part(f"{list(index)}", "item"), item)
                for index, item in np.ndenumerate(holder)
            )
        elif isinstance(holder, (set, frozenset)):
            yield from ((location.inside("an element of"), item) for item in holder)
        else:
            yield from _object_parts(location, holder)


def _function_parts(location: _Location, function: FunctionType) -> Parts:
    name = _name(function)
    of = (
        f"`{name}`"
        if location.expression in ("", name.rpartition(".")[2])
        else f"`{name}` ({location})"
    )
    for variable, cell in zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True
    ):
        with contextlib.suppress(ValueError):  # not assigned yet
            yield _Location(f"in the closure of {of}", variable), cell.cell_contents
    _, slots = _reduced(function)[2]
    for variable, value in slots["__globals__"].items():
        yield _Location(f"that {of} uses", variable, "global variable"), value
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = dict(zip(reversed(arguments), reversed(function.__defaults__ or ()), strict=False))
    for variable, value in {**defaults, **(function.__kwdefaults__ or {})}.items():
        yield _Location(f"of {of}", variable, "default argument"), value
    for attribute, value in vars(function).items():
        yield _Location(f"of {of}", attribute, "attribute"), value


def _partial_parts(location: _Location, call: functools.partial[Any]) -> Parts:
    of = f"of functools.partial(`{_name(call.func)}`)"
    for i, value in enumerate(call.args):
        yield _Location(of, f"args[{i}]", "argument"), value
    for keyword, value in call.keywords.items():
        yield _Location(of, keyword, "argument"), value
    yield location.inside("the function of"), call.func


def _object_parts(location: _Location, holder: Any) -> Parts:
    """Yield what its reduction holds: attributes, items, and constructor arguments."""
    _, arguments, state, items, pairs = (*_reduced(holder), None, None, None)[:5]
    owner = _Location(f"the class `{_name(holder)}`") if isinstance(holder, type) else location
    for values in state if isinstance(state, tuple) and len(state) == 2 else (state,):
        if not isinstance(values, dict):
            yield location.inside("the state of"), values
            continue
        yield from (
            (owner.part(f".{attribute}", "attribute"), value) for attribute, value in values.items()
        )
    for i, item in enumerate(items or ()):
        yield location.part(f"[{i}]", "item"), item
    for key, item in pairs or ():
        yield location.part(f"[{reprlib.repr(key)}]", "item"), item
        yield location.inside("a key of"), key
    for argument in arguments:
        yield location.inside("a part of"), argument


def _reduced(holder: Any) -> Any:
    """Reduce `holder` as cloudpickle does."""
    reduced = cloudpickle.Pickler(io.BytesIO(), 5).reducer_override(holder)
    if reduced is not NotImplemented:
        return reduced
    special = cloudpickle.Pickler.dispatch_table.get(type(holder))
    return special(holder) if special else holder.__reduce_ex__(5)


def _name(holder: Any) -> str:
    """Return the name of `holder` as the code around it uses it."""
    name = (
        getattr(holder, "__qualname__", None)
        or getattr(holder, "__name__", None)
        or reprlib.repr(holder)
    )
    return str(name).rpartition("<locals>.")[2]


def _with_article(kind: type) -> str:
    """Return the type with an article, as "a sqlite3.Connection", without the module if it is
    builtins or __main__."""
    name = (
        _name(kind)
        if kind.__module__ in ("builtins", "__main__", "__mp_main__")
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
        return (
            "A running iterator or coroutine cannot continue in another process; pass the function "
            f"that creates it{example}."
        )
    return _ADVICE
