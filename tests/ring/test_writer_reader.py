"""Both ends of a ring against a model: no batch in use ever changes, and no slot is lost, in any
order of filling, lending, viewing and dropping."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fastfeed.core.batch import Batch
from tests.helpers.batches import checked, make, templates
from tests.helpers.rings import Ring, leaves_equal

# With records of up to 100 bytes: some fit into a page, some make the ring grow.
SIZES = [1, 2, 3, 40, 700]


def in_slots(leaves: Any) -> bool:
    """Return True if a batch holds its slot; one of objects only is a copy from the beginning."""
    return any(leaf.dtype != object for leaf in leaves)


class RingMachine(RuleBasedStateMachine):
    """A producer, a consumer, and a model with the values and the owner of every batch."""

    @initialize(template=templates, wanted=st.integers(3, 8))
    def begin(self, template: Any, wanted: int) -> None:
        self.template = template
        self.ring = Ring(wanted=wanted)
        self.spec, _ = checked(template, [0])
        self.number = 0
        # In the user's code: arrays, their values, lent.
        self.drafts: list[tuple[Any, Batch, bool]] = []
        self.sent: list[tuple[np.ndarray, ...]] = []  # on the way to the trainer: copies
        # In the trainer: views, copies, lent.
        self.held: list[tuple[Any, tuple[np.ndarray, ...], bool]] = []

    def fresh(self, rows: int) -> Batch:
        self.number += 1
        return self.spec.check(make(self.template, [self.number % 60] * rows), "the batch")

    def send(self, batch: Batch) -> None:
        want = tuple(leaf.copy() for leaf in batch.leaves)
        self.ring.put(batch, self.spec, key=self.number)
        self.sent.append(want)

    @precondition(lambda self: self.ring.free or not self.ring.current)
    @rule(rows=st.sampled_from(SIZES))
    def put_arrays_of_its_own(self, rows: int) -> None:
        self.send(self.fresh(rows))

    @precondition(lambda self: self.ring.free or not self.ring.current)
    @rule(rows=st.sampled_from(SIZES))
    def take_a_buffer(self, rows: int) -> None:
        like = self.fresh(rows)
        if all(leaf.dtype != object for leaf in like.leaves):
            before = self.ring.reader.audit().filling
            arrays = list(self.ring.outlets[0].allocate([(a.shape, a.dtype) for a in like.leaves]))
            lent = self.ring.reader.audit().filling > before
            assert lent or any(leaf.dtype.kind == "S" for leaf in like.leaves), (
                "numbers must be filled in place"
            )
            self.drafts.append((arrays, like, lent))

    @precondition(lambda self: self.drafts)
    @rule(data=st.data())
    def forget_a_buffer(self, data: st.DataObject) -> None:
        self.drafts.pop(data.draw(st.integers(0, len(self.drafts) - 1)))

    @precondition(lambda self: self.drafts and self.ring.free)
    @rule(data=st.data())
    def put_a_buffer(self, data: st.DataObject) -> None:
        """Put it whole, or its first records, or its last, or with one array replaced: what was
        yielded arrives."""
        arrays, like, _ = self.drafts.pop(data.draw(st.integers(0, len(self.drafts) - 1)))
        for array, values in zip(arrays, like.leaves, strict=True):
            assert array.ctypes.data % 64 == 0 or not array.size
            array[...] = values
        way = data.draw(st.sampled_from(["whole", "first", "last", "replaced"]))
        if way == "replaced":
            place = data.draw(st.integers(0, len(arrays) - 1))
            arrays[place] = arrays[place].copy()
        if way in ("first", "last"):
            count = data.draw(st.integers(1, like.rows))
            arrays = [a[:count] if way == "first" else a[-count:] for a in arrays]
        self.send(Batch(tuple(arrays), len(arrays[0]), sum(a.nbytes for a in arrays)))

    @precondition(lambda self: self.sent)
    @rule()
    def take(self) -> None:
        batch, copied = self.ring.take()
        want = self.sent.pop(0)
        assert leaves_equal(batch.leaves, want)
        assert batch.rows == len(want[0])
        assert all(a.ctypes.data % 64 == 0 for a in batch.leaves if a.dtype != object and a.size)
        self.held.append((batch, want, not copied and in_slots(want)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def keep_a_view_only(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.held) - 1))
        batch, want, lent = self.held[place]
        leaves = batch.leaves if isinstance(batch, Batch) else batch
        leaf = data.draw(st.integers(0, len(leaves) - 1))
        if leaves[leaf].dtype != object or not lent:
            self.held[place] = ([leaves[leaf][::2].T], (want[leaf][::2].T,), lent)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))

    @invariant()
    def at_rest(self) -> None:
        """Every held batch is unchanged, and every slot is where the model says."""
        for batch, want, _ in self.held:
            assert leaves_equal(batch.leaves if isinstance(batch, Batch) else batch, want)
        self.ring.give_back()
        audit = self.ring.reader.audit()
        assert audit.lent == sum(lent for *_, lent in self.held)
        assert audit.ready == len(self.sent)
        assert audit.filling == sum(lent for *_, lent in self.drafts)

    def teardown(self) -> None:
        if not hasattr(self, "ring"):
            return
        try:
            self.everything_comes_back()
        finally:
            self.ring.close()

    def everything_comes_back(self) -> None:
        self.drafts.clear()
        while self.sent:
            self.take()
        self.held.clear()
        self.ring.give_back()
        if self.ring.current:
            self.ring.writer._collect()
            assert self.ring.free == self.ring.reader.audit().all == len(self.ring.current), (
                "a slot was lost"
            )


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=60, stateful_step_count=40)
