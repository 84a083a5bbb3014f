"""The records of a black box, and their form in the file: a line of JSON for each.

The first line is the header. Lines have no checksum: a line that is not whole JSON, or lacks a
field, or has one of another type, is damaged.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeAlias, get_args, get_type_hints

from fastfeed.core.shard_address import without_tokens

MAX_TEXT_LENGTH, MAX_TABLE_ROWS = 512, 256


class BlackBoxHeader(NamedTuple):
    """The process of a black box."""

    pid: int
    time_ns: int  # of the start of the file
    host: str
    version: str
    command: str


class BlackBoxEnd(NamedTuple):
    """The end of a process that could record it."""

    time_ns: int
    failed: bool


class RunnerSample(NamedTuple):
    """A runner at one moment: cumulative counters of its consumer, and its queue."""

    time_ns: int
    runner: int
    state: int  # an index into core.status.FEED_STATES
    batches: int
    records: int
    nbytes: int
    wait_s: float
    elapsed_s: float
    depth: int
    depth_nbytes: int
    free: int  # slots of shared memory, by state
    filling: int
    ready: int
    lent: int
    rss: int  # bytes, of the trainer
    errors: int
    copied: int
    making: int  # producers, by state; hungry: waiting for input
    blocked: int
    hungry: int
    dead: int


class BlackBoxEvent(NamedTuple):
    """An event of a runner or of the process."""

    time_ns: int
    runner: int  # -1 for an event of the process
    text: str


class ProducerRow(NamedTuple):
    """One producer of a runner."""

    runner: int
    number: int
    kind: int  # core.status.THREAD, PROCESS or REMOTE
    state: int  # an index into core.status.STATES
    worker: int  # the index of its process
    pid: int
    tid: int
    stream: int  # this and the next two: the work in flight, -1 for none or unknown
    item: int
    record: int
    batches: int
    busy_s: float
    wait_in_s: float
    wait_out_s: float
    rss: int
    where: str  # a line of code


class ProducerTable(NamedTuple):
    """Every producer at one moment."""

    time_ns: int
    total: int  # including producers without a row
    rows: tuple[ProducerRow, ...]


Record: TypeAlias = BlackBoxHeader | RunnerSample | BlackBoxEvent | ProducerTable | BlackBoxEnd
KINDS = {kind.__name__: kind for kind in get_args(Record)}
FIELD_TYPES = {kind: get_type_hints(kind) for kind in (*KINDS.values(), ProducerRow)}
MAGIC = f'{{"{BlackBoxHeader.__name__}": '.encode()  # the beginning of a file


def line_of(record: Record) -> bytes:
    """Return a record as a line, without tokens."""
    values = _by_name(record)
    if isinstance(record, ProducerTable):
        values["rows"] = list(map(_by_name, record.rows))
    return without_tokens(json.dumps({type(record).__name__: values}, default=int)).encode() + b"\n"


def record_of(line: bytes) -> Record | None:
    """Return the record of a line, or None if it is damaged."""
    try:
        ((name, values),) = json.loads(line.decode()).items()
        record: Record = _typed(KINDS[name], values)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    return record


def _by_name(record: Record | ProducerRow) -> dict[str, Any]:
    return dict(zip(FIELD_TYPES[type(record)], record, strict=True))


def _typed(kind: Any, value: Any) -> Any:
    """Return a value of JSON as one of this type, or raise an error."""
    if kind is str:
        return str.encode(value, errors="replace").decode()[:MAX_TEXT_LENGTH]
    if kind in (int, float, bool):
        types = (float, int) if kind is float else (kind,)
        if type(value) not in types or not -1 <= value < 2**63:  # -1 for what is unknown
            raise ValueError
        return value
    if kind not in FIELD_TYPES:
        return tuple(_typed(ProducerRow, row) for row in value)
    return kind(**{name: _typed(FIELD_TYPES[kind][name], of) for name, of in value.items()})
