"""The layout of a black box: a file of fixed size with three rings of records. Arithmetic only.

    header | samples: one of each runner every second | events: text |
    tables: what each producer does, the last two

Every record carries its number and a checksum, so that one that was torn by the end of its writer,
or never written, is recognised; the number gives its place.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from fastfeed.errors import OptionError

MAGIC = b"FFBLKBX\n"
VERSION = 1
NBYTES = 2**18
SAMPLES, EVENTS, TABLES, ROWS = 1024, 128, 2, 256
RUNS, STOPPED, FAILED = range(
    3
)  # the process in the header: it runs, it ended well, it ended with an error

HEADER = struct.Struct("<8sIIIiqqq40s64s16s512s")
CHECK = struct.Struct("<I")
SAMPLE = struct.Struct("<QqIIqqqddqqIIIIqIIHHHH")
EVENT = struct.Struct("<Qqi228s")
TABLE = struct.Struct("<QqII")
ROW = struct.Struct("<IIHHIIIqqqqdddq76s")
SAMPLE_NBYTES, EVENT_NBYTES = 128, 256
TABLE_NBYTES = TABLE.size + ROWS * ROW.size + CHECK.size
FIRST_SAMPLE = 4096
FIRST_EVENT = FIRST_SAMPLE + SAMPLES * SAMPLE_NBYTES
FIRST_TABLE = FIRST_EVENT + EVENTS * EVENT_NBYTES


class BlackBoxHeader(NamedTuple):
    """The process of a black box. `started_ns`: of the file, time.time_ns(); `ticks`: when the
    process began, since boot."""

    pid: int
    status: int
    started_ns: int
    ended_ns: int
    ticks: int
    boot: str
    host: str
    version: str
    command: str


class RunnerSample(NamedTuple):
    """A runner at one moment: cumulative counters of its consumer, and how much was ready."""

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
    making: int  # producers, by what they do
    blocked: int
    hungry: int
    dead: int


class BlackBoxEvent(NamedTuple):
    """Something that happened; `runner` is -1 for events of the process."""

    time_ns: int
    runner: int
    text: str


class ProducerRow(NamedTuple):
    """One producer. `kind`: 0 a thread of the trainer, 1 of a worker process; `state`: an index
    into core.status.STATES; `stream`, `item`, `record`: what it has in flight, -1 for none or unknown;
    `where`: a line of code."""

    runner: int
    number: int
    kind: int
    state: int
    worker: int  # the index of its process
    pid: int
    tid: int
    stream: int
    item: int
    record: int
    batches: int
    busy_s: float
    wait_in_s: float
    wait_out_s: float
    rss: int
    where: str


class Table(NamedTuple):
    """Every producer at one moment; `total` of them, if there was no room for all."""

    time_ns: int
    total: int
    rows: tuple[ProducerRow, ...]


class Contents(NamedTuple):
    """The content of a file, in the order of writing; `damaged` records could not be read."""

    header: BlackBoxHeader
    samples: tuple[RunnerSample, ...]
    events: tuple[BlackBoxEvent, ...]
    table: Table | None
    damaged: int


Record = TypeVar("Record")


def sample_at(number: int) -> int:
    """Return the place of the sample of this number (from 1)."""
    return FIRST_SAMPLE + number % SAMPLES * SAMPLE_NBYTES


def event_at(number: int) -> int:
    """Return the place of the event of this number (from 1)."""
    return FIRST_EVENT + number % EVENTS * EVENT_NBYTES


def table_at(number: int) -> int:
    """Return the place of the table of this number (from 1)."""
    return FIRST_TABLE + number % TABLES * TABLE_NBYTES


def pack_header(header: BlackBoxHeader) -> bytes:
    """Return the beginning of the file."""
    numbers = (header.pid, header.status, header.started_ns, header.ended_ns, header.ticks)
    texts = map(cut, header[5:], (40, 64, 16, 512))
    return _checked(HEADER.pack(MAGIC, VERSION, NBYTES, *numbers, *texts))


def pack_sample(number: int, sample: RunnerSample) -> bytes:
    """Return a sample as it lies in the file; counts that do not fit become the largest that
    does."""
    own = sample._replace(
        **{name: min(getattr(sample, name), 2**16 - 1) for name in RunnerSample._fields[-4:]}
    )
    return _checked(SAMPLE.pack(number, *own))


def pack_event(number: int, event: BlackBoxEvent) -> bytes:
    """Return an event as it lies in the file; its text is cut if it is too long."""
    return _checked(EVENT.pack(number, event.time_ns, event.runner, cut(event.text, 228)))


def pack_table(number: int, table: Table) -> bytes:
    """Return a table as it lies in the file, with as many rows as fit."""
    rows = [ROW.pack(*row[:-1], cut(row.where, 76)) for row in table.rows[:ROWS]]
    return _checked(TABLE.pack(number, table.time_ns, len(rows), table.total) + b"".join(rows))


def unpack(data: bytes, *, name: str) -> Contents:
    """Return the content of a black box. Raise OptionError for another file, one that was cut off,
    or of a newer version."""
    header = _header(data, name)
    samples, torn = _ring(data, sample_at, count=SAMPLES, read=_sample)
    events, broken = _ring(data, event_at, count=EVENTS, read=_event)
    tables, half = _ring(data, table_at, count=TABLES, read=_table)
    return Contents(header, samples, events, tables[-1] if tables else None, torn + broken + half)


def cut(text: str, nbytes: int) -> bytes:
    """Return as much of a text as fits, as whole characters."""
    return (
        text.replace("\0", " ").encode(errors="replace")[:nbytes].decode(errors="ignore").encode()
    )


def _header(data: bytes, name: str) -> BlackBoxHeader:
    if data[: len(MAGIC)] != MAGIC:
        raise OptionError(
            f"{name} is no black box of fastfeed: needed a file that a FeedRunner wrote"
        )
    version = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "little")
    if version > VERSION and len(data) >= len(MAGIC) + 4:
        raise OptionError(
            f"{name} has version {version}, and this fastfeed reads up to {VERSION}: take a newer "
            "one"
        )
    if len(data) != NBYTES:
        raise OptionError(
            f"{name} was cut off: a black box has {NBYTES} bytes, this one {len(data)}"
        )
    body = _sound(data[: HEADER.size + CHECK.size])
    if body is None:
        raise OptionError(
            f"the header of {name} is damaged: the process of the black box is unknown"
        )
    _, _, _, pid, status, started_ns, ended_ns, ticks, *texts = HEADER.unpack(body)
    return BlackBoxHeader(pid, status, started_ns, ended_ns, ticks, *map(_text, texts))


def _ring(
    data: bytes,
    place: Callable[[int], int],
    *,
    count: int,
    read: Callable[[bytes], tuple[int, Record] | None],
) -> tuple[tuple[Record, ...], int]:
    """Return the records of a ring in the order of their numbers, and how many of them are
    damaged."""
    found: list[tuple[int, Record]] = []
    damaged = 0
    for slot in range(count):
        record = data[
            place(slot) : place(slot + 1) if slot + 1 < count else place(slot) + place(1) - place(0)
        ]
        known = read(record)
        if known is not None and known[0] > 0 and known[0] % count == slot:
            found.append(known)
        elif record.strip(b"\0"):
            damaged += 1
    return tuple(one for _, one in sorted(found, key=lambda f: f[0])), damaged


def _sample(record: bytes) -> tuple[int, RunnerSample] | None:
    body = _sound(record[: SAMPLE.size + CHECK.size])
    if body is None:
        return None
    number, *values = SAMPLE.unpack(body)
    return number, RunnerSample(*values)


def _event(record: bytes) -> tuple[int, BlackBoxEvent] | None:
    body = _sound(record[: EVENT.size + CHECK.size])
    if body is None:
        return None
    number, time_ns, runner, text = EVENT.unpack(body)
    return number, BlackBoxEvent(time_ns, runner, _text(text))


def _table(record: bytes) -> tuple[int, Table] | None:
    number, time_ns, rows, total = TABLE.unpack_from(record)
    body = _sound(record[: TABLE.size + rows * ROW.size + CHECK.size]) if rows <= ROWS else None
    if body is None:
        return None
    read = (ROW.unpack_from(body, TABLE.size + n * ROW.size) for n in range(rows))
    return number, Table(
        time_ns,
        total,
        tuple(ProducerRow._make((*values[:-1], _text(values[-1]))) for values in read),
    )


def _checked(body: bytes) -> bytes:
    return body + CHECK.pack(zlib.crc32(body))


def _sound(record: bytes) -> bytes | None:
    body, check = record[: -CHECK.size], record[-CHECK.size :]
    return body if check == CHECK.pack(zlib.crc32(body)) else None


def _text(data: Any) -> str:
    return bytes(data).rstrip(b"\0").decode(errors="replace")
