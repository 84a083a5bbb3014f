"""The errors and warnings of fastfeed.

    FeedError
    ├── OptionError     (ValueError)    an argument cannot work; the text names one that does
    ├── SpecError       (ValueError)    a batch has an unexpected structure, dtype or shape
    ├── BadImage        (ValueError)    an image cannot be decoded: truncated, empty, too large ...
    ├── StateError      (RuntimeError)  a call at the wrong time, such as a second start
    ├── FeedStopped     (RuntimeError)  the runner was stopped by you
    ├── FeedTimeout     (TimeoutError)  nothing arrived within stall_timeout_s
    ├── ProducerError                   a producer failed
    │   ├── ProducerFailed              it raised: the original exception is the __cause__
    │   └── ProducerDied                its process ended: signal or exit code, likely cause, item
    └── MissingExtra    (ImportError)   an optional package is not installed; names the pip command
    FeedWarning         (UserWarning)   the feed works, but probably not as well as expected

The end of a finite source is not an error: the iteration stops, and a session raises
tf.errors.OutOfRangeError.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

DOCS_NOTE = "[docs: {}]"
SHOWS_NOTES = sys.version_info >= (3, 11)
MAX_ERROR_TEXT = 2**16  # characters of an exception's text in that of a FeedError
_OWN_FOLDERS = (str(Path(__file__).parent / "producers"), str(Path(__file__).parent / "source"))


def clean(text: str) -> str:
    """Return one line that a terminal and a browser show literally: control characters and broken
    Unicode are spelled out."""
    return "".join(sign if sign.isprintable() else _written_out(sign) for sign in text)


def clean_lines(text: str) -> str:
    """Return such a text of several lines, such as a traceback."""
    return "\n".join(clean(line.expandtabs()) for line in text.splitlines())


def page_of(kind: type[BaseException]) -> str:
    """Return the short name of the page about an error: that of the first class that is one of
    these."""
    own = (one.__name__ for one in kind.__mro__ if one.__module__ == __name__)
    return f"errors#{next(own, FeedError.__name__).lower()}"


def _written_out(sign: str) -> str:
    return " " if sign.isspace() else sign.encode("unicode_escape").decode("ascii")


class FeedError(Exception):
    """Base class of every error that fastfeed raises.

    Its text may quote files, names and other errors, and changes no terminal that shows it. A note
    behind it, which a traceback shows, names its page of the documentation. In Python 3.10, which
    shows no notes, it is the end of the text.
    """

    __notes__: list[str]  # see PEP 678

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return an error with its note, also where `__init__` does not run."""
        error = super().__new__(cls, *args, **kwargs)
        error.__notes__ = [DOCS_NOTE.format(page_of(cls))]
        return error

    def __str__(self) -> str:
        text = clean_lines(super().__str__())
        return text if SHOWS_NOTES else f"{text} {self.__notes__[0]}"

    def __reduce__(self) -> Any:
        return _unpickled, (type(self), self.args, dict(vars(self)))


def _unpickled(kind: type[FeedError], *given: Any) -> FeedError:
    """Return an error from another process, given its arguments and attributes; `__init__` may
    take something else."""
    args, state = given
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(state)
    return error


class OptionError(FeedError, ValueError):
    """An argument, or the source itself, cannot work as given."""


class SpecError(FeedError, ValueError):
    """A batch does not have the expected structure, dtype or shape."""


class BadImage(FeedError, ValueError):
    """The bytes of one image cannot be decoded, for the given `reason`.

    With on_error="skip" the record is left out.
    """

    def __init__(self, reason: str, *, leaf: str = "") -> None:
        super().__init__(f"{leaf}: {reason}" if leaf else reason)
        self.reason = reason
        self.leaf = leaf  # path of the image in its record, if there are several


class StateError(FeedError, RuntimeError):
    """The call does not fit the state of the runner."""


class FeedStopped(FeedError, RuntimeError):
    """The runner was stopped by its owner before the next batch was requested."""


class FeedTimeout(FeedError, TimeoutError):
    """No batch arrived within `stall_timeout_s`; the text shows the stack of every producer."""


class ProducerError(FeedError):
    """No more batches come, because a producer failed."""


class ProducerFailed(ProducerError):
    """A producer raised: `__cause__` is the original exception, and its traceback is in the text.

    Traceback objects cannot leave their process. For an exception from a worker process, `trace` is
    therefore the formatted traceback.
    """

    def __init__(
        self,
        place: str,
        cause: BaseException,
        *,
        ticket: int | None = None,
        trace: str | None = None,
    ) -> None:
        self.trace = trace or shortened(
            "".join(traceback.format_exception(type(cause), cause, _without_own_frames(cause)))
        )
        super().__init__(
            f"{place} raised {type(cause).__name__}: {message_of(cause)}\n\nIn the "
            f"producer:\n{self.trace.rstrip()}"
        )
        self.place = place
        self.ticket = ticket
        self._original: BaseException | None = cause

    # TensorFlow and Keras raise errors again `from None`, which discards the cause of others
    @property
    def __cause__(self) -> BaseException | None:
        return self._original

    @__cause__.setter
    def __cause__(self, cause: BaseException | None) -> None:
        """Ignore the assignment: process pools would replace the original cause."""

    def __reduce__(self) -> Any:
        kind, args, state = super().__reduce__()[1]
        return _unpickled, (kind, args, {**state, "_original": None, "ticket": None})


class ProducerDied(ProducerError):
    """A worker process ended unexpectedly: by a signal, or with an exit code."""

    def __init__(
        self, text: str, *, pid: int, signal: int | None, exit_code: int | None, out_of_memory: bool
    ) -> None:
        super().__init__(text)
        self.pid = pid
        self.signal = signal
        self.exit_code = exit_code
        self.out_of_memory = out_of_memory


def message_of(cause: BaseException) -> str:
    """Return the text of an exception, shortened, or a placeholder if its __str__ fails."""
    try:
        return shortened(str(cause))
    except BaseException:  # a user's own __str__ may fail, and must not hide the producer's error
        return "(its text cannot be shown)"


def shortened(text: str) -> str:
    """Return a text without its middle if it is too long to be read."""
    left_out, half = len(text) - MAX_ERROR_TEXT, MAX_ERROR_TEXT // 2
    if left_out <= 0:
        return text
    return f"{text[:half]}\n[{left_out} characters left out]\n{text[-half:]}"


def _without_own_frames(cause: BaseException) -> TracebackType | None:
    """Return the traceback without fastfeed's own frames around the user's function."""
    at = cause.__traceback__
    while (
        at is not None
        and at.tb_next is not None
        and at.tb_frame.f_code.co_filename.startswith(_OWN_FOLDERS)
    ):
        at = at.tb_next
    return at


class MissingExtra(FeedError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this requires {package}, which is not installed: pip install 'fastfeed[{extra}]'"
        )
        self.package = package
        self.extra = extra


@contextmanager
def required(package: str, extra: str) -> Iterator[None]:
    """Raise MissingExtra if an import inside the `with` block fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(package, extra) from error


class FeedWarning(UserWarning):
    """The feed works, but probably not as well as expected; issued once for each runner."""

    def __str__(self) -> str:
        return f"{super().__str__()} {DOCS_NOTE.format(page_of(type(self)))}"
