"""Arrays of one length as the records of a feed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import FeedRunner, OptionError, Shard
from tests.helpers.streams import LIMIT_S

LENGTH = 50
X = np.arange(LENGTH * 6, dtype=np.float32).reshape(LENGTH, 2, 3)
Y = np.arange(LENGTH, dtype=np.int32)
EXECUTORS = [(1, 0), (3, 0), (1, 2), (2, 2)]
in_each = pytest.mark.parametrize(("threads", "processes"), EXECUTORS, ids=str)


class Pair(NamedTuple):
    """A batch of two leaves."""

    image: Any
    label: Any


def feed(source: Any, **options: Any) -> FeedRunner:
    return FeedRunner(source, **{"batch_size": 8, "stall_timeout_s": LIMIT_S, **options})


def batches(source: Any, **options: Any) -> list[Any]:
    with feed(source, **options) as runner:
        return list(runner)


STRUCTURES: dict[str, tuple[Any, Callable[[Any], tuple[Any, Any]]]] = {
    "tuple": ((X, Y), lambda b: (b[0], b[1])),
    "dict": ({"image": X, "label": Y}, lambda b: (b["image"], b["label"])),
    "named": (Pair(X, Y), lambda b: (b.image, b.label)),
    "nested": (((X, {"again": X}), Y), lambda b: (b[0][1]["again"], b[1])),
    "list of labels": ((X, Y.tolist()), lambda b: (b[0], b[1])),
    "range": ((X, range(LENGTH)), lambda b: (b[0], b[1])),
    "lists of rows": ((X.tolist(), Y.tolist()), lambda b: (b[0].astype("f4"), b[1])),
    "list of arrays": ((list(X), Y.tolist()), lambda b: (b[0], b[1])),
    "tuple in a dict": ({"x": X, "y": tuple(Y.tolist())}, lambda b: (b["x"], b["y"])),
    "fields": (
        (X, np.rec.fromarrays([Y, Y], names="a,b")),
        lambda b: (b[0], np.where(b[1]["a"] == b[1]["b"], b[1]["a"], -1)),
    ),
    "columns": ((X[:, ::-1, ::-1], Y), lambda b: (b[0][:, ::-1, ::-1], b[1])),
    "big endian": ((X.astype(">f4"), Y), lambda b: (b[0], b[1])),
}


@in_each
@pytest.mark.parametrize("kind", STRUCTURES)
@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_of_arrays_are_records(
    threads: int, processes: int, *, kind: str, shuffle: bool
) -> None:
    source, parts = STRUCTURES[kind]
    labels: list[int] = []
    found = batches(source, threads=threads, processes=processes, shuffle=shuffle, seed=3)
    for batch in found:
        images, numbers = parts(batch)
        assert images.dtype == np.float32
        np.testing.assert_array_equal(images, X[numbers])
        labels += numbers.tolist()
    assert sorted(labels) == list(range(LENGTH)) and (labels == sorted(labels)) is not shuffle
    assert type(found[0]) is type(source)


def test_the_columns_of_a_table_are_arrays() -> None:
    pandas = pytest.importorskip("pandas")
    names = [f"shop {i}" for i in range(LENGTH)]
    table = pandas.DataFrame({"name": names, "price": Y.astype(np.float64)}, index=Y[::-1])
    for records, label in batches((table, table["price"])):
        assert records["name"].tolist() == [names[int(price)] for price in records["price"]]
        np.testing.assert_array_equal(label, records["price"])
    assert [len(batch["price"]) for batch in batches(table, batch_size=25)] == [25, 25]


def test_fields_of_a_structured_array_are_leaves() -> None:
    rows = np.zeros(LENGTH, [("image", "f4", (2, 3)), ("label", "i4")])
    rows["image"], rows["label"] = X, Y
    (first, *_) = batches(rows)
    np.testing.assert_array_equal(first["image"], X[:8])
    np.testing.assert_array_equal(first["label"], Y[:8])


@settings(max_examples=20, deadline=None)
@given(
    length=st.integers(16, 40),
    size=st.integers(1, 5),
    world=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_shards_and_a_resumed_run_lose_nothing(
    length: int, size: int, world: int, seed: int
) -> None:
    source = (X[:length], Y[:length])
    seen: list[int] = []
    for rank in range(world):
        options = {"shard": Shard(rank, world, "pad"), "shuffle": True, "seed": seed}
        with feed(source, batch_size=size, **options) as runner:
            seen += next(iter(runner))[1].tolist()
            state = runner.state()
        with feed(source, batch_size=size, **options) as runner:
            runner.restore(state)
            seen += [n for batch in runner for n in batch[1].tolist()]
    assert set(seen) == set(range(length)) and len(seen) == -(-length // world) * world


@pytest.mark.parametrize("processes", [0, 2])
def test_functions_see_a_record_in_its_structure(processes: int) -> None:
    def doubled(record: Any) -> Any:
        image, label = record
        assert image.shape == (2, 3) and label.shape == ()
        return image * 2, label

    for images, labels in batches(
        (X, Y), processes=processes, transform=doubled, filter=lambda record: record[1] % 2 == 0
    ):
        np.testing.assert_array_equal(images, X[labels] * 2)
        assert not (labels % 2).any()


@in_each
def test_a_mapped_file(threads: int, processes: int, *, tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
    mapped[:] = X
    mapped.flush()
    for images, labels in batches(
        (np.memmap(tmp_path / "x", np.float32, "r", shape=X.shape), Y),
        threads=threads,
        processes=processes,
        shuffle=True,
    ):
        np.testing.assert_array_equal(images, X[labels])


@in_each
@pytest.mark.parametrize("stored", [{}, {"chunks": (4, 2, 3), "compression": "gzip"}], ids=str)
@pytest.mark.parametrize("shuffle", [False, True])
def test_datasets_of_h5py(
    threads: int, processes: int, *, stored: Any, shuffle: bool, tmp_path: Path
) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("group/x", data=X, **stored)
        file["y"] = Y
        file["name"] = [f"n\u00f6{n}" for n in range(LENGTH)]
    with h5py.File(tmp_path / "x.h5", "r") as file:
        source = {"x": file["group/x"], "y": file["y"], "name": file["name"]}
        options: Any = {"threads": threads, "processes": processes, "shuffle": shuffle}
        for batch in batches(source, **options):
            np.testing.assert_array_equal(batch["x"], X[batch["y"]])
            assert batch["name"].tolist() == [f"n\u00f6{n}".encode() for n in batch["y"]]
        for images, numbers in batches((file["group/x"], file["y"]), **options):
            np.testing.assert_array_equal(images, X[numbers])


def test_an_hdf5_file_that_is_being_written_is_refused_with_the_way_out(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = X
        with pytest.raises(OptionError, match=r'h5py\.File\(path, "r"\), or use threads='):
            batches((file["x"], Y), processes=1)


@in_each
@pytest.mark.parametrize("kind", ["U", object, list])
def test_text_is_text(threads: int, processes: int, *, kind: Any) -> None:
    names = np.array([f"{n}/\u00e4\u4e2d" for n in range(LENGTH)])
    column = names.tolist() if kind is list else names.astype(kind)
    for images, found in batches((X, column), threads=threads, processes=processes, shuffle=True):
        numbers = [int(name.split("/")[0]) for name in found.tolist()]
        assert found.dtype.kind == "U" and found.tolist() == names[numbers].tolist()
        np.testing.assert_array_equal(images, X[numbers])


@in_each
@pytest.mark.parametrize("batch_size", [1, 8])
def test_bytes_have_any_length(threads: int, processes: int, *, batch_size: int) -> None:
    names = [b"%d.png" % 10**n for n in range(LENGTH)]
    options = {"threads": threads, "processes": processes, "batch_size": batch_size}
    for column in (names, np.array(names)):
        found = [name for _, part in batches((X, column), **options) for name in part.tolist()]
        assert found == names


def test_text_in_batches_and_in_single_records() -> None:
    (batch,) = batches(
        [{"name": np.array(["a", "bcd"]), "x": X[:2]}], records=False, batch_size=None
    )
    assert batch["name"].tolist() == ["a", "bcd"]
    (batch,) = batches([(["a", "bcd"], 1), (["ef", ""], 2)])
    assert batch[0].tolist() == [["a", "bcd"], ["ef", ""]]


class Whole:
    """Records that are read many at once."""

    def __init__(self, bad: int | None = None) -> None:
        self.bad, self.calls = bad, 0

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            raise ValueError(f"no record {index}")
        if self.bad is None:
            raise AssertionError("read one by one")
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.calls += 1
        if self.bad in indices:
            raise ValueError("one of them")
        return list(indices)


@in_each
def test_many_records_are_read_at_once(threads: int, processes: int) -> None:
    found = batches(Whole(), threads=threads, processes=processes, transform=lambda n: -n)
    assert np.concatenate(found).tolist() == [-n for n in range(LENGTH)]


def test_the_record_that_fails_is_named_and_skipped() -> None:
    with pytest.raises(Exception, match="record 11 of"):
        batches(Whole(bad=11))
    found = batches(Whole(bad=11), on_error="skip")
    assert np.concatenate(found).tolist() == [n for n in range(LENGTH) if n != 11]


class OnAccelerator:
    """An array whose memory is on device 2 of DLPack, CUDA."""

    shape, dtype = (LENGTH,), np.dtype("f4")

    def __getitem__(self, index: int) -> float:
        raise TypeError("implicit conversion")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ((X, Y[:7]), r"source\[0\] has 50, source\[1\] has 7. If these are the records"),
        ({"x": X, "y": Y[:0]}, r"source\['x'\] has 50, source\['y'\] has 0"),
        ((X[:0], Y[:0]), "the source is empty"),
        ((X, np.array(3)), r"source\[1\] is a scalar"),
        ((X, OnAccelerator()), r"source\[1\] is a OnAccelerator on an accelerator.*x\.cpu\(\)"),
        ({"train": Whole(), "test": Whole()}, r"pass one: source\['train'\]"),
        ((["a"] * 50, Y.tolist()[:7]), r"source\[0\] has 50, source\[1\] has 7.*pass a list"),
        ((("a",) * 50, tuple(Y[:7])), r"source\[0\] has 50, source\[1\] has 7"),
        (([X, X], Y), r"source\[0\] has 2, source\[1\] has 50.*a list among columns is one"),
        ({"x": X, "name": "abc"}, "columns of one length in a tuple or dict, got dict(?m:$)"),
    ],
)
def test_what_is_no_set_of_arrays_is_refused(source: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        feed(source)


def test_arrays_of_varying_shape_are_padded() -> None:
    rows = np.empty(3, object)
    rows[:] = [np.ones(1), np.ones(3), np.ones(2)]
    ((padded, _),) = batches((rows, Y[:3]), pad=True)
    assert padded.sum(1).tolist() == [1, 3, 2]


def test_a_list_and_batches_are_what_they_were() -> None:
    assert len(batches([X, -X], records=False, batch_size=None)) == 2
    assert [b.shape for b in batches((X[:4], X[:4]), records=False, batch_size=None)] == [
        (4, 2, 3)
    ] * 2
    assert batches([X[0], X[1]])[0].shape == (2, 2, 3)


def test_tensors_of_torch_and_jax() -> None:
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    for images, labels, again in batches((torch.tensor(X), jax.numpy.asarray(Y), X)):
        np.testing.assert_array_equal(images, again)
        np.testing.assert_array_equal(X[labels], again)
    with_gradient = torch.tensor(X, requires_grad=True)
    assert all((images == X[labels]).all() for images, labels in batches((with_gradient, Y)))
