"""The layout of a black box: a file of fixed size with a header and three rings of records.

    header | samples: one of each runner every second | events: text |
    tables: the state of every producer, the last two

Every record carries its number and a checksum. The number gives its place. The checksum reveals a
record that was incomplete at the end of its writer, or never written.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from fastfeed.core.shard_address import without_tokens
from fastfeed.errors import OptionError

MAGIC = b"FFBLKBX\n"
FORMAT_VERSION = 1
FILE_NBYTES = 2**18
PROCESS_RUNNING, PROCESS_STOPPED, PROCESS_FAILED = range(3)  # the status in the header
EVENT_TEXT_NBYTES, WHERE_NBYTES = 228, 76
HEADER_TEXTS_NBYTES = (40, 64, 16, 512)
MAX_TABLE_ROWS = 256

HEADER_STRUCT = struct.Struct("<8sIIIiqqq40s64s16s512s")
CHECKSUM = struct.Struct("<I")
SAMPLE_STRUCT = struct.Struct("<QqIIqqqddqqIIIIqIIHHHH")
EVENT_STRUCT = struct.Struct(f"<Qqi{EVENT_TEXT_NBYTES}s")
TABLE_STRUCT = struct.Struct("<QqII")
PRODUCER_STRUCT = struct.Struct(f"<IIHHIIIqqqqdddq{WHERE_NBYTES}s")


class RecordRing(NamedTuple):
    """The place of one kind of record; the newest record replaces the oldest."""

    offset: int
    slots: int
    record_nbytes: int

    def offset_of(self, number: int) -> int:
        """Return the place of the record of this number (from 1)."""
        return self.offset + number % self.slots * self.record_nbytes

    @property
    def end(self) -> int:
        """The end of the ring in the file."""
        return self.offset + self.slots * self.record_nbytes


SAMPLE_RING = RecordRing(4096, 1024, 128)
EVENT_RING = RecordRing(SAMPLE_RING.end, 128, 256)
TABLE_RING = RecordRing(
    EVENT_RING.end, 2, TABLE_STRUCT.size + MAX_TABLE_ROWS * PRODUCER_STRUCT.size + CHECKSUM.size
)


class BlackBoxHeader(NamedTuple):
    """The process of a black box."""

    pid: int
    status: int  # PROCESS_RUNNING, PROCESS_STOPPED or PROCESS_FAILED
    started_ns: int  # of the file, by time.time_ns()
    ended_ns: int
    ticks: int  # start of the process, in clock ticks since boot
    boot: str
    host: str
    version: str
    command: str


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


class Contents(NamedTuple):
    """The content of a file, in the order of writing."""

    header: BlackBoxHeader
    samples: tuple[RunnerSample, ...]
    events: tuple[BlackBoxEvent, ...]
    table: ProducerTable | None
    damaged: int  # records that cannot be read


Record = TypeVar("Record")


def pack_header(header: BlackBoxHeader) -> bytes:
    """Return the beginning of the file."""
    numbers = (header.pid, header.status, header.started_ns, header.ended_ns, header.ticks)
    texts = map(cut, header[5:], HEADER_TEXTS_NBYTES)
    return _with_checksum(HEADER_STRUCT.pack(MAGIC, FORMAT_VERSION, FILE_NBYTES, *numbers, *texts))


def pack_sample(number: int, sample: RunnerSample) -> bytes:
    """Return a sample in the form of the file, with producer counts limited to 65535."""
    producer_counts = (min(count, 2**16 - 1) for count in sample[-4:])
    return _with_checksum(SAMPLE_STRUCT.pack(number, *sample[:-4], *producer_counts))


def pack_event(number: int, event: BlackBoxEvent) -> bytes:
    """Return an event in the form of the file, with its text cut to the room it has."""
    text = cut(event.text, EVENT_TEXT_NBYTES)
    return _with_checksum(EVENT_STRUCT.pack(number, event.time_ns, event.runner, text))


def pack_table(number: int, table: ProducerTable) -> bytes:
    """Return a table in the form of the file, with as many rows as fit."""
    rows = [
        PRODUCER_STRUCT.pack(*row[:-1], cut(row.where, WHERE_NBYTES))
        for row in table.rows[:MAX_TABLE_ROWS]
    ]
    head = TABLE_STRUCT.pack(number, table.time_ns, len(rows), table.total)
    return _with_checksum(head + b"".join(rows))


def unpack(data: bytes, *, name: str) -> Contents:
    """Return the content of a black box.

    Raise OptionError for another kind of file, a truncated one, or a newer version.
    """
    header = _unpack_header(data, name)
    samples, damaged_samples = _read_ring(data, SAMPLE_RING, unpack_record=_unpack_sample)
    events, damaged_events = _read_ring(data, EVENT_RING, unpack_record=_unpack_event)
    tables, damaged_tables = _read_ring(data, TABLE_RING, unpack_record=_unpack_table)
    damaged = damaged_samples + damaged_events + damaged_tables
    return Contents(header, samples, events, tables[-1] if tables else None, damaged)


def cut(text: str, nbytes: int) -> bytes:
    """Return as many whole characters of a text as fit, in UTF-8, without tokens."""
    encoded = without_tokens(text).replace("\0", " ").encode(errors="replace")
    return encoded[:nbytes].decode(errors="ignore").encode()


def _unpack_header(data: bytes, name: str) -> BlackBoxHeader:
    if not data.startswith(MAGIC):
        raise OptionError(f"{name} is no black box of fastfeed")
    version_end = len(MAGIC) + 4
    version = int.from_bytes(data[len(MAGIC) : version_end], "little")
    if version > FORMAT_VERSION and len(data) >= version_end:
        raise OptionError(
            f"{name} has version {version}, and this fastfeed reads up to {FORMAT_VERSION}: "
            "install a newer fastfeed"
        )
    if len(data) != FILE_NBYTES:
        raise OptionError(
            f"{name} was cut off: a black box has {FILE_NBYTES} bytes, this one {len(data)}"
        )
    values = _checked_values(HEADER_STRUCT, data)
    if values is None:
        raise OptionError(
            f"the header of {name} is damaged: the process of the black box is unknown"
        )
    return BlackBoxHeader._make((*values[3:8], *map(_decode, values[8:])))


def _read_ring(
    data: bytes, ring: RecordRing, *, unpack_record: Callable[[bytes], tuple[int, Record] | None]
) -> tuple[tuple[Record, ...], int]:
    """Return the records of a ring by increasing number, and the count of damaged ones."""
    found: dict[int, Record] = {}
    damaged = 0
    for slot in range(ring.slots):
        start = ring.offset_of(slot)
        packed = data[start : start + ring.record_nbytes]
        number, record = unpack_record(packed) or (0, None)
        if record is not None and number > 0 and number % ring.slots == slot:
            found[number] = record
        elif packed.strip(b"\0"):
            damaged += 1
    return tuple(found[number] for number in sorted(found)), damaged


def _unpack_sample(packed: bytes) -> tuple[int, RunnerSample] | None:
    values = _checked_values(SAMPLE_STRUCT, packed)
    return None if values is None else (values[0], RunnerSample._make(values[1:]))


def _unpack_event(packed: bytes) -> tuple[int, BlackBoxEvent] | None:
    values = _checked_values(EVENT_STRUCT, packed)
    if values is None:
        return None
    number, time_ns, runner, text = values
    return number, BlackBoxEvent(time_ns, runner, _decode(text))


def _unpack_table(packed: bytes) -> tuple[int, ProducerTable] | None:
    number, time_ns, row_count, total = TABLE_STRUCT.unpack_from(packed)
    end = TABLE_STRUCT.size + row_count * PRODUCER_STRUCT.size
    if row_count > MAX_TABLE_ROWS or not _is_intact(packed, end):
        return None
    rows = tuple(
        ProducerRow._make((*values, _decode(where)))
        for *values, where in PRODUCER_STRUCT.iter_unpack(packed[TABLE_STRUCT.size : end])
    )
    return number, ProducerTable(time_ns, total, rows)


def _with_checksum(body: bytes) -> bytes:
    return body + CHECKSUM.pack(zlib.crc32(body))


def _is_intact(packed: bytes, nbytes: int) -> bool:
    """Return True if the first bytes match the checksum behind them."""
    (expected,) = CHECKSUM.unpack_from(packed, nbytes)
    return zlib.crc32(packed[:nbytes]) == int(expected)


def _checked_values(layout: struct.Struct, packed: bytes) -> tuple[Any, ...] | None:
    return layout.unpack_from(packed) if _is_intact(packed, layout.size) else None


def _decode(text: bytes) -> str:
    return text.rstrip(b"\0").decode(errors="replace")
