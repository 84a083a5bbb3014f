"""Failures that cross between processes: every exception arrives as an exception, and a death is
explained."""

from __future__ import annotations

import pickle
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import FeedError, OptionError, ProducerError, SpecError
from fastfeed.errors import FeedStopped, MissingExtra, ProducerDied, ProducerFailed
from fastfeed.producers.failure import LostException, WorkerDeath, decode_error, encode_error


class NeedsTwo(Exception):
    """Pickles, but does not unpickle."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class NoException(Exception):
    def __reduce__(self) -> Any:
        return str, ("no exception",)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> Any:
        raise TypeError("and no pickle")


class Once(Exception):
    """Unpickles once: in the worker that tries it, but not in the trainer."""

    reads = 0

    def __reduce__(self) -> Any:
        return Once._read, ()

    @staticmethod
    def _read() -> Once:
        Once.reads += 1
        if Once.reads > 1:
            raise RuntimeError("not here")
        return Once("read")


def failed(error: BaseException, place: str = "batch 7", ticket: int | None = 7) -> ProducerFailed:
    """Return the failure that the loop builds from a producer's exception."""
    try:
        raise error  # the user's own line
    except BaseException as caught:
        return ProducerFailed(place, caught, ticket=ticket)


kinds = st.sampled_from(
    [ValueError, KeyError, OSError, MemoryError, KeyboardInterrupt, SystemExit, StopIteration]
)
arguments = st.lists(
    st.integers() | st.text(max_size=5) | st.binary(max_size=5) | st.none(), max_size=3
)


@given(kinds, arguments, st.text(max_size=20), st.none() | st.integers(0, 2**40))
def test_what_a_producer_raised_arrives(
    kind: type, args: list[Any], place: str, ticket: int | None
) -> None:
    before = failed(kind(*args), place, ticket)
    after, found = decode_error(encode_error(before, ticket))
    assert found == ticket
    assert type(after) is ProducerFailed
    assert (after.place, after.ticket, str(after)) == (place, ticket, str(before))
    assert type(after.__cause__) is type(before.__cause__)  # OSError(1, ...) is a PermissionError
    assert after.__cause__.args == before.__cause__.args  # type: ignore[union-attr]
    assert "raise error  # the user's own line" in str(after)


def test_notes_and_attributes_travel_too() -> None:
    error = ValueError("x")
    error.code = 5  # type: ignore[attr-defined]
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note("look at the disk")
    cause: Any = decode_error(encode_error(failed(error), 7))[0].__cause__
    assert cause.code == 5
    assert getattr(cause, "__notes__", []) == getattr(error, "__notes__", [])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NeedsTwo(1, 2), "NeedsTwo: 1 and 2"),
        (NoException("x"), "NoException: x"),
        (Unprintable(), "Unprintable: (its text cannot be shown)"),
        (ValueError(lambda: 0, open), "ValueError"),
    ],
)
def test_what_cannot_travel_leaves_its_name_and_text(error: Exception, said: str) -> None:
    after, _ = decode_error(encode_error(failed(error), 7))
    assert type(after) is ProducerFailed
    assert isinstance(after.__cause__, Exception)
    assert str(after).startswith("batch 7 raised ") and said in str(after).split("\n")[0]
    assert "raise error  # the user's own line" in str(after), (
        "the traceback is text and always travels"
    )


def test_what_cannot_be_read_in_the_trainer_is_an_exception_all_the_same() -> None:
    Once.reads = 0
    after, ticket = decode_error(encode_error(failed(Once()), 7))
    assert ticket == 7
    assert type(after.__cause__) is LostException
    assert "RuntimeError: not here" in str(after.__cause__)
    assert "raise error  # the user's own line" in str(after)


@pytest.mark.parametrize(
    "error", [SpecError("leaf"), OptionError("knob"), FeedStopped("by you"), FeedError("?")]
)
def test_our_own_errors_stay_what_they_are(error: FeedError) -> None:
    after, ticket = decode_error(encode_error(error, 3))
    assert (type(after), str(after), ticket) == (type(error), str(error), 3)


