"""Arrays that travel: any layout arrives unchanged, large ones once, read-only and aligned; mapped
files by name."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from fastfeed.producers.process import ship
from fastfeed.producers.process.ship import LARGE_NBYTES, pack, unpack

MIB = 2**20


def travelled(value: Any) -> tuple[Any, int]:
    """Return the value as unpacked in this process, and the size of the shipment."""
    shipment = pack(value, what="the source")
    try:
        return unpack(shipment.fd, shipment.nbytes), shipment.nbytes
    finally:
        shipment.close()


DTYPES = [
    "?",
    "u1",
    "<i2",
    ">f4",
    "f8",
    "c16",
    "M8[ns]",
    "m8[s]",
    "S3",
    "U2",
    "V5",
    [("a", "u1"), ("b", ">f8")],
]


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Draw any order of axes, with steps and backwards, repeated, overlapping."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.lists(st.integers(0, 9), max_size=4))
    count = int(np.prod(shape))
    if dtype.kind == "V":
        flat = np.frombuffer(bytes(i % 251 for i in range(count * dtype.itemsize)), dtype)
    else:
        flat = (np.arange(count) % 97).astype("i8").astype(dtype)
    array = flat.reshape(shape).transpose(draw(st.permutations(range(len(shape)))))
    steps = [draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in shape]
    array = array[tuple(slice(None, None, step) for step in steps)] if shape else array
    if draw(st.booleans()):
        array = np.broadcast_to(array, (draw(st.integers(1, 5)), *array.shape))
    if array.ndim and array.shape[-1] > 2 and draw(st.booleans()):
        array = sliding_window_view(array, 2, axis=-1)
    return array


nests = st.recursive(
    arrays(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
)


def leaves(nest: Any) -> list[np.ndarray]:
    if isinstance(nest, np.ndarray):
        return [nest]
    return [
        leaf
        for part in (nest.values() if isinstance(nest, dict) else nest)
        for leaf in leaves(part)
    ]


def lowest(array: np.ndarray) -> int:
    """Return the first address."""
    back = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True) if s < 0]
    return array.ctypes.data + sum(back)


@settings(max_examples=200)
@given(nests)
def test_every_layout_arrives_as_it_was(nest: Any) -> None:
    with mock.patch.object(ship, "LARGE_NBYTES", 256):
        found, _ = travelled(nest)
    assert type(found) is type(nest)
    for was, array in zip(leaves(nest), leaves(found), strict=True):
        assert array.shape == was.shape and array.tolist() == was.tolist()
        large = was.nbytes >= 256
        if large:
            assert array.dtype == was.dtype  # numpy itself swaps the bytes of some small ones
            assert lowest(array) % 64 == 0 and not array.flags.writeable
        if was.flags.c_contiguous and was.flags.writeable:
            assert array.flags.writeable != large


def test_each_array_travels_once() -> None:
    large = np.arange(MIB, dtype=np.uint8).reshape(1024, 1024)
    (first, again, turned, flat), nbytes = travelled((large, large, large.T, large.reshape(-1)))
    assert first is again
    assert np.shares_memory(first, turned) and np.shares_memory(first, flat)
    np.testing.assert_array_equal(turned, large.T)
    assert nbytes < 1.1 * MIB


@pytest.mark.parametrize(
    ("view", "share"),
    [
        (lambda a: a[:64], 1 / 16),
        (lambda a: a[::2], 1 / 2),
        (lambda a: a[:, 100:200], 100 / 1024),
        (lambda a: a[::-1], 1),
        (lambda a: np.broadcast_to(a[0], a.shape), 1 / 1024),
        (lambda a: sliding_window_view(a[:65, 0], 64), 0),
        (lambda a: sliding_window_view(a[:64], 200, axis=1), 1 / 16),
    ],
)
def test_a_view_ships_only_what_it_shows(
    view: Callable[[np.ndarray], np.ndarray], share: float
) -> None:
    shown = view(np.random.default_rng(0).integers(0, 255, (1024, 4096), np.uint8))
    found, nbytes = travelled(shown)
    np.testing.assert_array_equal(found, shown)
    assert nbytes < share * 4 * MIB + 5000


def test_views_of_one_place_that_differ_in_their_strides_are_not_the_same() -> None:
    base = np.arange(MIB)
    found, _ = travelled([base[::step][: MIB // 4] for step in (1, 2, 3)])
    assert [array[1] for array in found] == [1, 2, 3]


class Buffers:
    """Not numpy's, but with a buffer that may travel out of band."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: Any) -> Any:
        return memoryview, (pickle.PickleBuffer(self.data),)


