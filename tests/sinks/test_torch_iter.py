"""Batches as tensors: shared memory, its lifetime, and unsupported dtypes."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from fastfeed import (
    FeedRunner,
    FeedStopped,
    MissingExtra,
    OptionError,
    ProducerError,
    SpecError,
    StateError,
)

torch = pytest.importorskip("torch", reason="pip install torch")

SHAPE = (8, 1000)


class Pair(NamedTuple):
    image: Any
    label: Any


def numbers(count: int, shape: tuple[int, ...]) -> Callable[[], Iterator[np.ndarray]]:
    """Return a source that is pickled by value: an import of this file would import torch in the
    workers."""

    def numbered() -> Iterator[np.ndarray]:
        for number in range(count):
            yield np.full(shape, number, np.float32)

    return numbered


numbered = numbers(200, SHAPE)


def few_slots() -> FeedRunner:
    """Return options with few slots, which are reused soon."""
    return FeedRunner(numbered, processes=1, memory=8 * 36864)


def only(array: Any) -> Any:
    """Return the only batch of a runner over `array`, as a tensor."""
    with FeedRunner(lambda: iter([array])) as runner:
        (tensor,) = runner.torch()
    return tensor


def test_containers_stay_as_they_are() -> None:
    batch = {
        "x": Pair(np.zeros((2, 3)), [np.ones(2, np.int64), (np.array([True, False]),)]),
        1: np.arange(2),
        "n": None,
    }
    got = only(batch)
    assert (
        list(got) == ["x", 1, "n"]
        and got["n"] is None
        and type(got["x"]) is Pair
        and type(got["x"].label) is list
    )
    assert got["x"].image.shape == (2, 3) and got["x"].image.dtype is torch.float64
    assert got["x"].label[1][0].tolist() == [True, False]
    assert all(map(torch.is_tensor, (got[1], got["x"].image, got["x"].label[0])))


def test_a_tensor_shares_the_slot_and_keeps_it() -> None:
    with few_slots() as runner:
        batches = iter(runner.torch())
        first = next(batches)
        assert first.data_ptr() % 4096 == 0, "the beginning of a slot"
        row = first.view(-1)[1000:2000].reshape(10, 100)
        first[0, 0] = -1
        row[:] = 7
        for number, tensor in enumerate(batches, 1):
            assert tensor[0, 0] == number == tensor[-1, -1]
            assert tensor.data_ptr() != first.data_ptr()
            assert first[0, 0] == -1 and bool((first[1] == 7).all()) and not bool(first[2:].any())
        assert runner.snapshot().slots.lent == 2
        assert runner.snapshot().consumed.copied == 0
        del tensor, first
        assert runner.snapshot().slots.lent == 1, "a view holds it, too"
        del row
        assert runner.snapshot().slots.lent == 0


def test_more_tensors_are_kept_than_there_are_slots() -> None:
    with few_slots() as runner:
        kept = list(runner.torch())
        assert all(bool((tensor == number).all()) for number, tensor in enumerate(kept))
        assert len(kept) == 200 and runner.snapshot().consumed.copied > 0
        again = [float(tensor[0, 0]) for tensor in runner.torch()]
        assert again == list(range(200)) and float(kept[0].sum()) == 0


NAMES = [
    "bool",
    *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
]
NAMES += ["complex64", "complex128"]


@pytest.mark.parametrize("name", NAMES)
def test_numbers_keep_their_dtype(name: str) -> None:
    array = np.array([[0, 1], [100, 7]]).astype(name)
    if not hasattr(torch, name):  # uint16, uint32 and uint64 before PyTorch 2.3
        with pytest.raises(SpecError, match=f"holds {name}, which torch does not have"):
            only(array)
        return
    tensor = only(array)
    assert tensor.dtype is getattr(torch, name)
    assert tensor.tolist() == array.tolist()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_the_small_floats_of_ml_dtypes(name: str) -> None:
    array = np.array([[0.5, 1], [-2, 0.25]]).astype(getattr(pytest.importorskip("ml_dtypes"), name))
    tensor = only(array)
    assert tensor.dtype is getattr(torch, name)
    assert tensor.float().tolist() == [[0.5, 1], [-2, 0.25]]
    if name == "bfloat16":
        array[0, 0] = 3
        assert tensor[0, 0] == 3, "the tensor is no copy"


BASE = np.arange(12, dtype=np.float32).reshape(4, 3)
PACKED = np.zeros(4, np.dtype([("a", "f4"), ("b", "i1")]))


@pytest.mark.parametrize(
    "array",
    [
        BASE[::-1],
        BASE[:, ::-1],
        BASE[::2],
        BASE.T,
        BASE.astype(">f4"),
        np.broadcast_to(BASE[:1], (4, 3)),
        PACKED["a"],
    ],
    ids=[
        "upside down",
        "mirrored",
        "every other",
        "transposed",
        "other byte order",
        "read-only",
        "packed",
    ],
)
@pytest.mark.filterwarnings("error")
def test_arrays_of_every_layout(array: np.ndarray) -> None:
    tensor = only(array)
    np.testing.assert_array_equal(tensor.numpy(), array)
    if not array.flags.writeable:
        tensor += 1
        (
            np.testing.assert_array_equal(BASE, np.arange(12).reshape(4, 3)),
            "what nobody may write into is copied",
        )


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.zeros(2, np.longdouble), "float128"),
        (np.zeros(2, np.clongdouble), "complex256"),
    ],
)
def test_what_torch_does_not_have_is_refused_by_name(array: np.ndarray, kind: str) -> None:
    with pytest.raises(SpecError, match=rf"batch\['odd'\] holds {kind}.*dtypes="):
        only({"x": np.zeros(2), "odd": array})


@pytest.mark.parametrize("texts", [[b"a", b"bc"], ["a", "\u00e4\u4e2d"]])
@pytest.mark.parametrize("kind", [None, object])
def test_bytes_and_text_are_lists(texts: list[Any], kind: Any) -> None:
    assert only({"x": np.zeros(2), "odd": np.array(texts, kind)})["odd"] == texts


def test_small_integers_of_ml_dtypes_are_refused_by_name() -> None:
    with pytest.raises(SpecError, match="batch holds int4"):
        only(np.zeros(2, pytest.importorskip("ml_dtypes").int4))


def test_dtypes_is_the_way_out() -> None:
    with FeedRunner(lambda: iter([np.ones(2, np.longdouble)]), dtypes="float32") as runner:
        assert next(iter(runner.torch())).dtype is torch.float32


def test_the_data_loader_reads_it_without_workers() -> None:
    with FeedRunner(np.arange(10, dtype=np.float32), batch_size=4, processes=1) as runner:
        dataset = runner.torch()
        assert isinstance(dataset, torch.utils.data.IterableDataset) and len(dataset) == 3
        loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=0)
        for _ in range(2):
            assert len(loader) == 3
            assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        for batch in loader:
            assert batch[0] == 0
            break
        assert [float(batch[0]) for batch in loader] == [0, 4, 8], (
            "a pass that was left is not gone on with"
        )


def test_workers_of_the_data_loader_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in replaces the worker: a DataLoader with a failed worker takes 5 s to end."""
    with FeedRunner(numbered) as runner:
        batches = runner.torch()
        with pytest.raises(StateError, match=r"num_workers=0.*processes="):
            pickle.dumps(batches)
        monkeypatch.setattr(torch.utils.data._utils.worker, "_worker_info", object())
        with pytest.raises(StateError, match=r"num_workers=0.*processes="):
            iter(batches)