DIED = ProducerDied("died", pid=1, signal=9, exit_code=None, out_of_memory=False)


@pytest.mark.parametrize("error", [MissingExtra("tensorflow", "tensorflow"), DIED])
def test_our_own_errors_with_arguments_keep_their_text(error: FeedError) -> None:
    after, _ = decode_error(encode_error(error, None))
    assert isinstance(after, FeedError)
    assert str(error) in str(after)


@pytest.mark.parametrize("error", [SystemExit(2), RuntimeError("x")])
def test_what_is_not_a_producers_is_the_sources(error: BaseException) -> None:
    after, _ = decode_error(encode_error(error, None))
    assert isinstance(after, ProducerError)
    assert type(after.__cause__) is type(error)


def test_what_is_carried_is_plain_for_who_reads_it() -> None:
    """The trainer decodes it under its lock, so the outer parts must always be readable."""
    place, trace, ticket, inner = pickle.loads(encode_error(failed(NeedsTwo(1, 2)), 7))
    assert (place, ticket, type(trace), type(inner)) == ("batch 7", 7, str, bytes)


def death(
    status: int, *, out_of_memory: bool = False, hand: tuple[str, ...] = ("batch 3",)
) -> WorkerDeath:
    return WorkerDeath(2, 4711, status, out_of_memory, hand)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGBUS, signal.SIGABRT]
)
def test_a_signal_is_named(number: signal.Signals) -> None:
    made = death(int(number))
    error = made.error()
    assert made.signal == error.signal == number
    assert error.exit_code is None and error.pid == 4711
    assert f"worker process 2 (pid 4711) was killed by {number.name}" in str(error)
    assert "batch 3" in str(error) and 'on_worker_death="restart"' in str(error)
    assert ("Native code crashed" in str(error)) is (number not in (signal.SIGKILL, signal.SIGTERM))


def test_signals_without_a_name_have_a_number() -> None:
    assert "was killed by signal 40" in str(death(40).error())


@pytest.mark.parametrize("code", [0, 1, 77, 255])
def test_an_exit_code_is_named(code: int) -> None:
    error = death(code << 8).error()
    assert (error.exit_code, error.signal) == (code, None)
    assert f"exit code {code}" in str(error) and "sys.exit" in str(error)


def test_the_out_of_memory_killer_is_recognised() -> None:
    error = death(signal.SIGKILL, out_of_memory=True).error()
    assert error.out_of_memory
    assert "out-of-memory killer" in str(error) and "processes=" in str(error)


@pytest.mark.parametrize(
    ("status", "oom", "accidental"),
    [
        (signal.SIGKILL, False, True),
        (signal.SIGTERM, False, True),
        (signal.SIGKILL, True, False),
        (signal.SIGSEGV, False, False),
        (3 << 8, False, False),
    ],
)
def test_which_deaths_may_be_nobodys_fault(status: int, oom: bool, accidental: bool) -> None:
    assert death(int(status), out_of_memory=oom).accidental is accidental


def test_hands_are_listed_and_empty_ones_said() -> None:
    assert "batch 1 and batch 2" in str(death(9, hand=("batch 1", "batch 2")).error())
    assert "nothing" in str(death(9, hand=()).error())


def test_a_failure_survives_pickling_and_keeps_its_cause() -> None:
    """A hyper-parameter search trains in processes, and its pool sets the cause of the exceptions
    they raise."""
    failed = ProducerFailed("batch 3", KeyError("not there"))
    with pytest.raises(ProducerFailed) as caught:
        raise failed from None
    assert isinstance(caught.value.__cause__, KeyError)
    told = pickle.loads(pickle.dumps(failed))
    assert (str(told), told.place, told.trace) == (str(failed), "batch 3", failed.trace)
    told.__cause__ = RuntimeError("of a pool")
    assert told.__cause__ is None
