"""Messages of a producer in a worker process, as the trainer receives them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import OptionError, SpecError
from fastfeed.producers.reorder import END_OF_EPOCH, ProducedBatch
from fastfeed.ring.status_page import NOT_IN_FLIGHT, InFlight
from fastfeed.ring.token import BATCH, END, EPOCH, FAILURE, HOLE, SKIP
from tests.helpers.batches import Leaf, checked
from tests.helpers.rings import Ring, leaves_equal, ring

ROW = Leaf("i8", (4,))


def put(made: Ring, thread: int, key: int, value: int = 1) -> None:
    spec, batch = checked(ROW, [value] * 3)
    made.put(batch, spec, thread=thread, key=key)


def test_everything_that_is_said_tells_who_and_where() -> None:
    with ring(threads=2) as pair:
        spec, batch = checked(ROW, [1] * 3)
        outlet = pair.outlets[1]
        assert outlet.put(ProducedBatch(batch, -1, ""), 7, item=5, spec=spec)
        assert outlet.put(ProducedBatch(None, -1, ""), 8, item=6, spec=spec)
        assert outlet.put(END_OF_EPOCH, 9, item=7, spec=None)
        outlet.skip(SpecError("one"), 3)
        outlet.end_epoch(4)
        outlet.fail(OptionError("two"), None)
        outlet.end()
        told = [pair.token() for _ in range(7)]
        assert pair.token() is None
        assert [(t[0], t[1], t[7]) for t in told if t] == [
            (kind, 1, 0) for kind in (BATCH, HOLE, HOLE, SKIP, EPOCH, FAILURE, END)
        ]
        kind, _, slot, key, item, rows, room, _ = told[0] or ()
        assert (kind, key, item, rows, room) == (BATCH, 7, 5, 3, 3)
        assert slot in pair.current
        assert [(t[3], t[4]) for t in told[1:3] if t] == [(8, 6), (9, 7)]
        assert told[4] and told[4][3] == 4
        assert [str(pair.handle.error(k)[0]) for k in (b"E", b"K")] == ["two", "one"]


def test_a_batch_that_another_thread_changes_before_it_is_sent_is_refused() -> None:
    """Such as a buffer of a transform that all threads of the process fill."""
    with ring(threads=2) as pair:
        spec, batch = checked(ROW, [1] * 3)
        outlet, kept = pair.outlets[0], batch.leaves[0]
        outlet.look(batch, "batch 7")
        assert outlet.put(ProducedBatch(batch, -1, ""), 7, item=0, spec=spec)
        outlet.look(batch, "batch 8")
        kept[:] += 1
        with pytest.raises(SpecError, match="batch 8 has changed"):
            outlet.put(ProducedBatch(batch, -1, ""), 8, item=0, spec=spec)


@settings(max_examples=30)
@given(st.lists(st.sampled_from(["put", "skip", "fail"]), min_size=1, max_size=12))
def test_errors_and_batches_are_heard_in_whatever_order_they_are_asked_for(said: list[str]) -> None:
    """The news of one producer may come before the token of another one: no batch and no error gets
    lost."""
    with ring(threads=2, wanted=30) as made:
        batches, errors = [], {b"K": [], b"E": []}  # type: ignore[var-annotated]
        for number, what in enumerate(said):
            outlet = made.outlets[number % 2]
            if what == "put":
                put(made, number % 2, number, number)
                batches.append(made.token())
            else:
                (outlet.skip if what == "skip" else outlet.fail)(SpecError(str(number)), number)
                errors[b"K" if what == "skip" else b"E"].append(number)
                assert made.token() is not None
        steps = [("batch", token) for token in batches] + [
            (kind, n) for kind, all_ in errors.items() for n in all_
        ]
        # the worst case: every error is requested first
        steps.sort(key=lambda step: step[0] == "batch")
        for what, which in steps:
            if isinstance(what, bytes):
                error, ticket = made.handle.error(what)
                assert (str(error), ticket) == (str(which), which)
            else:
                made.handle.await_memory(which[2])
                assert made.handle.spec is not None
                have, _ = made.reader.lend(which[2], made.handle.spec, rows=which[5], room=which[6])
                assert have.leaves[0].tolist() == [[which[3]] * 4] * 3


def test_the_board_shows_what_is_in_hand_and_what_was_done() -> None:
    with ring(threads=2) as pair:
        page = pair.handle.page
        assert [page.in_flight(t) for t in (0, 1)] == [NOT_IN_FLIGHT, NOT_IN_FLIGHT]
        pair.outlets[0].mark(3, 2, record=1)
        pair.outlets[1].mark(4, 0, record=-1)
        assert [page.in_flight(t) for t in (0, 1)] == [InFlight(3, 2, 1), InFlight(4, 0, -1)]
        pair.outlets[1].row.batches = 5
        assert page.row(1).batches == 0
        put(pair, 1, 4)
        assert page.row(1).batches == 5
        pair.outlets[0].row.errors = 2
        pair.outlets[0].end()
        assert page.row(0).errors == 2


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 400), st.booleans()), max_size=25))
def test_batches_of_any_size_from_two_producers(puts: list[tuple[int, int, bool]]) -> None:
    """Returned or filled in place; each arrives, laid out for its records."""
    with ring(threads=2, wanted=4) as made:
        for number, (thread, rows, in_place) in enumerate(puts):
            made.outlets[thread].begin(number)
            spec, batch = checked(ROW, [number % 90] * rows)
            if in_place:
                (array,) = made.outlets[thread].allocate([((rows, 4), np.dtype("i8"))])
                array[...] = batch.leaves[0]
                batch = spec.check(array, "the batch")
            made.put(batch, spec, thread=thread, key=number)
            del batch
            have, _ = made.take()
            assert leaves_equal(have.leaves, checked(ROW, [number % 90] * rows)[1].leaves)
            del have
            made.give_back()
        audit = made.reader.audit()
        assert audit.filling <= 1, "but for the last buffer, which this test's own name holds"
        assert audit.ready == audit.lent == 0
