"""Every failure that fastfeed raises.

    FeedError
    ├── OptionError     (ValueError)    an argument cannot work; the text names the right one
    ├── SpecError       (ValueError)    a batch does not have the structure, dtype or shape that was promised
    ├── BadImage        (ValueError)    the bytes of one image cannot become pixels: truncated, empty, too large ...
    ├── StateError      (RuntimeError)  a call at the wrong moment: start twice, get_inputs after start
    ├── FeedStopped     (RuntimeError)  the runner was stopped by you
    ├── FeedTimeout     (TimeoutError)  nothing arrived within stall_timeout_s
    ├── ProducerError                   a producer is the cause
    │   ├── ProducerFailed              it raised: the original exception is the __cause__
    │   └── ProducerDied                its process was killed or ended: signal or exit code, likely cause, item in hand
    └── MissingExtra    (ImportError)   an optional package is not installed; the text is the pip line
    FeedWarning         (UserWarning)   it works, but not as well as you probably expect

The end of a finite source is no error: iteration stops, and a session raises
tf.errors.OutOfRangeError.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

_OWN = (str(Path(__file__).parent / "producers"), str(Path(__file__).parent / "source"))


class FeedError(Exception):
    """Base of every failure that fastfeed raises."""


class OptionError(FeedError, ValueError):
    """An argument, or the source itself, cannot work as given."""


class SpecError(FeedError, ValueError):
    """A batch does not have the structure, dtype or shape that was promised."""


class BadImage(FeedError, ValueError):
    """The bytes of one image cannot become pixels, for the `reason` given; on_error="skip" leaves
    its record out."""

    def __init__(self, reason: str, *, leaf: str = "") -> None:
        super().__init__(f"{leaf}: {reason}" if leaf else reason)
        self.reason = reason
        self.leaf = leaf  # which image of its record, if there are several


class StateError(FeedError, RuntimeError):
    """The call does not fit the runner's state."""


class FeedStopped(FeedError, RuntimeError):
    """The runner was stopped by its owner, and batches were requested afterwards."""


class FeedTimeout(FeedError, TimeoutError):
    """No batch arrived within `stall_timeout_s`; the text shows what every producer is doing."""


class ProducerError(FeedError):
    """No more batches come because of a producer."""


class ProducerFailed(ProducerError):
    """A producer raised an exception: it is the `__cause__`, and its traceback is part of the text.

    `trace` is that traceback if the exception was raised in another process: tracebacks cannot be
    pickled.
    """

    def __init__(
        self,
        place: str,
        cause: BaseException,
        *,
        ticket: int | None = None,
        trace: str | None = None,
    ) -> None:
        self.trace = trace or "".join(
            traceback.format_exception(type(cause), cause, _from_the_users_code(cause))
        )
        super().__init__(
            f"{place} raised {type(cause).__name__}: {message_of(cause)}\n\nIn the "
            f"producer:\n{self.trace.rstrip()}"
        )
        self.place = place
        self.ticket = ticket
        self._original: BaseException | None = cause

    # TensorFlow and Keras raise errors again `from None`, which loses the cause of others
    @property
    def __cause__(self) -> BaseException | None:
        return self._original

    @__cause__.setter
    def __cause__(self, cause: BaseException | None) -> None:
        """Keep the original cause: process pools set their own when they pass the exception on."""

    def __reduce__(self) -> Any:
        return _told, (str(self), self.place, self.trace)


def _told(*given: str) -> ProducerFailed:
    """Return the ProducerFailed of another process; what cannot be pickled stays there."""
    text, place, trace = given
    error = ProducerFailed.__new__(ProducerFailed, text)
    error.args = (text,)
    error.place, error.trace, error.ticket, error._original = place, trace, None, None
    return error


class ProducerDied(ProducerError):
    """A worker process ended without being told to: by a signal, or with an exit code."""

    def __init__(
        self, text: str, *, pid: int, signal: int | None, exit_code: int | None, out_of_memory: bool
    ) -> None:
        super().__init__(text)
        self.pid = pid
        self.signal = signal
        self.exit_code = exit_code
        self.out_of_memory = out_of_memory


def message_of(cause: BaseException) -> str:
    """Return the text of an exception, as far as its own __str__ works."""
    try:
        return str(cause)
    # the user's own __str__ may fail, which must not hide the failure of the producer
    except Exception:
        return "(its text cannot be shown)"


def _from_the_users_code(cause: BaseException) -> TracebackType | None:
    """Return the traceback without fastfeed's own frames around the user's function."""
    at = cause.__traceback__
    while (
        at is not None
        and at.tb_next is not None
        and at.tb_frame.f_code.co_filename.startswith(_OWN)
    ):
        at = at.tb_next
    return at


class MissingExtra(FeedError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is needed for this and is not installed: pip install 'fastfeed[{extra}]'"
        )
        self.package = package
        self.extra = extra


class FeedWarning(UserWarning):
    """It works, but not as well as expected; given once for each runner."""
