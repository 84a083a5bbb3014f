"""A black box is read as it was written; damaged records are left out, other files refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import OptionError
from fastfeed.live import record_layout as layout
from fastfeed.live.record_layout import (
    BlackBoxEvent,
    BlackBoxHeader,
    Contents,
    ProducerRow,
    ProducerTable,
    RunnerSample,
)

HEADER = BlackBoxHeader(
    42, layout.PROCESS_RUNNING, 10, 0, 77, "boot", "host", "0.1.0", "train.py --steps 3"
)
long, word, short = (
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**16 - 1),
)
real = st.floats(allow_nan=False)
text = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=300)
samples = st.builds(
    RunnerSample,
    *(long, word, word, long, long, long, real, real, long, long),
    *(word, word, word, word, long, word, word, short, short, short, short),
)
events = st.builds(BlackBoxEvent, long, st.integers(-(2**31), 2**31 - 1), text)
rows = st.builds(
    ProducerRow,
    *(word, word, short, short, word, word, word, long, long, long, long),
    *(real, real, real, long, text),
)


def put(data: bytearray, at: int, record: bytes) -> None:
    data[at : at + len(record)] = record


def file_of(
    samples: list[RunnerSample], events: list[BlackBoxEvent] = (), tables: list[ProducerTable] = ()
) -> bytearray:
    data = bytearray(layout.FILE_NBYTES)
    put(data, 0, layout.pack_header(HEADER))
    for n, sample in enumerate(samples, 1):
        put(data, layout.SAMPLE_RING.offset_of(n), layout.pack_sample(n, sample))
    for n, event in enumerate(events, 1):
        put(data, layout.EVENT_RING.offset_of(n), layout.pack_event(n, event))
    for n, table in enumerate(tables, 1):
        put(data, layout.TABLE_RING.offset_of(n), layout.pack_table(n, table))
    return data


def unpack(data: bytes) -> Contents:
    return layout.unpack(bytes(data), name="box")


def sample(n: int) -> RunnerSample:
    return RunnerSample(n, 0, 0, n, n * 8, n * 64, n / 10, float(n), *[1] * 13)


def row(n: int) -> ProducerRow:
    return ProducerRow(0, n, 1, 1, n, 99, 0, -1, n, -1, n, 1.0, 2.0, 3.0, 4, f"decode data.py:{n}")


def full() -> bytearray:
    """Return a file in which every ring is full."""
    return file_of(
        [sample(n) for n in range(1, layout.SAMPLE_RING.slots + 50)],
        [BlackBoxEvent(n, 0, f"event {n}") for n in range(1, layout.EVENT_RING.slots + 9)],
        [ProducerTable(n, 3, tuple(map(row, range(3)))) for n in range(1, 6)],
    )


FULL = bytes(full())
WHOLE = unpack(FULL)


@settings(max_examples=30)
@given(st.lists(samples, max_size=5), st.lists(events, max_size=5), st.lists(rows, max_size=6))
def test_what_was_written_is_read(
    samples: list[RunnerSample], events: list[BlackBoxEvent], rows: list[ProducerRow]
) -> None:
    found = unpack(file_of(samples, events, [ProducerTable(7, len(rows), tuple(rows))]))
    assert found.header == HEADER
    assert found.samples == tuple(samples)
    assert found.events == tuple(e._replace(text=layout.cut(e.text, 228).decode()) for e in events)
    assert found.table is not None
    assert found.table.rows == tuple(
        r._replace(where=layout.cut(r.where, 76).decode()) for r in rows
    )
    assert not found.damaged


def test_the_newest_stay() -> None:
    assert [s.batches for s in WHOLE.samples] == list(range(50, layout.SAMPLE_RING.slots + 50))
    assert [e.text for e in WHOLE.events] == [
        f"event {n}" for n in range(9, layout.EVENT_RING.slots + 9)
    ]
    assert WHOLE.table is not None and WHOLE.table.time_ns == 5
    assert not WHOLE.damaged


def test_more_producers_than_rows() -> None:
    found = unpack(file_of([], [], [ProducerTable(1, 1000, tuple(map(row, range(1000))))]))
    assert found.table is not None
    assert (len(found.table.rows), found.table.total) == (layout.MAX_TABLE_ROWS, 1000)


@settings(max_examples=40)
@given(st.integers(0, layout.FILE_NBYTES - 1))
def test_a_file_that_was_cut_off_is_refused(nbytes: int) -> None:
    with pytest.raises(OptionError, match="cut off|no black box"):
        unpack(FULL[:nbytes])


@settings(max_examples=60)
@given(st.integers(0, layout.FILE_NBYTES - 1), st.binary(min_size=1, max_size=600))
def test_a_torn_file_makes_nothing_up(at: int, garbage: bytes) -> None:
    data = bytearray(FULL)
    data[at : at + len(garbage)] = garbage[: layout.FILE_NBYTES - at]
    try:
        found = unpack(bytes(data))
    except OptionError:
        assert at < layout.HEADER_STRUCT.size + layout.CHECKSUM.size
        return
    assert set(found.samples) <= set(WHOLE.samples)
    assert set(found.events) <= set(WHOLE.events)
    assert found.table is None or found.table.time_ns in (4, 5)
    lost = len(WHOLE.samples) + len(WHOLE.events) - len(found.samples) - len(found.events)
    assert found.damaged >= lost
    assert lost <= 2 + len(garbage) // layout.SAMPLE_RING.record_nbytes + 1


def test_a_torn_table_leaves_the_one_before() -> None:
    data = bytearray(FULL)
    data[layout.TABLE_RING.offset_of(5) + 100] ^= 1
    found = unpack(bytes(data))
    assert found.table is not None and found.table.time_ns == 4
    assert found.damaged == 1


def test_strange_files_are_refused() -> None:
    with pytest.raises(OptionError, match="no black box"):
        unpack(b"PNG" * 1000)
    newer = bytearray(FULL)
    newer[8:12] = (2).to_bytes(4, "little")
    with pytest.raises(OptionError, match="version 2.*reads up to 1"):
        unpack(bytes(newer))
    damaged = bytearray(FULL)
    damaged[30] ^= 1
    with pytest.raises(OptionError, match="header.*damaged"):
        unpack(bytes(damaged))


def test_records_have_room() -> None:
    structs = (layout.HEADER_STRUCT, layout.SAMPLE_STRUCT, layout.EVENT_STRUCT)
    rooms = (
        layout.SAMPLE_RING.offset,
        layout.SAMPLE_RING.record_nbytes,
        layout.EVENT_RING.record_nbytes,
    )
    assert all(
        struct.size + layout.CHECKSUM.size <= room
        for struct, room in zip(structs, rooms, strict=True)
    )
    assert layout.TABLE_RING.end <= layout.FILE_NBYTES
