"""Failures that cross from a worker process into the trainer: encoded exceptions, explained
deaths."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from fastfeed.errors import FeedError, ProducerDied, ProducerError, ProducerFailed, message_of
from fastfeed.probes.family import signal_name

MAX_ERROR_NBYTES = 2**20  # of a pickled exception
CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")
ACCIDENTS = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGINT")
MAX_LAST_TEXT = 1900  # characters of an error's text, and of its traceback


class LostException(Exception):
    """Stand-in for an exception that cannot be pickled or is too large. Its text begins with the
    name of the original class."""


def encode_error(error: BaseException, ticket: int | None) -> bytes:
    """Encode a producer's failure; of an exception that cannot be pickled, or that holds more than
    1 MB, only the text is kept."""
    cause = error.__cause__ if isinstance(error, ProducerFailed) else None
    if isinstance(error, ProducerFailed) and cause is not None:
        parts: tuple[Any, ...] = (error.place, error.trace, ticket, _pickled(cause))
    else:
        parts = (None, "", ticket, _pickled(error))
    return pickle.dumps(parts)


def decode_error(data: bytes) -> tuple[FeedError, int | None]:
    """Decode a failure. Return it with its ticket."""
    place, trace, ticket, pickled = pickle.loads(data)
    try:
        error = pickle.loads(pickled)
    # Its class may be unknown here, or refuse its own arguments.
    except (Exception, SystemExit) as reason:
        error = LostException(
            f"an exception that cannot be unpickled here ({type(reason).__name__}: {reason})"
        )
    if not isinstance(error, BaseException):
        error = LostException(f"an exception that unpickled as {error!r}")
    if place is not None:
        return ProducerFailed(place, error, ticket=ticket, trace=trace), ticket
    if isinstance(error, FeedError):
        return error, ticket
    return ProducerFailed("the source", error, ticket=ticket), ticket


def last_words(error: BaseException) -> bytes:
    """Return the text of a producer's failure, cut to fit on a status page."""
    place, trace = (error.place, error.trace) if isinstance(error, ProducerFailed) else ("", "")
    cause = error.__cause__ or error
    text = message_of(cause)[:MAX_LAST_TEXT]
    text = f"{type(cause).__name__}: {text}" if place else text
    return "\0".join((place, text, trace[-MAX_LAST_TEXT:])).encode(errors="backslashreplace")


def read_last_words(words: str) -> ProducerError:
    """Return the error that `last_words` told of; "" where not even those could be left."""
    place, text, trace = [*words.split("\0"), "", ""][:3]
    if place:
        return ProducerFailed(place, LostException(text), trace=trace)
    return ProducerError(text or "a producer failed, and could not say how")


def _pickled(error: BaseException) -> bytes:
    """Pickle the exception, or its text: the class is the user's, and its __reduce__ may raise
    anything."""
    with contextlib.suppress(BaseException):
        data: bytes = cloudpickle.dumps(error)
        # Many exceptions pickle but do not unpickle, for lack of constructor arguments.
        if len(data) <= MAX_ERROR_NBYTES and isinstance(pickle.loads(data), BaseException):
            return data
    return bytes(cloudpickle.dumps(LostException(f"{type(error).__name__}: {message_of(error)}")))


@dataclass(frozen=True)
class WorkerDeath:
    """End of a worker process: `status` as os.waitpid returns it, whether the kernel killed for
    memory meanwhile, and descriptions of what its producers had in flight. Of a process on another
    machine only a `reason` is known."""

    worker: int
    pid: int
    status: int
    out_of_memory: bool
    in_flight: Sequence[str]
    reason: str = ""

    @property
    def signal(self) -> int | None:
        """Signal that killed the process, or None."""
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None

    @property
    def accidental(self) -> bool:
        """True if the death may be unrelated to what was in flight: a person or a scheduler sent a
        signal."""
        return signal_name(self.signal or 0) in ACCIDENTS and not self.out_of_memory

    def error(self) -> ProducerDied:
        """Return the death as an exception."""
        exit_code = os.WEXITSTATUS(self.status) if self.signal is None else None
        how = f"was killed by {signal_name(self.signal or 0)}"
        if self.reason:
            how = f"was lost {self.reason}"
        elif exit_code is not None:
            how = f"ended with exit code {exit_code}"
        pid = f"pid {self.pid}" if self.pid else "not started yet"
        return ProducerDied(
            f"worker process {self.worker} ({pid}) {how}. "
            f"In flight: {' and '.join(self.in_flight) or 'nothing'}.\n{self._advice()} "
            'Set on_worker_death="restart" to continue with a new worker.',
            pid=self.pid,
            signal=None if self.reason else self.signal,
            exit_code=exit_code,
            out_of_memory=self.out_of_memory,
        )

    def _advice(self) -> str:
        if self.reason:
            return "Its node or its process has ended, or the network between."
        if self.out_of_memory:
            return (
                "The kernel's out-of-memory killer was active in this control group: use fewer "
                "processes=, smaller batches or less memory=, or raise the limit."
            )
        if signal_name(self.signal or 0) in CRASHES:
            return (
                "Native code crashed: run that item alone in the trainer (processes=0) to see "
                "where."
            )
        if self.signal is not None:
            return "The signal came from a job scheduler, an operator or the code itself."
        return "The producer's code or a library has called sys.exit or os._exit."
