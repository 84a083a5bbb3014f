"""The messages of the ring: fixed records that a pipe takes whole or not at all, also from several
writers."""

from __future__ import annotations

import struct

# 40 bytes: a page holds whole ones, and a write below a page is atomic
FORMAT = struct.Struct("<BxHIqqIIIxxxx")
READ_TOKENS = 512
SLOT = struct.Struct("<I")  # returned: the slot's number

BATCH, HOLE, EPOCH, END, FAILED, SKIPPED = range(6)

# A message of a producer (a thread of a worker process): (kind, thread, slot, key, item, rows,
# room, handle). BATCH: `slot` holds `rows` records, laid out for `room` records (0: the slot begins
# with a description). HOLE: the item had no records. EPOCH: the producer has ended an epoch. END:
# it has ended. FAILED, SKIPPED: the news hold an error. `key` is the ticket, or the epoch's
# position where there are no tickets and for errors; `item` counts the items of the stream's epoch.
# Where producers have streams of their own, `thread` of a BATCH or HOLE is the stream.
Token = tuple[int, int, int, int, int, int, int, int]
