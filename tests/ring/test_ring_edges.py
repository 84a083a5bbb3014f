"""The ring at its limits: full, growing, stopped, out of memory, or misused by the user's code."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from fastfeed import OptionError, StateError
from fastfeed.ring.layout import MemoryShare, slot_nbytes
from fastfeed.ring.memory import PAGE
from fastfeed.ring.status_page import SLOT_STATES_NBYTES
from fastfeed.ring.writer import GROWTH, Stopped
from tests.helpers.batches import Leaf, checked, make
from tests.helpers.feeds import LONG_S
from tests.helpers.rings import (
    Ring,
    leaves_equal,
    mapped_nbytes,
    ring,
)

ROW = Leaf("i8", (4,))
BYTES = (Leaf("O"), Leaf("i8"))


def put(made: Ring, rows: int, value: int = 1, **at: int) -> None:
    spec, batch = checked(ROW, [value] * rows)
    made.put(batch, spec, **at)


def rows_of(nbytes: int) -> int:
    return nbytes // 32


class Elsewhere(threading.Thread):
    """A call in a thread of its own, like that of a second producer of the worker."""

    def __init__(self, call: Any) -> None:
        super().__init__(name="a producer of the test")
        self._call = call
        self.result: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.result = error

    def ended_with(self) -> Any:
        """Return the result of the call, which must come soon."""
        self.join(LONG_S)
        assert not self.is_alive(), "the producer hangs"
        return self.result


def fill_up(made: Ring, rows: int = 1) -> int:
    """Put batches until no slot is free. Return their number."""
    put(made, rows)
    count = 1
    while made.free:
        put(made, rows)
        count += 1
    return count


def test_a_producer_waits_for_a_slot_and_gets_the_first_that_comes_back() -> None:
    with ring(budget=4 * PAGE, wanted=4) as made:
        assert fill_up(made) == 4
        waiting = Elsewhere(lambda: put(made, 1, 9))
        batch, _ = made.take()
        del batch
        made.give_back()
        assert waiting.ended_with() is None
        while made.reader.audit().ready > 1:
            made.take()
        assert made.take()[0].leaves[0].tolist() == [[9] * 4]


@pytest.mark.parametrize("threads", [1, 3])
def test_stop_reaches_every_producer_that_waits(threads: int) -> None:
    with ring(threads=threads, budget=6 * PAGE, wanted=3) as made:
        fill_up(made)
        waiting = [Elsewhere(lambda t=t: put(made, 1, thread=t)) for t in range(threads)]
        made.say_stop()
        assert all(isinstance(w.ended_with(), Stopped) for w in waiting)


def test_stopped_passes_a_users_except_clause() -> None:
    assert not issubclass(Stopped, Exception)


def test_a_batch_that_does_not_fit_the_memory_says_what_would() -> None:
    with ring(budget=4 * PAGE) as made, pytest.raises(OptionError) as caught:
        put(made, rows_of(2 * PAGE))
    said = (
        f"{4 * PAGE} bytes",
        f"room for 2 slots of {2 * PAGE} bytes",
        "at least 3",
        "Raise memory=",
    )
    assert not [text for text in said if text not in str(caught.value)]


def test_growth_takes_what_fits_where_a_quarter_more_does_not() -> None:
    """Slots of 8 pages in a budget of 27: three of 9 pages fit, three of 10 do not."""
    with ring(budget=27 * PAGE, wanted=3) as made:
        put(made, rows_of(8 * PAGE))
        put(made, rows_of(8 * PAGE) + 1)
        made.take()
        assert len(made.take()[0].leaves[0]) == rows_of(8 * PAGE) + 1
        assert made.reader.slot_nbytes == 9 * PAGE


def test_growth_leaves_room_for_growth() -> None:
    """Batches that become a little larger each time must not add a block each time."""
    sizes = set()
    with ring(budget=2**26) as made:
        for rows in range(1000, 2000, 10):
            put(made, rows)
            made.take()
            made.give_back()
            sizes.add(made.reader.slot_nbytes)
    assert len(sizes) < 6


def test_old_memory_is_unmapped_when_its_last_slot_has_come_back() -> None:
    gc.collect()
    before = mapped_nbytes()
    with ring(budget=2**26, wanted=4) as made:
        put(made, rows_of(2**20))
        held, _ = made.take()
        # The free slots of the old block go at once, this one when it is dropped.
        for _ in range(3):
            put(made, rows_of(2**21))
            made.take()
            made.give_back()
        both = mapped_nbytes() - before
        assert leaves_equal(held.leaves, checked(ROW, [1] * rows_of(2**20))[1].leaves)
        del held
        made.give_back()
        for _ in range(3):
            put(made, rows_of(2**21))
            made.take()
            made.give_back()
        gc.collect()
        new = len(made.current) * made.reader.slot_nbytes
        assert mapped_nbytes() - before == 2 * new < both, "mapped by both ends, and nothing else"
    del made
    gc.collect()
    assert mapped_nbytes() == before


def test_memory_outlives_everything_but_its_last_view() -> None:
    gc.collect()
    before = mapped_nbytes()
    with ring() as made:
        put(made, 3, 7)
        view = made.take()[0].leaves[0][1:]
    del made
    gc.collect()
    assert mapped_nbytes() > before
    assert view.tolist() == [[7] * 4] * 2
    del view
    gc.collect()
    assert mapped_nbytes() == before


def test_numbers_of_slots_do_not_run_out() -> None:
    """Slots grow from the smallest to the largest size with 200 producers; each growth takes new
    numbers."""
    share, nbytes, used = MemoryShare(budget=2**36, wanted=4 * 200 + 201, threads=200), PAGE, 0
    while share.fits(nbytes):
        used += share.slots(nbytes)
        nbytes = slot_nbytes(int(nbytes * GROWTH))
    assert used <= SLOT_STATES_NBYTES


def test_a_buffer_that_is_yielded_twice_is_refused() -> None:
    with ring() as made:
        spec, like = checked((ROW, ROW), [3, 3])
        arrays = made.outlets[0].allocate([(a.shape, a.dtype) for a in like.leaves])
        for array in arrays:
            array[...] = 5
        batch = spec.check(tuple(arrays), "the batch")
        made.put(batch, spec)
        for again in (
            batch.leaves,
            (batch.leaves[0][:1], batch.leaves[1][:1]),
            (like.leaves[0], batch.leaves[1]),
        ):
            with pytest.raises(
                StateError, match=r"yielded twice.*Call worker\.empty\(\) again for each batch"
            ):
                made.put(spec.check(tuple(again), "the batch"), spec)
        assert made.reader.audit().ready == 1
        assert all((leaf == 5).all() for leaf in made.take()[0].leaves)


def test_a_leaf_without_elements_does_not_reach_into_the_next_slot() -> None:
    """The leaf lies at the end of its slot, where the next one begins."""
    template = Leaf("i1", (PAGE,)), Leaf("i8", (0,))
    with ring() as made:
        spec, like = checked(template, [1])
        for value in (1, 2, 3):
            arrays = made.outlets[0].allocate([(a.shape, a.dtype) for a in like.leaves])
            arrays[0][...] = value
            made.put(spec.check(tuple(arrays), "the batch"), spec)
        for value in (1, 2, 3):
            leaves = made.take()[0].leaves
            assert [leaf.shape for leaf in leaves] == [(1, PAGE), (1, 0)]
            assert set(leaves[0].flat) == {value}


def test_hoarding_is_refused_and_said() -> None:
    with ring(budget=3 * PAGE) as made:
        blanks = [((2, 4), np.dtype("i8"))]
        hoard = [made.outlets[0].allocate(blanks) for _ in range(3)]
        with pytest.raises(StateError, match=r"all 3 slots are held.*without a yield"):
            made.outlets[0].allocate(blanks)
        hoard.pop()
        assert made.outlets[0].allocate(blanks)


@pytest.mark.parametrize("template", [ROW, BYTES])
def test_records_of_bytes_and_numbers_go_the_same_way(template: Any) -> None:
    with ring(budget=2**24) as made:
        spec, _ = checked(template, [1])
        for value in range(50):
            batch = spec.check(make(template, [value] * (1 + value * 7)), "the batch")
            made.put(batch, spec)
            have, _ = made.take()
            assert leaves_equal(have.leaves, batch.leaves)
            assert have.nbytes == batch.nbytes
            del have
            made.give_back()


def test_when_slots_are_scarce_the_consumer_gets_copies_and_keeps_them() -> None:
    with ring(budget=5 * PAGE, wanted=5) as made:
        held, copies = [], 0
        for value in range(20):
            put(made, 2, value)
            batch, copied = made.take()
            held.append(batch.leaves[0])
            copies += copied
            made.give_back()
        assert [set(a.flat) for a in held] == [{value} for value in range(20)]
        assert copies == 20 - (5 - 2), "one slot to fill and one that is ready are always left"


def test_a_producer_with_a_lower_ticket_always_gets_its_slot() -> None:
    """The producer with ticket 0 is slow; the other fills as many slots as it may and must leave
    one."""
    with ring(threads=2, budget=5 * PAGE, wanted=5) as made:
        slow, quick = made.outlets
        slow.begin(0)

        def fill() -> None:
            for ticket in range(1, 10):
                quick.begin(ticket)
                put(made, 1, ticket, thread=1, key=ticket)

        filling = Elsewhere(fill)
        put(made, 1, 0, thread=0, key=0)
        keys = []
        while len(keys) < 10:
            token = made.token()
            if token is not None:
                made.handle.await_memory(token[2])
                made.reader.lend(token[2], made.handle.spec, rows=token[5], room=token[6])
                keys.append(token[3])
            made.give_back()
        assert filling.ended_with() is None
        assert sorted(keys) == list(range(10))
