"""Messages of the ring: fixed records that a pipe takes whole or not at all, also from several
writers."""

from __future__ import annotations

import struct

# 40 bytes: a write below a page is atomic, and a page of the pipe holds whole tokens only.
FORMAT = struct.Struct("<BxHIqqIIIxxxx")
READ_TOKENS = 512
SLOT = struct.Struct("<I")  # the number of a returned slot

BATCH, HOLE, EPOCH, END, FAILURE, SKIP, STREAM = range(7)
LAST_WORDS = 1  # `slot` of a FAILURE whose text is on the status page

# Message of a producer (a thread of a worker process) to the trainer: (kind, thread, slot, key,
# item, rows, room, worker). BATCH: `slot` holds `rows` records, laid out for `room` records (0: the
# slot begins with a description). HOLE: the item had no records. EPOCH: the producer has ended an
# epoch. END: the producer has ended. FAILURE, SKIP: an error is among the news, unless `slot` is
# LAST_WORDS. `key` is the ticket, or the epoch's position where there are no tickets and for
# errors. `item` counts the items of the stream's epoch. Where producers have streams of their own,
# `thread` of a BATCH or HOLE is the stream. STREAM: the digest of `item` of stream `thread` is
# `key`.
Token = tuple[int, int, int, int, int, int, int, int]
