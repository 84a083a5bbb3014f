"""One worker process as the trainer sees it: its ring, its news, what it has delivered, and its
state."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import select
import signal
import socket
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from fastfeed.core.batch import BatchSpec
from fastfeed.core.position import ONLY_STREAM
from fastfeed.errors import FeedError, ProducerError
from fastfeed.producers.failure import revive
from fastfeed.producers.process.main import STACKS_SIGNAL, WorkerTask
from fastfeed.producers.process.ship import Shipment
from fastfeed.producers.reorder import ProducedBatch
from fastfeed.ring.memory import NOWHERE, Descriptor, Segment, receive
from fastfeed.ring.reader import Hold, RingReader
from fastfeed.ring.status_page import StatusPage
from fastfeed.ring.token import HOLE, Token
from fastfeed.ring.writer import NEWS

STACKS_S = 0.5  # a running process answers in a millisecond
FRAMES = 4


@dataclass(frozen=True)
class WorkerChannels:
    """What all handles of a feed share: the pipe of tokens, the stop event, and what the workers
    unpack."""

    tokens: Descriptor
    stop: Descriptor
    shipment: Shipment


NO_ENDS = WorkerChannels(NOWHERE, NOWHERE, Shipment(-1, 0))


class WorkerHandle:
    """A worker process, and the trainer's ends of everything that it was given."""

    def __init__(
        self, task: WorkerTask, gone: deque[Hold], *, ends: WorkerChannels, owner: Any = None
    ) -> None:
        self.task = task
        self.owner = owner  # the member of the shared workers that learns of its end
        self.ends = ends
        self.board = StatusPage.create(task.threads)
        self.pid = 0
        self.pidfd: Descriptor | None = None
        self.spec: BatchSpec | None = None
        # by stream: epochs, and items of the next one, that have come
        self.progress = list(task.skip)
        self.delivered = 0
        self.ended: set[int] = set()  # threads that have no more to make
        self.failed = False
        self.exited = False
        self.agreed = False  # its spec was compared with that of the first worker
        self.odd = False  # it makes other batches than the first worker
        self._returned, give_back = map(Descriptor, os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
        self._news, self._their_news = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.work, self._their_work = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stacks = Descriptor(os.memfd_create("fastfeed-stacks", os.MFD_CLOEXEC))
        # where the process writes its stacks: with those of its first handle
        self.answers = self._stacks
        self._errors: dict[bytes, deque[tuple[FeedError, int | None]]] = {
            b"E": deque(),
            b"K": deque(),
        }
        self.reader = RingReader(self.board, returns=give_back, gone=gone, spared=task.threads + 1)

    def theirs(self) -> tuple[int, ...]:
        """Return the worker's descriptors, in the order of DESCRIPTORS."""
        own = (self.board.segment.fd, self._returned.fd, self.ends.tokens.fd, self.ends.stop.fd)
        return (
            *own,
            self._their_news.fileno(),
            self._their_work.fileno(),
            self._stacks.fd,
            self.ends.shipment.fd,
        )

    def close(self) -> None:
        """Close what only the worker needed: it has ended, or never started; its batches may still
        be in use."""
        self.let_go()
        self._news.close()
        self.work.close()

    def release(self) -> None:
        """Close everything: the feed was stopped, and the worker has ended."""
        self.ends, self.pidfd = NO_ENDS, None
        self._stacks = self.answers = NOWHERE
        self.reader.close()

    def let_go(self) -> None:
        """Close the worker's own ends here, now that it has them."""
        self.board.segment.close_fd()
        self._returned = NOWHERE
        self._their_news.close()
        self._their_work.close()

    def made(self, token: Token, *, dealt: bool) -> tuple[ProducedBatch, bool]:
        """Return what a token describes, and True if that is a copy. `dealt`: the trainer sent the
        worker its items."""
        kind, stream, slot, key, item, rows, room, _ = token
        batch, copied = None, False
        if kind != HOLE and self.spec is not None:
            batch, copied = self.reader.lend(slot, self.spec, rows=rows, room=room)
        if dealt:
            return ProducedBatch(batch, ONLY_STREAM, f"batch {key}", item), copied
        return ProducedBatch(batch, stream, f"batch {item} of producer {stream}", item), copied

    def learn_of(self, slot: int) -> bool:
        """Read the news that a slot needs before it can be opened; return False if the worker died
        before it sent them."""
        while self.spec is None or not self.reader.knows(slot):
            if not self._hear():
                return False
        return True

    def agree(self, spec: BatchSpec | None) -> str:
        """Take over the spec of all workers; return how the worker's own differs."""
        difference = (
            spec.difference(self.spec) if spec is not None and self.spec is not None else ""
        )
        self.agreed, self.odd, self.spec = True, bool(difference), spec
        return difference

    def error(self, kind: bytes) -> tuple[FeedError, int | None]:
        """Return the error of a token, and its ticket: b"E" ends the feed, b"K" was skipped."""
        while not self._errors[kind]:
            if not self._hear():
                return ProducerError("a worker failed, and died before it could report how"), None
        return self._errors[kind].popleft()

    def end_epoch(self, thread: int, epoch: int) -> None:
        """Note that everything of an epoch has come from a producer: its streams are at the
        beginning of the next one."""
        for stream in range(self.task.producer(thread), len(self.progress), self.task.producers):
            self.progress[stream] = (epoch + 1, 0)

    def kill(self) -> None:
        """Kill the process."""
        pidfd = self.pidfd
        if pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd.fd, signal.SIGKILL)

    def gone(self, timeout_s: float) -> bool:
        """Return True if the process has ended, within the limit, even if the fork server is
        gone."""
        if self.pidfd is None:  # then at least its end of the news is closed
            return _readable_within(self._news.fileno(), timeout_s)
        return _readable_within(self.pidfd.fd, timeout_s)

    def ask_for_stacks(self) -> None:
        """Ask the process to write where each of its threads is."""
        pidfd, answers = self.pidfd, self.answers
        if pidfd is not None and answers is not NOWHERE and not self.exited:
            os.ftruncate(answers.fd, 0)
            os.lseek(answers.fd, 0, os.SEEK_SET)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd.fd, STACKS_SIGNAL)

    def stacks(self) -> str:
        """Return what the process is doing: its state in the kernel, and the answer to
        `ask_for_stacks`."""
        head = (
            f"worker process {self.task.index} (pid {self.pid or 'not started'}{_state(self.pid)})"
        )
        answers = self.answers
        if self.exited or answers is NOWHERE:
            return f"{head}: has ended"
        text, deadline = "", time.perf_counter() + STACKS_S
        while not text.endswith("\n\n") and time.perf_counter() < deadline:
            before, text = text, os.pread(answers.fd, 2**16, 0).decode(errors="replace")
            if text and text == before:
                break
            time.sleep(0.002)
        return f"{head}:\n{_readable(text) or '  no answer'}"

    def _hear(self) -> bool:
        data, fds = receive(self._news, NEWS.size, fds=1)
        if not data:
            return False
        kind, nbytes, first, count = NEWS.unpack(data)
        if kind == b"S":
            self.reader.add_part(fds[0], range(first, first + count), slot_nbytes=nbytes)
            return True
        segment = Segment(fds[0], max(1, nbytes), writable=False)
        segment.close_fd()
        text = segment.map[:nbytes]
        if kind == b"P":
            self.spec = cloudpickle.loads(text)
        else:
            self._errors[kind].append(revive(text))
        return True


def _readable_within(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _state(pid: int) -> str:
    """Return the state letter of proc(5) in words, and where the kernel waits, if that can be
    read."""
    if not pid:
        return ""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        wchan = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ", gone"
    words = {
        "R": "running",
        "S": "sleeping",
        "D": "in uninterruptible sleep",
        "T": "stopped by a signal",
        "Z": "ended",
    }
    where = f" in {wchan}" if wchan not in ("", "0") else ""
    return f", {words.get(letter, letter)}{where}"


def _readable(text: str) -> str:
    """Return faulthandler's frames, the innermost first, with the lines of code: only the top
    frames of the user's own threads."""
    lines: list[str] = []
    frames = 0
    for line in text.splitlines():
        found = re.match(r'\s+File "(.*)", line (\d+) in (.*)', line)
        if found is None:
            frames = 0
            continue
        frames += 1
        if frames <= FRAMES:
            code = linecache.getline(found[1], int(found[2])).strip()
            lines.append(
                f'  File "{found[1]}", line {found[2]}, in {found[3]}'
                + (f"\n    {code}" if code else "")
            )
    return "\n".join(lines)
