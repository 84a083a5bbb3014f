"""Checksums of batches tell the same ones from others, and say what differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.diagnose.proof import DIFFERENT, OTHER_DRAWS, OTHER_ORDER, SAME, UNKNOWN
from fastfeed.diagnose.prove import digests
from fastfeed.diagnose.prove.batch_log import BatchLog
from fastfeed.diagnose.prove.digests import COMPARED_BATCHES, Digests, compared, same_losses
from fastfeed.steps.timeline import Loop

RNG = np.random.default_rng(0)
BATCHES = [(RNG.random((4, 3), dtype=np.float32), np.arange(4) + 4 * n) for n in range(6)]


def digests_of(batches, losses=()) -> Digests:
    found = Digests()
    for batch in batches:
        found.add(batch)
    found.losses = list(losses)
    return found


def test_equal_batches_are_the_same_in_any_container() -> None:
    assert (
        compared(digests_of(BATCHES), digests_of([[x, {"y": y}] for x, y in BATCHES])).word == SAME
    )


def test_tensors_in_place_of_arrays_are_other_batches() -> None:
    torch = pytest.importorskip("torch")
    others = [[torch.from_numpy(x.copy()), torch.from_numpy(y.copy())] for x, y in BATCHES]
    found = compared(digests_of(BATCHES), digests_of(others))
    assert found.word == DIFFERENT
    assert "torch." in found.text


@pytest.mark.parametrize("other", [np.array([1, 2]), np.array([[1, 2]])])
def test_an_array_in_place_of_a_list_is_another_batch(other: Any) -> None:
    assert compared(digests_of([[1, 2]]), digests_of([[1, 2]])).word == SAME
    assert compared(digests_of([[1, 2]]), digests_of([other])).word == DIFFERENT


def test_a_batch_that_is_being_added_is_none_yet() -> None:
    found = digests_of(BATCHES)
    found.rows.append([[1, 2]])
    again = Digests.of_json(found.as_json())
    assert len(again.rows) == len(again.leaves) == len(BATCHES)
    assert compared(digests_of(BATCHES), again).word == SAME


def test_a_shorter_run_is_compared_as_far_as_it_goes() -> None:
    found = compared(digests_of(BATCHES), digests_of(BATCHES[:2]))
    assert found == (SAME, "the first 2 are equal")


@pytest.mark.parametrize("fewer", ["before", "after"])
def test_batches_that_end_earlier_are_not_the_same(fewer: str) -> None:
    few, many = digests_of(BATCHES[:2]), digests_of(BATCHES)
    one, two = (few, many) if fewer == "before" else (many, few)
    assert compared(one, two).word == SAME, "one of the runs was ended by the watch"
    few.ended = True
    assert compared(one, two).word == DIFFERENT
    few.ended, many.ended = False, True
    assert compared(one, two).word == SAME


def test_other_orders_of_the_same_records_are_told() -> None:
    rows = [(x[::-1], y[::-1]) for x, y in BATCHES]
    assert compared(digests_of(BATCHES), digests_of(rows)).word == OTHER_ORDER
    assert compared(digests_of(BATCHES), digests_of(BATCHES[::-1])).word == OTHER_ORDER


def test_what_seeds_change_may_differ_and_nothing_else() -> None:
    one, two, three = ([(RNG.random((4, 3)), np.arange(4)) for _ in range(3)] for _ in range(3))
    assert compared(digests_of(one), digests_of(two)).word == DIFFERENT
    found = compared(digests_of(one), digests_of(two), reseeded=digests_of(three))
    assert found.word == OTHER_DRAWS
    assert "but for their leaf 1" in found.text
    labelled = [(x, y + 1) for x, y in two]
    assert compared(digests_of(one), digests_of(labelled), reseeded=digests_of(three)).word == (
        DIFFERENT
    )


def test_draws_that_repeat_are_not_as_good_as_others() -> None:
    """Several workers that each make the whole of a stream."""
    one, two, three = (np.random.default_rng(seed).random((12, 4, 3)) for seed in range(3))
    before, reseeded = digests_of(one), digests_of(two)
    assert compared(before, digests_of(three), reseeded=reseeded).word == OTHER_DRAWS
    found = compared(before, digests_of([*three[:6], *three[:6]]), reseeded=reseeded)
    assert found == (DIFFERENT, "the first 48 records are 24 different ones in place of 48")
    reseeded = digests_of([*two[:6], *two[:6]])
    assert (
        compared(before, digests_of([*three[:6], *three[:6]]), reseeded=reseeded).word
        == OTHER_DRAWS
    )


def test_shapes_that_seeds_change_may_differ() -> None:
    one, two, three = ([(RNG.random((4, 3 + n)),)] for n in range(3))
    assert "float64[4, 4] in place" in compared(digests_of(one), digests_of(two)).text
    found = compared(digests_of(one), digests_of(two), reseeded=digests_of(three))
    assert found.word == OTHER_DRAWS


def test_constant_leaves_make_no_order() -> None:
    one, two = (
        [(x, np.ones((2, 2))) for x in rows]
        for rows in (RNG.random((6, 8, 3)), np.zeros((6, 8, 3)))
    )
    assert compared(digests_of(one), digests_of(two)).word == DIFFERENT


def test_smaller_batches_of_the_same_records_are_other_batches() -> None:
    rows = RNG.random((8, 4, 3))
    halves = [(half,) for whole in rows for half in (whole[:2], whole[2:])]
    found = compared(digests_of([(one,) for one in rows]), digests_of(halves))
    assert found.word == DIFFERENT
    assert "float64[2, 3] in place of float64[4, 3]" in found.text


class Graph:
    def __init__(self, x: object) -> None:
        self.x = x


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (Graph(np.arange(5000)), Graph(np.arange(5000) * 2)),
        (np.array([b"\xff\xd8"], object), np.array([b"\xff\xd9"], object)),
        (["a", "bcd"], ["a", "bce"]),
    ],
)
def test_objects_and_texts_are_told_apart(one: object, two: object) -> None:
    assert compared(digests_of([one]), digests_of([one])).word == SAME
    assert compared(digests_of([one]), digests_of([two])).word == DIFFERENT


def test_texts_of_other_lengths_may_be_in_another_order() -> None:
    names = np.array(["a", "bcd", "ef", "g"])
    found = compared(digests_of([(names,)] * 2), digests_of([(names[::-1],)] * 2))
    assert found.word == OTHER_ORDER


def test_tensors_without_a_dtype_of_numpy_are_told_apart() -> None:
    torch = pytest.importorskip("torch")
    one = torch.arange(6).to(torch.bfloat16).reshape(2, 3)
    assert compared(digests_of([(one,)]), digests_of([(one,)])).word == SAME
    assert compared(digests_of([(one,)]), digests_of([(one + 1,)])).word == DIFFERENT


def test_batches_without_values_are_not_the_same() -> None:
    class Opaque:
        pass

    nothing = digests_of([None, ()])
    assert compared(nothing, nothing).word == UNKNOWN
    hidden = digests_of([(Opaque(), np.arange(3))])
    assert "Opaque" in hidden.unknown
    assert compared(hidden, hidden).word == UNKNOWN


def test_what_has_no_checksum_is_not_compared() -> None:
    found = digests_of([(np.array([{1}, {2}], object),)] * 2)
    assert "set" in found.unknown
    assert compared(found, found).word == UNKNOWN


def test_what_comes_later_is_another_order() -> None:
    rows = [(one,) for one in RNG.random((40, 4, 3))]
    later = [*rows[1:], (rows[0][0] + 7,)]  # the first one comes behind the end
    assert compared(digests_of(rows), digests_of(later)).word == DIFFERENT
    later = [*rows[:38], rows[39], (rows[0][0] + 7,)]
    assert compared(digests_of(rows), digests_of(later)).word == OTHER_ORDER
    assert compared(digests_of(later), digests_of(rows)).word == OTHER_ORDER


def test_other_dtypes_and_shapes_are_other_batches() -> None:
    wide = [(x.astype(np.float64), y) for x, y in BATCHES]
    found = compared(digests_of(BATCHES), digests_of(wide))
    assert found.word == DIFFERENT
    assert "float64[4, 3]" in found.text
    small = [(x[:2], y[:2]) for x, y in BATCHES]
    assert compared(digests_of(BATCHES), digests_of(small)).word == DIFFERENT


def test_nothing_seen_is_not_called_the_same() -> None:
    assert compared(digests_of(BATCHES), Digests()).word == UNKNOWN


def test_only_the_first_batches_count() -> None:
    found = digests_of([(np.zeros(1),)] * (COMPARED_BATCHES + 50))
    assert len(found.leaves) == COMPARED_BATCHES
    assert found.full


def test_losses_are_compared_only_where_the_original_repeats_its_own() -> None:
    one = digests_of(BATCHES, [1.0, 0.5])
    assert same_losses(one, digests_of(BATCHES, [1.0, 0.5]), again=one) == "same loss after 2 steps"
    assert same_losses(one, digests_of(BATCHES, [1.0, 0.4]), again=one) == (
        "loss 0.5 and 0.4 after 2 steps"
    )
    assert same_losses(one, one, again=digests_of(BATCHES, [1.0, 0.6])) == ""


@given(st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=1, max_size=6))
def test_digests_are_equal_exactly_if_batches_are(values: list[list[int]]) -> None:
    batches = [(np.array(one),) for one in values]
    changed = [(np.array(one) + (n == 0),) for n, one in enumerate(values)]
    assert compared(digests_of(batches), digests_of(batches)).word == SAME
    assert compared(digests_of(batches), digests_of(changed)).word != SAME


def epochs_of(*epochs, shuffled=True) -> Digests:
    """Digests of whole epochs of batches."""
    found = Digests()
    found.shuffled = shuffled
    for batches in epochs:
        for batch in batches:
            found.add(batch)
        found.end_epoch()
    return found


def epoch(order, *, noise=None, labels=None, width=None):
    """Batches of four records, each with a picture and a label."""
    rows = np.arange(12.0) if labels is None else labels
    for n in range(0, 12, 4):
        part = order[n : n + 4]
        pictures = np.repeat(part[:, None], 3, axis=1) + (0 if noise is None else noise.random())
        if width is not None:  # padded to the longest one
            pictures = np.zeros((4, 1 + part.max() % width)) + part[:, None]
        yield pictures, rows[part]


ORDERS = np.array([np.random.default_rng(n).permutation(12) for n in range(6)])


def test_each_epoch_must_hold_the_same_records() -> None:
    before = epochs_of(epoch(ORDERS[0]), epoch(ORDERS[1]))
    assert before.epochs == [3, 6]
    other = epochs_of(epoch(ORDERS[2]), epoch(ORDERS[3]))
    assert compared(before, other) == (OTHER_ORDER, "the first 2 epochs hold the same 24 records")
    twice = ORDERS[3].copy()
    twice[0] = twice[1]
    found = compared(before, epochs_of(epoch(ORDERS[2]), epoch(twice)), reseeded=before)
    assert found.word == DIFFERENT
    assert "epochs hold others in leaf 0, 1" in found.text


def test_what_follows_the_last_whole_epoch_counts() -> None:
    """Such as stale records in the second epoch of which half is seen."""
    before = epochs_of(epoch(ORDERS[0]))
    after = epochs_of(epoch(ORDERS[1]))
    for first, second in zip(epoch(ORDERS[2]), epoch(ORDERS[3]), strict=True):
        before.add(first)
        after.add(second)
    assert compared(before, after).word == OTHER_ORDER
    assert compared(before, after, reseeded=before).word == OTHER_ORDER
    after.add((np.full((4, 3), 99.0), np.arange(4.0)))
    before.add((np.full((4, 3), 98.0), np.arange(4.0)))
    assert compared(before, after, reseeded=before).word == DIFFERENT


def test_epochs_must_end_alike() -> None:
    before = epochs_of(epoch(ORDERS[0]), epoch(ORDERS[1]))
    after = epochs_of((*epoch(ORDERS[2]), *epoch(ORDERS[3])))
    assert compared(before, after) == (DIFFERENT, "an epoch ends after 3 batches in one run only")


def test_random_pictures_do_not_hide_other_labels() -> None:
    """The order is kept under other seeds, so that they do not change the labels."""
    one, two, three = (np.random.default_rng(n) for n in range(3))
    before, reseeded = (
        epochs_of(*(epoch(order, noise=rng) for order in ORDERS[:2])) for rng in (one, two)
    )
    ordered = epochs_of(*(epoch(order, noise=three) for order in ORDERS[2:4]))
    assert compared(before, ordered, reseeded=reseeded).word == OTHER_DRAWS
    labels = np.roll(np.arange(12.0), 1)
    labels[0] = 7
    wrong = epochs_of(*(epoch(order, noise=three, labels=labels) for order in ORDERS[:2]))
    assert compared(before, wrong, reseeded=reseeded).word == DIFFERENT
    assert compared(before, wrong).word == DIFFERENT


def test_what_depends_on_the_others_of_a_batch_may_change_with_the_order() -> None:
    """As padding does, which another order shows."""
    before, after, reordered = (
        epochs_of(*(epoch(order, width=5) for order in ORDERS[n : n + 2])) for n in (0, 2, 4)
    )
    found = compared(before, after, reseeded=before, reordered=reordered)
    assert (found.word, "but for their leaf" in found.text) == (OTHER_DRAWS, False)
    assert compared(before, after, reseeded=before).word == DIFFERENT
    labels = np.arange(12.0) + 1
    wrong = epochs_of(*(epoch(order, width=5, labels=labels) for order in ORDERS[2:4]))
    assert compared(before, wrong, reseeded=before, reordered=reordered).word == DIFFERENT
    before.shuffled = False
    assert compared(before, after, reseeded=before).word == DIFFERENT


def test_many_records_are_compared_by_one_checksum_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MOST_CHECKSUMS", 100)
    before = epochs_of(epoch(ORDERS[0]), epoch(ORDERS[1]))
    assert {len(row) for rows in before.rows for row in rows} == {1}
    assert compared(before, epochs_of(epoch(ORDERS[2]), epoch(ORDERS[3]))).word == OTHER_ORDER


@given(st.permutations(range(12)), st.permutations(range(12)), st.integers(0, 11))
def test_any_order_of_an_epoch_passes_and_no_other_record(
    one: list[int], two: list[int], place: int
) -> None:
    before = epochs_of(epoch(np.array(one)))
    assert compared(before, epochs_of(epoch(np.array(two)))).word in (SAME, OTHER_ORDER)
    wrong = np.array(two)
    wrong[place] = (wrong[place] + 1) % 12
    assert compared(before, epochs_of(epoch(wrong)), reseeded=before).word == DIFFERENT


def test_digests_survive_json() -> None:
    import json

    one = digests_of(BATCHES, [0.5])
    two = Digests.of_json(json.loads(json.dumps(one.as_json())))
    assert compared(one, two).word == SAME
    assert two.records(0, 6) == one.records(0, 6)
    assert two.losses == [0.5]


@pytest.mark.parametrize(("waits", "counted"), [("none", 1), ("hidden", 0), ("modelled", 0)])
def test_what_is_fed_beside_batches_of_a_graph_is_no_batch(waits: str, counted: int) -> None:
    log = BatchLog(10)
    log.fed.add([np.float32(0.5)])  # as a learning rate
    loop = Loop("Session.run", "session", 1, waits=waits)
    assert len(log.digests_of(loop).leaves) == counted
    log.queued.add([np.zeros((4, 2)), np.zeros(4)])  # by threads that fill a queue
    assert len(log.digests_of(loop).leaves[0]) == (counted or 2)
