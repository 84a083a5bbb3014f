"""Search for the part of a value that cannot be pickled: pickle its parts, and their parts, each by
itself."""

from __future__ import annotations

import contextlib
import io
import reprlib
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
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
Part = tuple[str, Any]  # a place, such as "attribute `lock` of the Loader", and what is there


def explain(value: Any, error: Exception, *, what: str, dump: Callable[[Any], object]) -> str:
    """Return the error text for `what`, for which dump(value) raised `error`. The elements of a
    tuple count as separate values."""
    roots = value if type(value) is tuple else (value,)
    found = None
    if not isinstance(error.__cause__ or error, RecursionError):
        found = _culprit([(f"the {_name(type(root))}", root) for root in roots], dump)
        advice = _ADVICE if found is None else _advice(found[1])
    else:
        advice = _TOO_DEEP
    if found is None:
        return f"{what} cannot be sent to worker processes ({text_of(error)}). {advice}"
    place, culprit, reason = found
    kind = type(culprit)
    named = f"{kind.__module__.removeprefix('builtins')}.{_name(kind)}".lstrip(".")
    return (
        f"{what} cannot be sent to worker processes: {place}, of type {named}, cannot be pickled "
        f"({text_of(reason)}). {advice}"
    )


def text_of(error: Exception) -> str:
    """Return an exception's type, message and notes, even if its __str__ fails."""
    return "".join(traceback.format_exception_only(error)).strip()


def _culprit(roots: list[Part], dump: Callable[[Any], object]) -> tuple[str, Any, Exception] | None:
    """Return what cannot be pickled though all its parts can, with the shortest path to it. Return
    None if the search takes too long."""
    # Keeps the parts alive, too: ids could be reused otherwise.
    tried: dict[int, tuple[Any, Exception | None]] = {}
    waiting: deque[Part] = deque()

    def fails(place: str, part: Any) -> bool:
        if id(part) not in tried:
            tried[id(part)] = part, _error(part, dump)
            if tried[id(part)][1] is not None:
                waiting.append((place, part))
        return tried[id(part)][1] is not None

    for root in roots:
        fails(*root)
    while waiting:
        place, holder = waiting.popleft()
        innocent = False
        for inner, part in _parts(place, holder):
            # An untried part may be the cause: from here on, only a holder without parts can be
            # blamed.
            if len(tried) > MAX_PARTS:
                innocent = True
                break
            innocent |= type(part) not in _ATOMS and fails(inner, part)
        reason = tried[id(holder)][1]
        if not innocent and reason is not None:
            return place, holder, reason
    return None


def _error(value: Any, dump: Callable[[Any], object]) -> Exception | None:
    try:
        dump(value)
    except Exception as error:
        return error.with_traceback(None)  # its frames would keep all that was pickled
    return None


def _parts(place: str, holder: Any) -> Iterator[Part]:
    """Yield what is pickled with `holder`. A holder that fails to list its parts is itself the
    cause."""
    with contextlib.suppress(Exception):
        if isinstance(holder, FunctionType):
            yield from _function_parts(holder)
        elif isinstance(holder, _METHODS):
            kind, name = _name(type(holder.__self__)), _name(holder)
            yield f"the {kind} that `{name}` is bound to", holder.__self__
            yield f"the function of {place}", getattr(holder, "__func__", None)
        elif isinstance(holder, np.ndarray):
            yield from ((f"item {list(at)} of {place}", one) for at, one in np.ndenumerate(holder))
        elif isinstance(holder, (set, frozenset)):
            yield from ((f"an element of {place}", one) for one in holder)
        else:
            yield from _object_parts(place, holder)


def _function_parts(function: FunctionType) -> Iterator[Part]:
    name, code = f"`{_name(function)}`", function.__code__
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            yield f"`{variable}` in the closure of {name}", cell.cell_contents
    arguments = code.co_varnames[: code.co_argcount]
    defaults = dict(zip(reversed(arguments), reversed(function.__defaults__ or ()), strict=False))
    for kind, values in (
        ("global variable", _reduced(function)[2][1]["__globals__"]),
        ("default argument", {**defaults, **(function.__kwdefaults__ or {})}),
        ("attribute", vars(function)),
    ):
        yield from ((f"{kind} `{key}` of {name}", value) for key, value in values.items())


def _object_parts(place: str, holder: Any) -> Iterator[Part]:
    """Yield what its reduction holds: attributes, items, and constructor arguments."""
    if isinstance(holder, tuple):
        yield from ((f"item [{n}] of {place}", one) for n, one in enumerate(holder))
        return
    _, arguments, state, items, pairs = (*_reduced(holder), None, None, None)[:5]
    owner = f"the class `{_name(holder)}`" if isinstance(holder, type) else place
    for values in state if isinstance(state, tuple) and len(state) == 2 else (state,):
        if not isinstance(values, dict):
            yield f"the state of {place}", values
            continue
        yield from ((f"attribute `{key}` of {owner}", value) for key, value in values.items())
    yield from ((f"item [{n}] of {place}", one) for n, one in enumerate(items or ()))
    for key, item in pairs or ():
        yield f"item [{reprlib.repr(key)}] of {place}", item
        yield f"a key of {place}", key
    yield from ((f"a part of {place}", argument) for argument in arguments)


def _reduced(holder: Any) -> Any:
    """Reduce `holder` as cloudpickle does."""
    reduced = cloudpickle.Pickler(io.BytesIO(), 5).reducer_override(holder)
    if reduced is not NotImplemented:
        return reduced
    special = cloudpickle.Pickler.dispatch_table.get(type(holder))
    return special(holder) if special else holder.__reduce_ex__(5)


def _name(holder: Any) -> str:
    """Return the name of `holder` as the code around it uses it."""
    name = getattr(holder, "__qualname__", None) or getattr(holder, "__name__", None)
    return str(name or reprlib.repr(holder)).rpartition("<locals>.")[2]


def _advice(culprit: Any) -> str:
    runs = isinstance(culprit, (Iterator, AsyncIterator, Coroutine))
    if not runs or issubclass(type(culprit), (io.IOBase, *ProxyTypes)):
        return _ADVICE
    name = getattr(culprit, "__name__", None)
    example = f": `{name}`, not `{name}()`" if name else ""
    return (
        "A running iterator or coroutine cannot continue in another process; pass the function "
        f"that creates it{example}."
    )
