"""The messages of the ring: fixed records that a pipe takes whole or not at all, also from several writers."""

from __future__ import annotations

import struct
from typing import NamedTuple

FORMAT = struct.Struct("<BxHIqqIIIxxxx")  # 40 bytes: a page holds whole ones, and a write below a page is atomic
READ_NBYTES = FORMAT.size * 512
SLOT = struct.Struct("<I")  # what goes back: the slot's number

BATCH, HOLE, EPOCH, END, FAILED, SKIPPED = range(6)


class Token(NamedTuple):
    """What a worker says about one item.

    BATCH: `slot` holds `rows` records, laid out for `room` records (0: the slot begins with a description). HOLE: the
    item had no records. EPOCH: the producer has ended an epoch. END: it has ended. FAILED, SKIPPED: there is an error
    among the news. `key` is the ticket, or the epoch's position where there are no tickets; `item` counts the items of
    the producer's epoch.
    """

    kind: int
    thread: int
    slot: int
    key: int
    item: int
    rows: int
    room: int
    lane: int