def test_any_large_buffer_is_mapped() -> None:
    data, (array, other) = bytearray(os.urandom(MIB)), (np.ones(MIB), np.zeros(MIB))
    found, _ = travelled(
        [array, Buffers(data), other, Buffers(bytearray(b"small")), np.ones(MIB, np.uint8)]
    )
    assert found[1] == data and found[1].readonly
    assert np.frombuffer(found[1], np.uint8).ctypes.data % 64 == 0
    assert found[3] == b"small" and not found[3].readonly
    assert [found[0][0], found[2][0], found[4][0]] == [1, 0, 1]


def test_arrays_that_hold_more_than_their_bytes_travel_as_numpy_sends_them() -> None:
    objects = np.array([{"n": i} for i in range(LARGE_NBYTES)], object)
    matrix = np.ones((300, 300)).view(np.matrix)
    masked = np.ma.masked_less(np.arange(LARGE_NBYTES), 9)
    found, _ = travelled((objects, matrix, masked))
    assert found[0][7] == {"n": 7}
    assert type(found[1]) is np.matrix and found[1].sum() == 90_000
    assert found[2].count() == LARGE_NBYTES - 9


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy 1 has no such strings")
def test_strings_of_any_length() -> None:
    words = np.array(
        [f"a long word that lies outside of the array, number {i}" for i in range(9999)], "T"
    )
    found, _ = travelled(words)
    assert found.tolist() == words.tolist()


def test_dtypes_that_numpy_does_not_know() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    found, nbytes = travelled(np.arange(MIB).astype(bfloat16)[::2])
    assert found.dtype == bfloat16 and found[3] == 6 and nbytes < 1.1 * MIB


# Files that are mapped already.


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    np.arange(2**18, dtype=np.int32).tofile(path)
    return path


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_mapped_file_is_opened_again(file: Path, mode: str) -> None:
    data = np.memmap(file, np.int32, mode, offset=4096 * 3 + 8).reshape(-1, 2)
    views = [data, data[5000:], data[::-3], data.T, np.asarray(data)[100:], data.view(np.int64)[7:]]
    found, nbytes = travelled(views)
    for was, array in zip(views, found, strict=True):
        np.testing.assert_array_equal(array, was)
        assert (
            type(array) is type(was) and array.strides == was.strides and not array.flags.writeable
        )
    assert found[1].filename == file
    assert nbytes < 5000


def test_thousands_of_views_share_one_map(file: Path) -> None:
    data = np.memmap(file, np.int32, "r")
    before = len(os.listdir("/proc/self/fd"))
    found, _ = travelled([data[i:] for i in range(2000)])
    assert len(os.listdir("/proc/self/fd")) < before + 5
    assert found[1999][0] == 1999


@pytest.mark.parametrize("case", ["own changes", "deleted", "cut off", "computed"])
def test_a_mapped_file_that_cannot_be_opened_again_ships_its_values(file: Path, case: str) -> None:
    data = np.memmap(file, np.int32, "c" if case == "own changes" else "r")
    was = data[: LARGE_NBYTES // 4] + 0 if case == "computed" else data[: LARGE_NBYTES // 4]
    if case == "own changes":
        was[3] = -1
    if case == "deleted":
        file.unlink()
    if case == "cut off":
        os.truncate(file, LARGE_NBYTES)
    found, nbytes = travelled(was)
    np.testing.assert_array_equal(found, was)
    assert nbytes > LARGE_NBYTES
