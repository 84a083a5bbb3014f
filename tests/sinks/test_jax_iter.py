"""Batches as JAX arrays: shared memory, its lifetime, and casts by JAX."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from fastfeed import (
    FeedRunner,
    FeedStopped,
    FeedWarning,
    OptionError,
    ProducerError,
    SpecError,
    StateError,
)
from fastfeed.core.collate import aligned_arrays
from tests.helpers.dying import until
from tests.helpers.scripts import Script

jax = pytest.importorskip("jax", reason="pip install jax")

SHAPE = (4, 256)
PASSING = 2000


class Pair(NamedTuple):
    image: Any
    label: Any


def numbers(count: int, shape: tuple[int, ...]) -> Callable[[], Iterator[np.ndarray]]:
    """Return a source that is pickled by value: an import of this file would import JAX in the
    workers."""

    def numbered() -> Iterator[np.ndarray]:
        for number in range(count):
            yield np.full(shape, number, np.float32)

    return numbered


numbered = numbers(PASSING, SHAPE)


def few_slots(source: Callable[[], Any] = numbered) -> FeedRunner:
    """Return options with few slots, which are reused soon."""
    return FeedRunner(source, processes=1, memory=12 * 8192)


def test_containers_stay_as_they_are() -> None:
    batch = {
        "x": Pair(np.zeros((2, 3), np.float32), [np.ones(2, np.int8), (np.array([True, False]),)]),
        1: np.ones(2, "f2"),
        "n": None,
    }
    with FeedRunner(lambda: iter([batch])) as runner:
        (got,) = runner.jax(jax.devices()[0])
    assert (
        list(got) == ["x", 1, "n"]
        and got["n"] is None
        and type(got["x"]) is Pair
        and type(got["x"].label) is list
    )
    assert got["x"].label[1][0].tolist() == [True, False]
    for leaf, dtype in (
        (got[1], "float16"),
        (got["x"].image, "float32"),
        (got["x"].label[0], "int8"),
    ):
        assert (
            isinstance(leaf, jax.Array)
            and leaf.dtype == dtype
            and leaf.devices() == {jax.devices()[0]}
        )
    assert got["x"].image.shape == (2, 3)


def views(array: Any) -> list[Any]:
    """Return everything that shares, or may share, the memory of a JAX array."""
    arrays = [
        array,
        np.asarray(array),
        array.reshape(-1),
        jax.numpy.asarray(array),
        jax.jit(lambda same: same)(array),
    ]
    return [*arrays, np.from_dlpack(array), jax.device_put(array), array.addressable_data(0)]


def test_whatever_is_made_of_a_batch_keeps_it_while_thousands_pass() -> None:
    with few_slots() as runner:
        batches = iter(runner.jax())
        first = next(batches)
        assert first.unsafe_buffer_pointer() % 4096 == 0, "the beginning of a slot: no copy"
        second = next(batches)
        kept = views(first)
        shared = np.asarray(second)
        del first, second
        for number, array in enumerate(batches, 2):
            assert float(array[0, 0]) == number
            if number % 100 == 0:
                assert not any(np.asarray(view).any() for view in kept) and (shared == 1).all()
        assert number == PASSING - 1
        assert not any(np.asarray(view).any() for view in kept) and (shared == 1).all()
        assert runner.snapshot().consumed.copied == 0
        del kept, shared, array
        gc.collect()  # from Python 3.14, some arrays go only then
        until(lambda: runner.snapshot().slots.lent == 0, "the return of every slot")


def test_a_step_that_is_still_computed_keeps_its_batch() -> None:
    """The loop is ahead of the device: when these batches are read, only JAX refers to them."""
    step = jax.jit(lambda total, batch: (total @ total) * 0 + batch.sum() + total[0, 0])
    total = jax.numpy.zeros((200, 200))
    with few_slots() as runner:
        for batch in runner.jax():
            total = step(total, batch)
        assert float(total[0, 0]) == sum(range(PASSING)) * 1024


def test_donation_writes_into_nothing_of_ours() -> None:
    """The result of a donation is in separate memory, never in that of the batch."""
    (own,) = aligned_arrays([(SHAPE, np.dtype(np.float32))])
    own[:] = 3
    double = jax.jit(lambda batch: batch * 2, donate_argnums=0)
    with FeedRunner(lambda: iter([own])) as runner:
        (array,) = runner.jax()
    assert array.unsafe_buffer_pointer() == own.ctypes.data, "no copy"
    doubled = double(array)
    assert array.is_deleted() and (np.asarray(doubled) == 6).all() and (own == 3).all()
    with few_slots() as runner:
        kept = []
        for number, batch in enumerate(runner.jax()):
            doubled = double(batch)
            if number % 400 == 0:
                kept.append((number, doubled))
        assert all((np.asarray(array) == 2 * number).all() for number, array in kept)
        del batch, doubled
        gc.collect()  # JAX 0.12 leaves what was donated in cycles
        until(lambda: runner.snapshot().slots.lent == 0, "the return of every slot")


def test_misaligned_arrays_arrive_too() -> None:
    memory = np.arange(1001, dtype=np.float32)
    parts = [memory[:1000], memory[1:], memory[::-1][:1000], memory.astype(">f4")[:1000]]
    with FeedRunner(lambda: iter(parts)) as runner:
        for got, part in zip(runner.jax(), parts, strict=True):
            np.testing.assert_array_equal(got, part)


def test_what_jax_casts_is_said_once() -> None:
    def labelled() -> Iterator[Any]:
        yield {
            "image": np.zeros((2, 2), np.float64),
            "label": np.array([1, 2]),
            "weight": np.ones(2, np.float32),
        }

    with FeedRunner(labelled) as runner, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = runner.jax()
        for _ in range(2):
            (batch,) = batches
    (warning,) = caught
    assert warning.category is FeedWarning
    text = str(warning.message)
    assert "batch['image'] from float64 to float32, batch['label'] from int64 to int32, in" in text
    assert "dtypes=" in text and "jax_enable_x64" in text and warning.filename == __file__
    assert batch["label"].dtype == "int32" and batch["label"].tolist() == [1, 2]
    with FeedRunner(
        labelled, dtypes={"image": "float32", "label": "int32", "weight": None}
    ) as runner:
        (batch,) = runner.jax()
    assert batch["label"].dtype == "int32"


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.zeros(2, np.longdouble), "float128"),
        (np.array([b"a", b"bc"]), "bytes"),
        (np.array([b"a", b"bc"], object), "bytes"),
        (np.array(["a", "bc"]), "text"),
    ],
)
def test_what_jax_does_not_have_is_refused_by_name(array: np.ndarray, kind: str) -> None:
    source = [(np.zeros(2, np.float32), array)]
    with (
        FeedRunner(lambda: iter(source)) as runner,
        pytest.raises(SpecError, match=rf"batch\[1\] holds {kind}.*dtypes="),
    ):
        next(iter(runner.jax()))


def test_bfloat16_is_what_it_was() -> None:
    array = np.array([0.5, -2], pytest.importorskip("ml_dtypes").bfloat16)
    with FeedRunner(lambda: iter([array])) as runner:
        (got,) = runner.jax()
    assert got.dtype == array.dtype and got.tolist() == [0.5, -2]


def test_devices_in_another_structure_are_refused() -> None:
    with FeedRunner(numbered) as runner, pytest.raises(OptionError, match="does not fit the batch"):
        next(iter(runner.jax([None, None])))


def test_passes_failures_and_stop() -> None:
    with FeedRunner(np.arange(10, dtype=np.float32), batch_size=4, processes=1) as runner:
        batches = runner.jax()
        for _ in range(2):
            assert len(batches) == 3
            assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        older = iter(batches)
        assert next(older)[0] == 0
        assert [float(batch[0]) for batch in batches] == [0, 4, 8]
        with pytest.raises(StateError, match="JAX has two iterators"):
            next(older)

    def source() -> Iterator[Any]:
        yield np.zeros(3, np.float32)
        raise KeyError("lost")

    got = []
    with FeedRunner(source) as runner, pytest.raises(ProducerError, match="lost"):
        for batch in runner.jax():
            got.append(batch.tolist())
    assert got == [[0, 0, 0]], "what came before the failure is given out before it is raised"
    runner = FeedRunner(numbered)
    batches = iter(runner.jax())
    next(batches)
    runner.stop()
    with pytest.raises(FeedStopped):
        next(batches)


@pytest.mark.parametrize("given", range(1, 5))
def test_a_state_counts_what_the_loop_was_given(given: int) -> None:
    """And not the batch that was put on the device during its last step."""

    def made() -> FeedRunner:
        return FeedRunner(np.arange(32, dtype=np.float32), batch_size=8, shuffle=True, seed=1)

    with made() as runner:
        batches = iter(runner.jax())
        for _ in range(given):
            next(batches)
        state = runner.state()
        rest = [batch.tolist() for batch in batches]
        after = runner.state()
        following = [batch.tolist() for batch in runner.jax()]
    with made().restore(state) as runner:
        assert [batch.tolist() for batch in runner.jax()] == rest
        assert runner.state() == after
        assert [batch.tolist() for batch in runner.jax()] == following


def test_a_loop_over_a_stream_that_was_left_goes_on() -> None:
    with FeedRunner(numbers(6, (2,))) as runner:
        for batch in runner.jax():
            if batch[0] == 2:
                break
        state = runner.state()
        assert [int(batch[0]) for batch in runner.jax()] == [3, 4, 5]
    with pytest.warns(FeedWarning, match="only from its beginning"):
        again = FeedRunner(numbers(6, (2,))).restore(state)
    with again as runner:
        assert [int(batch[0]) for batch in runner.jax()] == [3, 4, 5]


ON_TWO_DEVICES = """
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_ENABLE_X64"] = "1"
os.environ["JAX_PLATFORM_NAME"] = "cpu"  # or JAX 0.4 says that it found no other
import warnings
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from fastfeed import SpecError

