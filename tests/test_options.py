"""Every invalid option is refused with its name and the right value, before anything runs."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields
from inspect import signature
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import (
    Cache,
    FeedOptions,
    FeedRunner,
    FeedWarning,
    OptionError,
    Pad,
    Remote,
    Reorder,
    Shard,
    Shuffle,
    Skip,
)
from fastfeed.core.machine import free_memory_nbytes, threads_that_fit, workers_that_fit
from fastfeed.options import BYTE_UNITS, feed_options, options_from, parse_bytes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("threads", v) for v in (0, -1, 1.5, 2.0, True, "2", None)),
        *(("batch_size", v) for v in (0, -3, 2.5, True, "32")),
        *(("epochs", v) for v in (0, -1, 1.5, 1.0, "2", True, False)),
        *(("last_batch", v) for v in ("kept", None, True)),
        *(("order", v) for v in ("random", None, 64, Reorder)),
        *(("shuffle", v) for v in (1, 0, "yes", (2000, 1000))),
        *(("transform", v) for v in (3, "f", [len])),
        *(("pad", v) for v in ("0", [0])),
        *(("seed", v) for v in (-1, 1.0, True, "1", (1, 2), np.float64(3), np.array([1]))),
        *(("memory", v) for v in (0, -1, "0", "2 XB", "GB", "many", True, "0.1")),
        *(("stall_timeout_s", v) for v in (0, -1, float("nan"), True, None, "60")),
        *(("records", v) for v in (1, "yes")),
        *(("on_error", v) for v in ("fail", None, 3, ["skip"])),
    ],
)
def test_a_value_that_cannot_work_is_named(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"^{name} must be .*, got {re.escape(repr(value))}"):
        FeedOptions(**{name: value})


@pytest.mark.parametrize(
    "given_",
    [
        {
            "threads": np.int64(3),
            "batch_size": np.int32(4),
            "epochs": np.uint8(2),
            "seed": np.int64(1),
        },
        {"memory": "1.5 GiB", "stall_timeout_s": float("inf")},
        {"shuffle": Shuffle(10, 0), "pad": Pad(-1.5), "order": "any", "last_batch": "drop"},
        {"records": False, "on_error": Skip(3), "transform": len, "shard": Shard(1, 2, "pad")},
        {"order": Reorder(1)},
        {"order": Reorder(window=np.int64(64))},
    ],
)
def test_values_that_work(given_: dict[str, Any]) -> None:
    options = options_from(given_)
    assert {name: getattr(options, name) for name in given_} == given_


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("thread", r"did you mean threads=\?"),
        ("batchsize", r"did you mean batch_size=\?"),
        ("shuffel", r"did you mean shuffle=\?"),
        ("zebra", "the options are threads, .*batch_size"),
    ],
)
def test_an_unknown_option_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(OptionError, match=rf"no option '{name}': {hint}"):
        FeedRunner(list, **{name: 1})


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("num_workers", "processes="),
        ("prefetch_factor", "prefetch="),
        ("drop_last", 'last_batch="drop"'),
        ("drop_remainder", 'last_batch="drop"'),
        ("collate_fn", "collate="),
        ("pin_memory", "pin_memory=True"),
        ("persistent_workers", "leave it out"),
        ("worker_init_fn", "worker.index"),
        ("timeout", "stall_timeout_s="),
        ("buffer_size", "Shuffle(capacity="),
        ("workers", "threads="),
        ("use_multiprocessing", "processes="),
        ("max_queue_size", "prefetch="),
        ("num_parallel_calls", "transform="),
        ("producers", 'remote=Remote("auto", producers=32)'),
        ("cpus_per_producer", 'remote=Remote("auto", producers=32, cpus=0.1)'),
        ("augment_on", 'augment=Augment([...], on="dali-gpu")'),
        ("lengths", "pad=Pad(0, lengths=True)"),
        ("error_limit", "on_error=Skip(limit=100)"),
        ("window", "order=Reorder(window=64)"),
        ("remainder", 'shard=Shard(rank, world, remainder="drop")'),
        ("repeat_per_producer", "lambda worker: batches()"),
    ],
)
def test_the_words_of_other_loaders_are_answered_with_ours(word: str, answer: str) -> None:
    with pytest.raises(OptionError, match=re.escape(answer)) as caught:
        FeedRunner(list, **{word: 1})
    told = set(re.findall(r"\b([a-z_]+)=", str(caught.value)))
    values = (FeedOptions, Shuffle, Remote, Reorder, Skip, Pad, Shard)
    assert told <= {"device", "pin_memory", "on"}.union(*(signature(v).parameters for v in values))


def test_a_size_of_a_shuffle_buffer_names_the_pool() -> None:
    with pytest.raises(OptionError, match=r"got 1000: .*Shuffle\(capacity=2000, min_after_"):
        FeedOptions(shuffle=1000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "short", "long"),
    [
        ("remote", "auto", Remote("auto", 1, 1.0)),
        ("cache", "ram", Cache("ram")),
        ("pad", True, Pad(True, lengths=False)),
        ("pad", 7, Pad(7)),
        ("on_error", "skip", Skip(limit=100)),
        ("shard", (np.int64(1), 3), Shard(1, 3, remainder=None)),
        ("shard", [1, 3], Shard(1, 3)),
    ],
)
def test_a_short_form_is_the_value_with_its_defaults(name: str, short: Any, long: Any) -> None:
    assert getattr(FeedOptions(**{name: short}), name) == long
    assert getattr(FeedOptions(**{name: long}), name) is long


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Skip(-1), "limit of Skip must be an integer >= 0, got -1"),
        (lambda: Skip(True), "limit of Skip must be an integer >= 0, got True"),
        *(
            (lambda w=w: Reorder(w), rf"window of Reorder must be an integer >= 1, got {w!r}; use")
            for w in (0, -1, 1.5, True, "8", None)
        ),
        (lambda: Pad(0, lengths=1), "lengths of Pad must be True or False, got 1"),
        (lambda: Pad(None), "pad must be None, .*got None"),
        (lambda: Shard(0, 2, "keep"), "remainder of Shard must be .*, got 'keep'"),
        (lambda: Remote("auto", 1.0), "producers of Remote must be an integer >= 1"),
        (lambda: Remote("auto", cpus="1"), "cpus of Remote must be a number"),
    ],
)
def test_values_that_cannot_be(make: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        make()


def test_there_are_few_options_and_each_is_described() -> None:
    names = [field.name for field in fields(FeedOptions)]
    described = re.findall(r"^(\w+): ", inspect.getdoc(FeedOptions) or "", re.MULTILINE)
    assert described == names and len(names) <= 26


def test_the_ranks_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_options, "free_memory_nbytes", lambda: 16_000)
    assert FeedOptions().memory_nbytes == 4000
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert FeedOptions().memory_nbytes == 500
    assert FeedOptions(memory=100).memory_nbytes == 100


def test_processes_that_do_not_fit_are_refused_at_once() -> None:
    most, limit = workers_that_fit()
    assert most >= 1 and limit
    with pytest.raises(OptionError, match=r"processes=1000000 do not fit: \d+ do, because of"):
        FeedRunner(range(10), batch_size=2, processes=1_000_000)


@pytest.mark.parametrize(("processes", "where"), [(0, ""), (2, " in each of processes=2")])
def test_threads_that_do_not_fit_are_refused_at_once(processes: int, where: str) -> None:
    most, limit = threads_that_fit(1)
    assert most >= threads_that_fit(1000)[0] >= 1 and limit
    text = rf"threads=1000000 do not fit{where}: \d+ do, because of"
    with pytest.raises(OptionError, match=text):
        FeedRunner(range(10), batch_size=2, threads=1_000_000, processes=processes)


@pytest.mark.parametrize("options", [{"threads": 3}, {"processes": 2}])
def test_producers_that_share_one_iterator_are_told_to_be_idle(options: dict[str, Any]) -> None:
    def batches() -> Iterator[np.ndarray]:
        for _ in range(3):
            yield np.zeros(2)

    with (
        FeedRunner(batches(), **options) as runner,
        pytest.warns(FeedWarning, match=r"gain nothing here.*transform=.*`worker`"),
    ):
        list(runner)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source, more in (
            (batches(), {"transform": np.negative}),
            ([np.zeros(2)] * 3, {"records": False}),
        ):
            with FeedRunner(source, **options, **more) as runner:
                assert len(list(runner)) == 3


def test_options_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        FeedOptions().threads = 2  # type: ignore[misc]


def test_the_runner_shows_its_knobs() -> None:
    shown = signature(FeedRunner).parameters
    assert [n for n in shown if n != "source"] == [f.name for f in fields(FeedOptions)]
    assert all(shown[f.name].default == f.default for f in fields(FeedOptions))
    with pytest.raises(TypeError):
        FeedRunner(list, 4)  # type: ignore[call-arg]


@pytest.mark.parametrize("given_", [(10, 10), (10, 11), (0, 0), (10, -1)])
def test_a_shuffle_that_could_never_draw(given_: tuple[int, int]) -> None:
    with pytest.raises(
        OptionError, match=r"Shuffle requires 0 <= min_after_dequeue < capacity, got"
    ):
        Shuffle(*given_)


@pytest.mark.parametrize("given_", [(10.5, 1), ("10", 1), (10, None)])
def test_a_shuffle_counts_records(given_: tuple[Any, Any]) -> None:
    with pytest.raises(OptionError, match="Shuffle"):
        Shuffle(*given_)


@given(
    st.integers(1, 10**6),
    st.sampled_from(sorted(BYTE_UNITS)),
    st.booleans(),
    st.sampled_from(["", " "]),
)
def test_bytes_in_any_unit(number: int, unit: str, lower: bool, space: str) -> None:
    text = f"{number}{space}{unit.lower() if lower else unit}"
    assert parse_bytes(text) == number * BYTE_UNITS[unit]
    assert FeedOptions(memory=text).memory_nbytes == number * BYTE_UNITS[unit]
    assert parse_bytes(number) == number


def test_memory_is_a_quarter_of_what_is_free() -> None:
    free = free_memory_nbytes()
    assert 0 < FeedOptions().memory_nbytes < free


@pytest.mark.parametrize(
    ("pad", "padded"), [(None, False), (False, False), (True, True), (0, True), (-1.0, True)]
)
def test_what_counts_as_padding(pad: Any, padded: bool) -> None:
    assert FeedOptions(pad=pad).padded is padded
