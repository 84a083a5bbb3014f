"""state() and restore(): a new runner with other producers continues the same stream after any
interruption."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from fastfeed import FeedRunner
from tests.helpers.stream_cases import any_mixes, cases, moved_orders, thread_mixes
from tests.helpers.streams import (
    CALLABLES,
    KINDS,
    SEED,
    Case,
    Rows,
    by_epoch,
    epochs,
    flat,
    play,
)

ORDERED = tuple(kind for kind in KINDS if kind not in CALLABLES)
# that is what is tested here
QUIET = pytest.mark.filterwarnings("ignore:the state is .* the epoch")
in_threads = settings(max_examples=50, suppress_health_check=[HealthCheck.filter_too_much])
in_processes = settings(max_examples=5, phases=(Phase.explicit, Phase.reuse, Phase.generate))
pytestmark = QUIET
cuts = st.lists(st.integers(0, 12), min_size=1, max_size=3)


def place(state: Any) -> Any:
    """Return the position in a state."""
    return {key: value for key, value in state.items() if key not in ("batches", "records")}


def interrupted(case: Case, mixes: list[tuple[int, int]], cut: list[int]) -> list[Rows]:
    """Return the batches of several runners, each of which continues after the one before."""
    found: list[Rows] = []
    state = None
    for mix, count in zip(mixes, cut, strict=False):
        more, state = play(case, mix, count, state)
        assert place(state) == place(play(case, mix, 0, state)[1]), (
            "what nobody has taken from changes nothing"
        )
        found += more
    return found


def check_resumed(case: Case, mixes: list[tuple[int, int]], cut: list[int]) -> None:
    cut = cut[: len(mixes)]
    whole, end = play(case, (0, 1), sum(cut))
    found = interrupted(case, mixes, cut)
    if case.one_order:
        assert found == whole
        last = play(case, mixes[-1], 5, end)[0]
        assert last == play(case, (0, 1), sum(cut) + 5)[0][sum(cut) :]
        return
    complete = [epoch for epoch in by_epoch(found) if epoch < found[-1][0][1]] if found else []
    for epoch in complete:
        assert by_epoch(found)[epoch] == by_epoch(whole)[epoch]


@in_threads
@given(cases(ORDERED), st.lists(thread_mixes, min_size=3, max_size=3), cuts)
def test_the_very_stream_goes_on_in_threads(
    case: Case, mixes: list[tuple[int, int]], cut: list[int]
) -> None:
    check_resumed(case, mixes, cut)


@in_processes
@given(cases(ORDERED), st.lists(any_mixes, min_size=2, max_size=2), cuts)
def test_the_very_stream_goes_on_in_processes(
    case: Case, mixes: list[tuple[int, int]], cut: list[int]
) -> None:
    check_resumed(case, mixes, cut)


def check_exact_epochs(case: Case, mixes: list[tuple[int, int]], cut: list[int]) -> None:
    """Check for any interruption that every record comes exactly once in an epoch."""
    per_epoch = -(-sum(case.wanted(0).values()) // (case.options.get("batch_size") or case.size))
    enough = [*cut, 3 * per_epoch + len(cut)]
    found = interrupted(case, [*mixes, mixes[0]][: len(enough)], enough)
    counted = by_epoch(found)
    last = found[-1][0][1]
    assert sorted(counted) == list(range(last + 1)), "epochs are left out"
    for epoch in range(last):
        assert counted[epoch] == case.wanted(epoch), f"epoch {epoch}"
    assert counted[last] <= case.wanted(last)
    assert [rows[0][1] for rows in found] == sorted(rows[0][1] for rows in found)


def whole_epochs(kinds: tuple[str, ...]) -> st.SearchStrategy[Case]:
    return cases(kinds, exact=True).filter(
        lambda case: "sampler" not in case.options and case.kind != "copying"
    )


@st.composite
def unordered(draw: st.DrawFn) -> Case:
    """Streams whose order depends on timing."""
    case = draw(whole_epochs(tuple(KINDS)))
    order = draw(st.sampled_from(moved_orders(case.kind)))
    return Case(case.kind, case.total, case.size, {**case.options, "order": order})


@in_threads
@given(unordered(), st.lists(st.integers(1, 4), min_size=3, max_size=3), cuts)
def test_epochs_stay_exact_in_any_order(case: Case, threads: list[int], cut: list[int]) -> None:
    check_exact_epochs(case, [(0, n) for n in threads], cut)


@in_processes
@given(unordered(), st.lists(any_mixes, min_size=2, max_size=2), cuts)
def test_epochs_stay_exact_in_processes(
    case: Case, mixes: list[tuple[int, int]], cut: list[int]
) -> None:
    check_exact_epochs(case, mixes, cut[:2])


def events(runner: FeedRunner) -> Iterator[Rows | None]:
    """Yield the batches of one loop after another, and None at the end of each."""
    while True:
        for batch in runner:
            yield batch.tolist()
        yield None


def next_loops(found: Iterator[Rows | None], case: Case) -> list[list[Rows] | Rows]:
    """Return the batches of two loops; their sorted records where time decides on the order."""
    loops = [list(iter(lambda: next(found), None)) for _ in range(2)]
    return loops if case.one_order else [sorted(flat(loop)) for loop in loops]


def check_goes_on(case: Case, mixes: list[tuple[int, int]], at: int) -> None:
    with case.runner(mixes[0]) as first:
        found = events(first)
        list(islice(found, at))
        state = first.state()
        with case.runner(mixes[1], state) as then:
            assert next_loops(events(then), case) == next_loops(found, case)


@in_threads
@given(cases(), st.lists(thread_mixes, min_size=2, max_size=2), st.integers(0, 12))
@example(Case("indexable", 6, 3, {"epochs": 2}), [(0, 1), (0, 2)], 4)
@example(Case("indexable", 5, 3, {"epochs": 2}), [(0, 1), (0, 2)], 4)
@example(Case("iterable", 5, 3, {"epochs": 2, "batch_size": 2}), [(0, 1), (0, 2)], 7)
@example(Case("skipping", 5, 3, {"epochs": 1}), [(0, 1), (0, 2)], 2)
def test_a_restored_runner_goes_on_as_the_first_one_does(
    case: Case, mixes: list[tuple[int, int]], at: int
) -> None:
    """Also at the end of a run: in its loop nothing is left, and after it the next run begins."""
    check_goes_on(case, mixes, at)


@in_processes
@given(cases(), st.lists(any_mixes, min_size=2, max_size=2), st.integers(0, 8))
@example(Case("records", 5, 3, {"epochs": 2}), [(1, 2), (1, 1)], 4)
@example(Case("sharing", 6, 3, {"epochs": 1}), [(1, 2), (2, 1)], 2)
def test_it_goes_on_in_processes(case: Case, mixes: list[tuple[int, int]], at: int) -> None:
    check_goes_on(case, mixes, at)


@pytest.mark.parametrize("total", [6, 5])
def test_an_iterator_that_was_delivered_gives_nothing_more(total: int) -> None:
    def runner_of() -> FeedRunner:
        return FeedRunner(iter(range(total)), records=True, batch_size=3, seed=SEED)

    with runner_of() as runner:
        states = [runner.state() for _ in runner]
    with runner_of().restore(states[-1]) as runner:
        assert list(runner) == []


@pytest.mark.parametrize("total", [6, 5])
def test_epochs_end_where_they_would_have(total: int) -> None:
    case = Case("indexable", total, 3, {"epochs": 2})
    with case.runner((0, 1)) as runner:
        state = [runner.state() for epoch in runner.epochs() for _ in epoch][-1]
    with case.runner((0, 2), state) as runner:
        assert [(epoch.number, list(epoch)) for epoch in runner.epochs()] == [(1, [])]
        assert [epoch.number for epoch in runner.epochs()] == [2, 3]


@st.composite
def positions(draw: st.DrawFn) -> tuple[int, int, int]:
    """Draw an epoch, a number of its batches, and the number of epochs in a run."""
    return draw(st.integers(0, 3)), draw(st.integers(0, 9)), draw(st.integers(1, 3))


@in_threads
@given(cases(ORDERED, exact=True), positions(), thread_mixes, thread_mixes)
def test_epochs_go_on_inside_and_between(
    case: Case, at: tuple[int, int, int], mix: Any, then: Any
) -> None:
    """state() is called inside the loops of runner.epochs()."""
    if case.options.get("order") == "any":
        return
    case.options.pop("epochs", None)
    number, batches, _ = at
    wanted = epochs(case, mix, 6)
    found: list[tuple[int, Rows]] = []
    with case.runner(mix) as runner:
        for epoch in runner.epochs():
            limit = batches if epoch.number == number else None
            found += [(epoch.number, b.tolist()) for b in islice(epoch, limit)]
            if epoch.number == number:
                break
        state = runner.state()
    with case.runner(then, state) as runner:
        for epoch in runner.epochs():
            if epoch.number == 6:
                break
            found += [(epoch.number, b.tolist()) for b in epoch]
    assert found == [(e, rows) for e, part in enumerate(wanted) for rows in part]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mix", [(0, 1), (0, 3)], ids=str)
def test_a_state_is_small_and_the_same_before_and_after_it_is_restored(
    kind: str, mix: tuple[int, int]
) -> None:
    case = Case(kind, 40, 4)
    with case.runner(mix) as runner:
        before = runner.state()
        list(islice(runner, 3))
        now = runner.state()
    assert (before["batches"], now["batches"], now["seed"]) == (0, 3, SEED)
    assert len(str(now)) < 700
    restored = case.runner(mix, now).state()
    assert restored == now, "its counts go on, too"
