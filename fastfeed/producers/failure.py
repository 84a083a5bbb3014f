"""Failures that cross from a worker process into the trainer: exceptions are carried, deaths are
explained."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from fastfeed.errors import FeedError, ProducerDied, ProducerFailed, message_of


class LostException(Exception):
    """Stands for an exception that cannot be pickled; its text begins with the class name of the
    original."""


def carry(error: BaseException, ticket: int | None) -> bytes:
    """Return a failure of a producer as bytes; of what cannot be pickled, the text."""
    cause = error.__cause__ if isinstance(error, ProducerFailed) else None
    if isinstance(error, ProducerFailed) and cause is not None:
        parts: tuple[Any, ...] = (error.place, error.trace, ticket, _pickled(cause))
    else:
        parts = (None, "", ticket, _pickled(error))
    return pickle.dumps(parts)


def revive(data: bytes) -> tuple[FeedError, int | None]:
    """Return the failure and its ticket."""
    place, trace, ticket, pickled = pickle.loads(data)
    try:
        error = pickle.loads(pickled)
    except Exception as reason:  # its class may be unknown here, or refuse its own arguments
        error = LostException(
            f"an exception that could not be read here ({type(reason).__name__}: {reason})"
        )
    if not isinstance(error, BaseException):
        error = LostException(f"an exception that turned into {error!r} on its way")
    if place is None:
        failure = (
            error
            if isinstance(error, FeedError)
            else ProducerFailed("the source", error, ticket=ticket)
        )
        return failure, ticket
    return ProducerFailed(place, error, ticket=ticket, trace=trace), ticket


def _pickled(error: BaseException) -> bytes:
    """Return the exception, or its description, as bytes: the class is the user's, whose __reduce__
    may raise anything."""
    with contextlib.suppress(Exception):
        data: bytes = cloudpickle.dumps(error)
        # many can be pickled but not unpickled, for lack of their arguments
        if isinstance(pickle.loads(data), BaseException):
            return data
    return cloudpickle.dumps(LostException(f"{type(error).__name__}: {message_of(error)}"))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Death:
    """How a worker process ended: `status` as os.waitpid returns it, whether the kernel killed for
    memory meanwhile, and what its producers had in flight."""

    worker: int
    pid: int
    status: int
    out_of_memory: bool
    in_hand: Sequence[str]

    @property
    def signal(self) -> int | None:
        """The signal that killed it, or None."""
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else None

    @property
    def accidental(self) -> bool:
        """True if the death may have nothing to do with the items in flight: a person or a
        scheduler sent a signal."""
        return (
            self.signal in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
            and not self.out_of_memory
        )

    def error(self) -> ProducerDied:
        """Return the death as an exception."""
        exit_code = os.WEXITSTATUS(self.status) if self.signal is None else None
        hand = " and ".join(self.in_hand) or "nothing"
        text = f"worker process {self.worker} (pid {self.pid}) {self._how(exit_code)}. It had in hand: {hand}."
        return ProducerDied(
            f'{text}\n{self._advice()} on_worker_death="restart" goes on with a new worker.',
            pid=self.pid,
            signal=self.signal,
            exit_code=exit_code,
            out_of_memory=self.out_of_memory,
        )

    def _how(self, exit_code: int | None) -> str:
        if exit_code is not None:
            return f"ended with exit code {exit_code}"
        return f"was killed by {_signal_name(self.signal or 0)}"

    def _advice(self) -> str:
        if self.out_of_memory:
            return (
                "The kernel's out-of-memory killer was at work in this control group: take fewer "
                "processes=, smaller batches, less memory=, or raise the limit."
            )
        if self.signal in (
            signal.SIGSEGV,
            signal.SIGBUS,
            signal.SIGABRT,
            signal.SIGILL,
            signal.SIGFPE,
        ):
            return "Native code crashed: run that item alone in the trainer (processes=0) to see where."
        if self.signal is not None:
            return "Somebody sent that signal: a job scheduler, an operator, or the code itself."
        return "The producer's code has called sys.exit or os._exit, or a library has."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
