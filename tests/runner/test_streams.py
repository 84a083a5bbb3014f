"""Promises of every stream, for any producers: each record once in an epoch, in one order that is
the same for 1 and N producers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fastfeed import Shuffle
from tests.helpers.stream_cases import cases, process_mixes, thread_mixes
from tests.helpers.streams import (
    CALLABLES,
    KINDS,
    Case,
    by_epoch,
    epochs,
    flat,
    ids,
    passes,
)

EVERY = tuple(KINDS)
ORDERED = tuple(kind for kind in KINDS if kind not in CALLABLES)
in_threads = settings(max_examples=50)
# To shrink an example that stalls would take longer than the whole test may.
in_processes = settings(max_examples=6, phases=(Phase.explicit, Phase.reuse, Phase.generate))


def check_exact(case: Case, mix: tuple[int, int]) -> None:
    """Check two passes, and the same epochs one by one."""
    per_pass = case.options.get("epochs", 1)
    copies = max(1, mix[0]) * mix[1] if case.kind == "copying" else 1
    wanted = [
        Counter({i: n * copies for i, n in case.wanted(epoch).items()})
        for epoch in range(2 * per_pass)
    ]
    two = passes(case, mix, 2)
    for number, batches in enumerate(two):
        here = range(number * per_pass, (number + 1) * per_pass)
        if case.kind == "copying":  # which does not know its epoch
            assert Counter(ids(batches)) == sum((wanted[e] for e in here), Counter())
        else:
            assert by_epoch(batches) == {e: wanted[e] for e in here}
    singly = epochs(case, mix, per_pass)
    if case.kind not in CALLABLES:
        assert [b for epoch in singly for b in epoch] == two[0]
    assert [Counter(ids(batches)) for batches in singly] == wanted[:per_pass]


def exact_cases(kinds: tuple[str, ...]) -> st.SearchStrategy[Case]:
    return cases(kinds, exact=True).filter(lambda case: "sampler" not in case.options)


@in_threads
@given(exact_cases(EVERY), thread_mixes)
def test_every_record_comes_once_an_epoch_from_threads(case: Case, mix: tuple[int, int]) -> None:
    check_exact(case, mix)


@pytest.mark.slow
@in_processes
@given(exact_cases(EVERY), process_mixes)
def test_every_record_comes_once_an_epoch_from_processes(case: Case, mix: tuple[int, int]) -> None:
    check_exact(case, mix)


def check_same(case: Case, mix: tuple[int, int]) -> None:
    alone, several = passes(case, (0, 1), 2), passes(case, mix, 2)
    if case.one_order:
        assert several == alone
        return
    for one, other in zip(alone, several, strict=True):
        assert sorted(map(len, one)) == sorted(map(len, other)), "batches are cut in another way"
        assert sorted(flat(one)) == sorted(flat(other)), "another multiset, or other draws"
        assert list(by_epoch(one)) == list(by_epoch(other))


@in_threads
@given(cases(ORDERED), thread_mixes)
def test_several_threads_make_what_one_makes(case: Case, mix: tuple[int, int]) -> None:
    check_same(case, mix)


@in_processes
@given(cases(ORDERED), process_mixes)
def test_worker_processes_make_what_one_thread_makes(case: Case, mix: tuple[int, int]) -> None:
    check_same(case, mix)


@settings(max_examples=30)
@given(cases(ORDERED, exact=True), st.integers(1, 4))
def test_a_kept_order_is_the_sources_own(case: Case, threads: int) -> None:
    if case.options.get("shuffle") or case.kind == "mix" or "sampler" in case.options:
        return
    (batches,) = passes(case, (0, threads))
    assert ids(batches) == [*range(case.total)] * case.options.get("epochs", 1)
    size = case.options.get("batch_size", case.size)
    rest = [case.total % size] * (case.total % size > 0)
    assert [len(rows) for rows in batches] == (
        [size] * (case.total // size) + rest
    ) * case.options.get("epochs", 1)


@pytest.mark.parametrize("shuffle", [True, Shuffle(30, 20)], ids=str)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**70), mix=thread_mixes)
def test_a_seed_repeats_and_others_differ(shuffle: Any, seed: int, mix: tuple[int, int]) -> None:
    one, again, other = (
        passes(Case("indexable", 60, 4, {"shuffle": shuffle, "seed": s}), mix, 2)
        for s in (seed, seed, seed + 1)
    )
    assert one == again
    assert ids(one[0]) != ids(one[1]), "two epochs in one order"
    assert ids(one[0]) != ids(other[0])
