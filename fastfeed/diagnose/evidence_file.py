"""Evidence of a diagnosis in a file, from which it can be judged again on any machine."""

from __future__ import annotations

import gzip
import json
import os
import types
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from fastfeed.diagnose.evidence import DeadProducer, Evidence
from fastfeed.errors import OptionError
from fastfeed.probes.places import Place

EVIDENCE_SCHEMA = 1
LARGEST = 2**62  # number that can have been observed
# what the reading of damaged evidence raises
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class Recording:
    """Input of a judgement: the evidence of a script, and its dead or blocked producers."""

    evidence: Evidence
    script: str = ""
    died: tuple[DeadProducer, ...] = ()


def write_evidence(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a recording as compressed JSON. Raise OSError if it cannot be written."""
    places: dict[Place, int] = {}
    found = _encode(recording, places)
    document = {"schema": EVIDENCE_SCHEMA, "recording": found, "places": list(places)}
    Path(path).write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))


def read_evidence(path: str | os.PathLike[str]) -> Recording:
    """Return what `write_evidence` wrote.

    Raise OptionError for a truncated file, another file or another schema, OSError as open does.
    """
    data = Path(path).read_bytes()
    try:
        document = json.loads(gzip.decompress(data))
        schema = document["schema"]
    except (OSError, EOFError, zlib.error, *UNREADABLE) as error:
        raise OptionError(
            f"{path} is no evidence, or only a part of it ({error}): take a whole file of "
            "fastfeed diagnose --evidence"
        ) from error
    if schema != EVIDENCE_SCHEMA:
        raise OptionError(
            f"{path} is evidence of schema {schema!r}, and this fastfeed reads schema "
            f"{EVIDENCE_SCHEMA}: replay it with the fastfeed that wrote it, or diagnose again"
        )
    try:
        places = [_decode(Place, place, places=None) for place in document["places"]]
        recording: Recording = _decode(Recording, document["recording"], places=places)
    except UNREADABLE as error:
        raise damaged(path, error) from error
    return recording


def damaged(path: str | os.PathLike[str], error: Exception) -> OptionError:
    """Return the error for evidence that nothing can have observed."""
    return OptionError(f"{path} is damaged ({type(error).__name__}: {error}): diagnose again")


def _encode(value: Any, places: dict[Place, int]) -> Any:
    """Return a value as JSON; a place becomes its number in `places`, a callable None."""
    if isinstance(value, Place):
        return places.setdefault(value, len(places))
    if is_dataclass(value):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        defaults = {field.name: field.default for field in fields(value)}
        return {
            name: _encode(one, places)
            for name, one in named.items()
            if not callable(one) and one != defaults[name]
        }
    if isinstance(value, Mapping):
        return [[_encode(key, places), _encode(one, places)] for key, one in value.items()]
    if isinstance(value, tuple | list):
        return [_encode(one, places) for one in value]
    return value


def _decode(kind: Any, value: Any, *, places: Sequence[Place] | None) -> Any:
    """Return a value of type `kind` from its JSON. Raise TypeError or ValueError for another."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is types.UnionType:
        if value is None and type(None) in arguments:
            return None
        return _decode(arguments[0], value, places=places)
    if kind is Place and places is not None:
        return places[_number(int, value)]
    if hasattr(kind, "__dataclass_fields__"):
        hints = _hints(kind)
        known = {
            name: one for name, one in value.items() if name in hints
        }  # not what others record
        return kind(**{n: _decode(hints[n], one, places=places) for n, one in known.items()})
    if hasattr(kind, "_fields"):
        hints = _hints(kind)
        pairs = zip(kind._fields, value, strict=False)  # others may record more
        return kind(*(_decode(hints[name], one, places=places) for name, one in pairs))
    if origin is Mapping:
        key_kind, one_kind = arguments
        return {
            _decode(key_kind, k, places=places): _decode(one_kind, v, places=places)
            for k, v in value
        }
    if origin is list:
        return [_decode(arguments[0], one, places=places) for one in value]
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[-1] is ... else arguments
        return tuple(_decode(k, one, places=places) for k, one in zip(kinds, value, strict=True))
    if kind in (int, float):
        return _number(kind, value)
    if type(value) is not kind and kind is not Any:
        raise TypeError(f"{value!r} is no {kind}")
    return value


def _number(kind: Any, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, kind)) or abs(value) > LARGEST:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return kind(value)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