warnings.simplefilter("error")
halves = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
whole = SingleDeviceSharding(jax.devices()[1])

def numbered():
    for number in range(300):
        yield np.full((4, 256), number, np.float32), np.full(4, number)

def right(batch, number, target):
    x, y = batch
    return (
        (np.asarray(x) == number).all()
        and y.tolist() == [number] * 4
        and y.dtype == "int64"
        and x.sharding == halves
        and y.sharding == target
    )

for given in (halves, [halves, whole], (halves, whole)):
    with FeedRunner(numbered, processes=1, memory=200_000) as runner:
        batches = enumerate(runner.jax(given))
        kept = [next(batches) for _ in range(3)]
        target = given if given is halves else whole
        shares = [[s.data.shape for s in leaf.addressable_shards] for leaf in kept[0][1]]
        passed = all([right(batch, number, target) for number, batch in batches])
        say(shares, passed, all(right(batch, number, target) for number, batch in kept))

for size, last in ((4, "keep"), (4, "drop"), (3, "keep")):
    got = []
    try:
        with FeedRunner(np.arange(11.0), batch_size=size, last_batch=last) as runner:
            got.extend(batch.tolist() for batch in runner.jax(halves))
        say(got)
    except SpecError as error:
        say(got, error)
"""


def test_two_devices_share_a_batch() -> None:
    """Also with 64 bits. Both options must be set before JAX starts."""
    script = Script(ON_TWO_DEVICES)
    try:
        ended = script.ended()
    finally:
        script.kill()
    assert (ended.code, ended.err) == (0, "")
    # printed by JAX 0.12
    ended.out[:] = [line for line in ended.out if not line.endswith("(JaxBatches._put)")]
    assert ended.out[0] == "[[(2, 256), (2, 256)], [(2,), (2,)]] True True"
    assert ended.out[1:3] == ["[[(2, 256), (2, 256)], [(4,)]] True True"] * 2
    two = [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]
    assert ended.out[3].startswith(
        f"{two} batch has shape (3,) in a batch of 3 records, which NamedSharding"
    )
    assert 'last_batch="drop"' in ended.out[3]
    assert ended.out[4] == str(two)
    assert ended.out[5].startswith("[] batch has shape (3,)") and "batch_size=" in ended.out[5]
