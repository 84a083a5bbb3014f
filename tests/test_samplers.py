"""Samplers draw in the promised proportions, and the same for the same seed and epoch."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import FeedRunner, OptionError, Shard, Shuffle
from fastfeed.core.order import Recipe, order_of
from fastfeed.samplers import Balanced, Pairs, Weighted


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1e308), min_size=1, max_size=6), st.integers(0, 5))
def test_weights_are_the_proportions(weights: list[float], seed: int) -> None:
    weights = [*weights, 1.0]
    shares = np.array(weights) / max(weights)
    shares /= shares.sum()
    found = Weighted(weights, count=20_000).indices(seed, 0, length=len(weights))
    counts = np.bincount(found, minlength=len(weights))
    assert counts.sum() == 20_000
    assert not counts[shares == 0].any()
    assert (abs(counts - shares * 20_000) <= 6 * np.sqrt(shares * 20_000) + 9).all()


@settings(max_examples=60)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 300))
def test_classes_are_balanced(labels: list[int], count: int) -> None:
    found = Balanced(labels, count).indices(1, 2, length=len(labels))
    assert len(found) == count
    drawn = np.array(labels)[found]
    classes = np.unique(labels)
    by_class = [int((drawn == c).sum()) for c in classes]
    assert max(by_class) - min(by_class) <= 1
    for c in classes:
        by_record = np.bincount(found[drawn == c], minlength=len(labels))[np.array(labels) == c]
        assert by_record.max() - by_record.min() <= 1
    for start in range(0, count - len(classes) + 1, len(classes)):
        assert set(drawn[start : start + len(classes)]) == set(classes)


def test_a_record_comes_again_only_after_all_of_its_class() -> None:
    labels = np.repeat(["cat", "dog"], [3, 40])
    found = Balanced(labels, 240).indices(0, 0, length=43)
    cats = found[found < 3].reshape(-1, 3)
    assert (np.sort(cats, axis=1) == [0, 1, 2]).all()
    assert len({tuple(row) for row in cats.tolist()}) == 6, "each pass has an order of its own"
    assert {int(i) for i in found[0::2] < 3} == {0, 1}, "the order in a round is random"


@st.composite
def pair_cases(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """Labels of classes of two records or more, a batch size, and the batches of an epoch."""
    sizes = draw(st.lists(st.integers(2, 7), min_size=1, max_size=8))
    labels = draw(st.permutations([c for c, size in enumerate(sizes) for _ in range(size)]))
    return labels, 2 * draw(st.integers(1, len(sizes))), draw(st.integers(1, 20))


def check_batches(labels: Any, batches: np.ndarray) -> None:
    """Check (batches, pairs, 2) indices: two records of one class, and classes that differ."""
    assert (batches[..., 0] != batches[..., 1]).all()
    classes = np.asarray(labels)[batches]
    assert (classes[..., 0] == classes[..., 1]).all()
    assert all(len(set(batch)) == len(batch) for batch in classes[..., 0].tolist())


@settings(max_examples=150)
@given(pair_cases(), st.integers(0, 3))
def test_pairs(case: tuple[list[int], int, int], epoch: int) -> None:
    labels, size, batches = case
    found = Pairs(labels, size, count=size * batches).indices(1, epoch, length=len(labels))
    check_batches(labels, found.reshape(batches, size // 2, 2))
    by_class = np.bincount(np.array(labels)[found]) // 2
    assert len(by_class) == max(labels) + 1 or by_class.max() <= 1
    by_class.resize(max(labels) + 1)
    assert by_class.max() - by_class.min() <= 1
    by_record = np.bincount(found, minlength=len(labels))
    for c in range(max(labels) + 1):
        mine = by_record[np.array(labels) == c]
        assert mine.max() - mine.min() <= 1


@settings(max_examples=60)
@given(pair_cases(), st.integers(1, 5), st.sampled_from(["drop", "pad"]))
def test_ranks_take_whole_batches_of_pairs(
    case: tuple[list[int], int, int], world: int, remainder: str
) -> None:
    labels, size, batches = case
    sampler = Pairs(labels, size, count=size * max(batches, world))
    whole = sampler.indices(0, 2, length=len(labels)).reshape(-1, size)
    ranks = []
    for rank in range(world):
        recipe = Recipe(sampler=sampler, shard=Shard(rank, world, remainder))
        order = order_of(len(labels), seed=0, epoch=2, recipe=recipe)
        ranks.append(np.reshape(order.indices(0, order.length), (-1, size)))
        check_batches(labels, ranks[-1].reshape(-1, size // 2, 2))
    each = len(whole) // world if remainder == "drop" else -(-len(whole) // world)
    dealt = np.stack(ranks, axis=1).reshape(-1, size)
    assert (dealt == np.concatenate([whole, whole])[: each * world]).all()


@st.composite
def domain_cases(draw: st.DrawFn) -> tuple[list[int], list[bool], int, int]:
    """Labels and domains of classes of a record or more in each, a batch size, and the batches of
    an epoch."""
    sizes = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=6))
    records = [(c, d) for c, size in enumerate(sizes) for d in (0, 1) for _ in range(size[d])]
    labels, domains = zip(*draw(st.permutations(records)), strict=True)
    batches = draw(st.integers(1, 20))
    return list(labels), [d == 0 for d in domains], 2 * draw(st.integers(1, len(sizes))), batches


@settings(max_examples=150)
@given(domain_cases(), st.integers(0, 3))
def test_pairs_cross_two_domains(case: tuple[list[int], list[bool], int, int], epoch: int) -> None:
    labels, anchors, size, batches = case
    sampler = Pairs(labels, size, anchors=anchors, count=size * batches)
    found = sampler.indices(1, epoch, length=len(labels))
    check_batches(labels, found.reshape(batches, size // 2, 2))
    domain, classes = np.array(anchors), np.array(labels)
    assert domain[found[0::2]].all() and not domain[found[1::2]].any()
    by_class = np.bincount(classes[found], minlength=max(labels) + 1) // 2
    assert by_class.max() - by_class.min() <= 1
    by_record = np.bincount(found, minlength=len(labels))
    for c in range(max(labels) + 1):
        for part in (domain, ~domain):
            mine = by_record[(classes == c) & part]
            assert mine.max() - mine.min() <= 1
    assert np.array_equal(found, sampler.indices(1, epoch, length=len(labels)))


def test_pairs_vary_between_epochs_and_use_all_records() -> None:
    labels = np.repeat(np.arange(10), 20)
    sampler = Pairs(labels, 20)
    epochs = [sampler.indices(0, epoch, length=200) for epoch in range(3)]
    assert all((np.bincount(found) == 1).all() for found in epochs), "200 draws of 200 records"
    pairs = [{frozenset(p) for p in found.reshape(-1, 2).tolist()} for found in epochs]
    assert len(pairs[0] & pairs[1] & pairs[2]) < 5
    orders = {tuple(labels[found[::2]][:10].tolist()) for found in epochs}
    assert len(orders) == 3, "the order of the classes varies, too"


def test_a_large_number_of_small_classes() -> None:
    labels = np.arange(200_000) // 2
    found = Pairs(labels, 2048).indices(0, 0, length=len(labels)).reshape(-1, 1024, 2)
    assert len(found) == 97
    check_batches(labels, found[::48])


@pytest.mark.parametrize("anchors", [None, np.arange(60) % 5 < 2], ids=["one domain", "two"])
@pytest.mark.parametrize("producers", [{"threads": 1}, {"threads": 3}, {"processes": 2}])
def test_a_runner_makes_batches_of_pairs_and_resumes(
    producers: dict[str, int], anchors: Any
) -> None:
    labels = np.arange(60) % 12
    sampler = Pairs(labels, 16, anchors=anchors, count=96)
    options: dict[str, Any] = {
        "batch_size": 16,
        "sampler": sampler,
        "seed": 4,
        "epochs": 2,
        "shard": (1, 2),
        **producers,
    }
    with FeedRunner(np.arange(60), **options) as runner:
        assert len(runner) == 6
        whole = [batch.copy() for batch in runner]
    every = [sampler.indices(4, epoch, length=60).reshape(-1, 16)[1::2] for epoch in range(2)]
    assert np.array_equal(np.stack(whole), np.concatenate(every)), "for any number of producers"
    check_batches(labels, np.stack(whole).reshape(6, 8, 2))
    with FeedRunner(np.arange(60), **options) as runner:
        feed = iter(runner)
        for _ in range(4):
            next(feed)
        state = runner.state()
    with FeedRunner(np.arange(60), **options) as runner:
        runner.restore(state)
        assert np.array_equal(np.stack(list(runner)), np.stack(whole[4:]))
    others = [Pairs(labels, 16, anchors=anchors, count=64)]
    others += [Pairs(labels, 16, anchors=np.arange(60) % 5 < 3, count=96)]
    for other in others:
        with (
            FeedRunner(np.arange(60), **{**options, "sampler": other}) as runner,
            pytest.raises(OptionError, match="sampler"),
        ):
            runner.restore(state)


@pytest.mark.parametrize(
    ("labels", "batch_size", "said"),
    [
        ("aabcc", 2, "needs two records .* 1 of 3 classes have one: 'b' .*record 2"),
        (range(7), 2, r"7 of 7 classes have one: 0, 1, 2, 3, 4, \.\.\. .*record 0"),
        ("aabb", 6, "is 3 pairs of different classes, but the labels have 2 classes: .* to 4 or"),
        ("aabb", 3, "must be an even integer >= 2, got 3"),
        ("aabb", 0, "must be an even integer >= 2, got 0"),
        ("aabb", True, "must be an even integer >= 2, got True"),
        ("", 2, "labels must be one-dimensional"),
    ],
)
def test_labels_that_give_no_pairs(labels: Any, batch_size: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Pairs(list(labels), batch_size)


@pytest.mark.parametrize(
    ("anchors", "said"),
    [
        ("yynyyn", "1 of 3 classes have no record where anchors is False: 'a'; leave .* out"),
        ("nnynyn", "1 of 3 classes have no record where anchors is True: 'a'; .* or add records"),
        ("nnnnnn", "3 of 3 classes have no record where anchors is True: 'a', 'b', 'c'; leave"),
    ],
)
def test_a_class_without_a_record_in_both_domains(anchors: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Pairs(list("aabbcc"), 2, anchors=[letter == "y" for letter in anchors])


@pytest.mark.parametrize(
    ("anchors", "said"),
    [
        ([1, 0, 1, 0], "a bool for each label, .* got 4 of dtype int64 for 4"),
        (["street", "shop"] * 2, "a bool for each label, .* got 4 of dtype <U6 for 4"),
        ([True, False], "a bool for each label, .* got 2 of dtype bool for 4"),
        (True, "anchors must be one-dimensional"),
    ],
)
def test_anchors_that_are_no_mask(anchors: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Pairs(list("aabb"), 2, anchors=anchors)


@pytest.mark.parametrize(("count", "said"), [(6, "multiple of batch_size=4, got 6"), (0, ">= 1")])
def test_an_epoch_that_is_no_whole_number_of_batches(count: int, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Pairs([0, 0, 1, 1], 4, count=count)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 2}, "makes batches of 4 records, .* batch_size=2"),
        ({"batch_size": 4, "filter": bool}, "filter= would separate"),
        ({"batch_size": 4, "on_error": "skip"}, 'on_error="skip" would separate'),
        ({"batch_size": 4, "shuffle": Shuffle(10, 5)}, "shuffle=.* would separate"),
        ({"batch_size": 4, "shard": (0, 3)}, "2 groups of 4 records are 0 for each of 3 ranks"),
    ],
)
def test_options_that_would_separate_pairs(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        FeedRunner(range(8), sampler=Pairs([0, 1] * 4, 4), **options)


def test_a_session_does_not_shuffle_pairs() -> None:
    tf = pytest.importorskip("tensorflow")
    labels = np.arange(200) % 20
    sampler = Pairs(labels, 8)
    with tf.Graph().as_default(), FeedRunner(labels, batch_size=8, sampler=sampler) as runner:
        tensor = runner.get_inputs()
        with tf.compat.v1.Session() as session:
            runner.start(session)
            for _ in range(5):
                batch = session.run(tensor).reshape(4, 2)
                assert (batch[:, 0] == batch[:, 1]).all()


@pytest.mark.parametrize(
    "sampler",
    [
        Weighted(np.arange(50)),
        Balanced(np.arange(50) % 3),
        Balanced(list("ab") * 25),
        Pairs(np.arange(50) % 5, 10),
        Pairs(np.arange(50) % 5, 10, anchors=np.arange(50) < 20),
    ],
)
def test_the_same_draw_for_the_same_seed_and_epoch(sampler: Any) -> None:
    draws = {at: tuple(sampler.indices(*at, length=50)) for at in [(0, 0), (0, 1), (1, 0)]}
    assert len(set(draws.values())) == 3
    assert all(tuple(sampler.indices(*at, length=50)) == draw for at, draw in draws.items())
    assert all(len(draw) == 50 for draw in draws.values())
    order = order_of(50, seed=0, epoch=1, recipe=Recipe(sampler=sampler))
    assert tuple(order.indices(0, 50)) == draws[0, 1]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -1], "must be finite numbers >= 0, got -1 at index 1"),
        ([1, float("nan"), 2], "got nan at index 1"),
        ([float("inf")], "got inf at index 0"),
        ([0, 0.0], "at least one > 0, got 2 zeros"),
        ([], r"got shape \(0,\)"),
        ([[1, 2]], r"got shape \(1, 2\)"),
        (3, r"got shape \(\)"),
        ([[1], [2, 3]], "must be one-dimensional, one for each record"),
        (["a"], "must be numbers"),
    ],
)
def test_wrong_weights(weights: Any, message: str) -> None:
    with pytest.raises(OptionError, match=f"weights .*{message}"):
        Weighted(weights)


@pytest.mark.parametrize("labels", [[], [[1, 2]], 3, [[1], [2, 3]], np.array([1, "a"], object)])
def test_wrong_labels(labels: Any) -> None:
    with pytest.raises(OptionError, match="labels must be"):
        Balanced(labels)


@pytest.mark.parametrize("count", [0, -1, 1.0, True, "2"])
@pytest.mark.parametrize("sampler", [Weighted, Balanced])
def test_wrong_counts(sampler: Any, count: Any) -> None:
    with pytest.raises(OptionError, match="count .*must be None or an integer >= 1, got"):
        sampler([1, 2], count)


@pytest.mark.parametrize("sampler", [Weighted([1, 2]), Balanced([1, 2]), Pairs([1, 1], 2)])
def test_another_length(sampler: Any) -> None:
    with pytest.raises(
        OptionError,
        match=r"must have one .* for each record, got 2 (weights|labels) for 3 records",
    ):
        sampler.indices(0, 0, length=3)


DRAWING: dict[str, Any] = {  # samplers of torch that draw anew in each iteration
    "weighted": lambda data, g: data.WeightedRandomSampler([1, 2, 3] * 10, 40, generator=g),
    "replacement": lambda data, g: data.RandomSampler(range(30), True, 40, generator=g),
    "permutation": lambda data, g: data.RandomSampler(range(30), generator=g),
    "subset": lambda data, g: data.SubsetRandomSampler(range(5, 25), generator=g),
}


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("kind", DRAWING)
def test_samplers_of_torch_draw_the_same_after_an_interruption(kind: str, *, seeded: bool) -> None:
    torch = pytest.importorskip("torch")

    def sampler() -> Any:
        generator = torch.Generator().manual_seed(5) if seeded else None
        return DRAWING[kind](torch.utils.data, generator)

    def runner(**producers: int) -> FeedRunner:
        return FeedRunner(range(30), batch_size=4, seed=3, sampler=sampler(), epochs=3, **producers)

    before = torch.get_rng_state()
    with runner() as feed:
        epochs = [np.concatenate(list(epoch)).tolist() for epoch in islice(feed.epochs(), 3)]
    assert torch.equal(torch.get_rng_state(), before), "the draws of the training stay"
    assert len(set(map(tuple, epochs))) == 3
    if seeded:
        assert epochs[0] == list(sampler())
    if kind in ("permutation", "subset"):
        assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    whole = [n for epoch in epochs for n in epoch]
    for producers in ({"threads": 3}, {"processes": 1}):
        with runner(**producers) as feed:
            batches = list(islice(feed, len(epochs[0]) // 4 + 2))
            state = feed.state()
        with runner(threads=2).restore(state) as feed:
            assert np.concatenate([*batches, *feed]).tolist() == whole


@pytest.mark.parametrize("producers", [{"threads": 1}, {"threads": 3}, {"processes": 1}], ids=str)
@pytest.mark.parametrize("kind", ["tensor", "array", "series"])
def test_arrays_of_indices(kind: str, producers: dict[str, int]) -> None:
    torch, pandas = pytest.importorskip("torch"), pytest.importorskip("pandas")
    make = {"tensor": torch.tensor, "array": np.array, "series": pandas.Series}[kind]
    options: dict[str, Any] = {"batch_size": 4, "epochs": 2, **producers}
    order = [7, 3, 28, 0, 11, 5]
    with FeedRunner(range(30), sampler=make(order), **options) as runner:
        assert len(runner) == 4
        assert next(iter(runner)).tolist() == order[:4]
        state = runner.state()
    with FeedRunner(range(30), sampler=make(order), **options).restore(state) as runner:
        assert np.concatenate(list(runner)).tolist() == [*order[4:], *order]
    for wrong, said in (
        (order[::-1], "sampler was"),
        ([1.5], "must give integers, got"),
        ([[1, 2]], "must give integers, got"),
        ([1, 1], "repeats 1 of its 2 .*any object with indices"),
        ([30], "from 0 to 29, got 30"),
    ):
        with pytest.raises(OptionError, match=said):
            FeedRunner(range(30), sampler=make(wrong), **options).restore(state)


def test_a_sampler_with_set_epoch_shuffles_each_epoch() -> None:
    torch = pytest.importorskip("torch")
    distributed = torch.utils.data.distributed.DistributedSampler
    options: dict[str, Any] = {"num_replicas": 2, "rank": 1, "seed": 4}
    sampler, fresh = (distributed(range(30), **options) for _ in range(2))
    with FeedRunner(range(30), sampler=sampler, batch_size=5, epochs=3) as runner:
        epochs = [np.concatenate(list(epoch)).tolist() for epoch in islice(runner.epochs(), 3)]
    for number, epoch in enumerate(epochs):
        fresh.set_epoch(number)
        assert epoch == list(fresh)
    assert epochs[0] != epochs[1]


def test_a_sampler_with_a_generator_of_its_own_kind_is_left_alone() -> None:
    class Own:
        repeats, generator = True, None

        def __iter__(self) -> Any:
            assert self.generator is None
            return iter([2, 2, 1])

    with FeedRunner(range(3), sampler=Own(), batch_size=3) as runner:
        assert next(iter(runner)).tolist() == [2, 2, 1]