def test_an_unknown_length() -> None:
    with pytest.raises(TypeError, match="not known"):
        len(FeedRunner(numbered).torch())


@pytest.mark.parametrize("device", ["nonsense", 3.5, "cuda:4096"])
def test_a_device_that_is_not_there(device: Any) -> None:
    with pytest.raises(OptionError, match="device="):
        FeedRunner(numbered).torch(device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA")
def test_pinned_memory_needs_cuda() -> None:
    with pytest.raises(OptionError, match="pin_memory=True"):
        FeedRunner(numbered).torch(pin_memory=True)


def test_failures_and_stop_reach_the_loop() -> None:
    def source() -> Iterator[Any]:
        yield np.zeros(3)
        raise KeyError("lost")

    with FeedRunner(source) as runner, pytest.raises(ProducerError, match="lost") as caught:
        for tensor in runner.torch():
            assert tensor.tolist() == [0, 0, 0]
    assert isinstance(caught.value.__cause__, KeyError)
    runner = FeedRunner(numbered)
    batches = iter(runner.torch())
    next(batches)
    runner.stop()
    with pytest.raises(FeedStopped):
        next(batches)


@pytest.mark.parametrize(
    ("framework", "use"),
    [("torch", lambda runner: runner.torch()), ("jax", lambda runner: runner.jax())],
)
def test_without_the_framework(
    framework: str, use: Callable[[FeedRunner], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.delitem(sys.modules, f"fastfeed.sinks.{framework}_iter", raising=False)
    with pytest.raises(MissingExtra, match=rf"pip install 'fastfeed\[{framework}\]'"):
        use(FeedRunner(numbered))
