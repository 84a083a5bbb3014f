"""A cache of what the producers make of records: each is made once, whoever reads it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastfeed import FeedRunner, OptionError, SpecError, Worker
from fastfeed.options import Cache
from fastfeed.source import cache_file
from fastfeed.source.cache_file import CacheFile, new_cache_file
from fastfeed.source.cached import CHECKED
from fastfeed.source.mix import Mix
from tests.helpers.streams import LIMIT_S

EXECUTORS = [(1, 0), (3, 0), (1, 2), (2, 2)]
in_each = pytest.mark.parametrize(("threads", "processes"), EXECUTORS, ids=str)
LENGTH = 40
TABLE_END = cache_file.HEADER_NBYTES + 8 * LENGTH


class Noted:
    """Records that note in a file each time that one is read, from any process."""

    def __init__(self, file: Path, length: int = LENGTH, offset: int = 0) -> None:
        self.file, self.length, self.offset = file, length, offset
        file.touch()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        with self.file.open("ab") as file:
            file.write(b"%d\n" % index)
        return index + self.offset

    @property
    def reads(self) -> list[int]:
        """Return the indices that were read so far."""
        return list(map(int, self.file.read_text().split()))


def made(number: int) -> dict[str, Any]:
    return {"image": np.full((2, 3), number, np.uint8), "label": number % 10}


def rows(source: Any, **options: Any) -> list[int]:
    """Return the numbers of all records, in the order of delivery."""
    options = {"batch_size": 8, "transform": made, "stall_timeout_s": LIMIT_S, **options}
    found: list[int] = []
    with FeedRunner(source, **options) as runner:
        for batch in runner:
            assert batch["image"].dtype == np.uint8 and batch["label"].dtype == np.int64
            assert (batch["image"][:, 0, 0] % 10 == batch["label"]).all()
            assert (batch["image"] == batch["image"][:, :1, :1]).all()
            found += batch["image"][:, 1, 2].tolist()
    return found


@in_each
def test_later_epochs_read_what_the_first_one_made(
    threads: int, processes: int, tmp_path: Path
) -> None:
    source = Noted(tmp_path / "reads")
    options: dict[str, Any] = {"threads": threads, "processes": processes, "shuffle": True}
    found = rows(source, cache="ram", epochs=3, seed=1, **options)
    assert found == rows(range(LENGTH), epochs=3, seed=1, **options)
    # Each process makes its first records twice, to see that both are equal.
    # The next epoch may begin while a batch of the last one is made.
    workers = max(1, processes)
    assert LENGTH < len(source.reads) < 2 * LENGTH + 2 * CHECKED * workers


@in_each
def test_a_folder_is_read_by_the_next_run(threads: int, processes: int, tmp_path: Path) -> None:
    source, folder = Noted(tmp_path / "reads"), tmp_path / "cache"
    assert rows(source, cache=folder, threads=threads, processes=processes) == list(range(LENGTH))
    before = len(source.reads)
    assert rows(source, cache=str(folder)) == list(range(LENGTH))
    assert len(source.reads) - before == 2 * CHECKED


def test_the_next_loop_over_a_runner_reads_the_cache(tmp_path: Path) -> None:
    source = Noted(tmp_path / "reads")
    with FeedRunner(source, batch_size=8, transform=made, cache="ram") as runner:
        for _ in range(3):
            assert len(list(runner)) == 5
    assert len(source.reads) == LENGTH + CHECKED


def test_a_filter_is_remembered(tmp_path: Path) -> None:
    source = Noted(tmp_path / "reads")
    found = rows(source, cache="ram", epochs=2, filter=lambda n: n % 2)
    assert found == list(range(1, LENGTH, 2)) * 2
    assert len(source.reads) <= LENGTH + CHECKED + 1


@given(st.integers(1, 50), st.integers(1, 9), st.integers(0, 60), st.booleans())
def test_records_without_a_row_are_made_again(
    length: int, batch_size: int, fitting: int, shuffled: bool
) -> None:
    nbytes = cache_file.HEADER_NBYTES + 8 * length + 64 * 4 + 14 * fitting
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "epochs": 2,
        "shuffle": shuffled,
        "seed": 2,
    }
    found = rows(range(length), cache=Cache("ram", memory=nbytes), **options)
    assert found == rows(range(length), **options)


def test_the_bound_holds(tmp_path: Path) -> None:
    bound = 20_000
    assert rows(range(250), cache=Cache(tmp_path / "c", memory=bound), epochs=2)
    size = (tmp_path / "c" / cache_file.FILE_NAME).stat().st_size
    assert bound - 64 * 3 < size <= bound


@pytest.mark.parametrize("processes", [0, 2])
def test_a_damaged_record_is_made_again_and_counted(
    processes: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Noted(tmp_path / "reads")
    rows(source, cache=tmp_path)
    file = tmp_path / cache_file.FILE_NAME
    content = bytearray(file.read_bytes())
    at = bytes(content).index(bytes(made(21)["image"].tobytes()))
    content[at] ^= 255
    file.write_bytes(content)
    before = len(source.reads)
    options: Any = {"batch_size": 8, "transform": made, "cache": tmp_path}
    with FeedRunner(source, **options, processes=processes) as runner:
        found = np.concatenate([batch["image"][:, 0, 0] for batch in runner])
        assert found.tolist() == list(range(LENGTH))
        assert runner.snapshot().remade == 1
    assert source.reads[before:].count(21) in (1, 2)  # twice among the first of a process
    assert processes or "record 21 of the cache" in caplog.text


def test_a_file_that_was_cut_off_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows(range(LENGTH), cache=tmp_path)
    os.truncate(tmp_path / cache_file.FILE_NAME, TABLE_END)
    with FeedRunner(range(LENGTH), batch_size=8, transform=made, cache=tmp_path) as runner:
        assert sum(len(batch["label"]) for batch in runner) == LENGTH
        assert runner.snapshot().remade == LENGTH - 1  # the first one is all zeros
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"source": range(LENGTH + 1)},
        {"source": range(5, LENGTH + 5)},
        {"transform": lambda n: {**made(n), "label": 3}},
        {"transform": lambda n: {**made(n), "image": np.zeros((3, 3), np.uint8)}},
        {"transform": lambda n: {"image": made(n)["image"]}},
        {"transform": lambda n: made(n + (n == 11))},
        {"filter": lambda n: n != 11},
    ],
    ids=["length", "records", "transform", "shape", "structure", "one record", "filter"],
)
def test_a_folder_of_another_data_set_is_refused(other: dict[str, Any], tmp_path: Path) -> None:
    rows(range(LENGTH), cache=tmp_path)
    with pytest.raises(OptionError, match="Delete it, or choose another folder"):
        rows(**{"source": range(LENGTH), "cache": tmp_path, **other})


def test_a_folder_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows(range(LENGTH), cache=tmp_path)
    monkeypatch.setattr(cache_file, "VERSION", 2)
    with pytest.raises(OptionError, match="its fastfeed cache is 1, and here it is 2"):
        rows(range(LENGTH), cache=tmp_path)


@pytest.mark.parametrize(
    ("free", "cut_off"), [(0, False), (TABLE_END + 64, False), (TABLE_END + 64, True)]
)
def test_a_full_disk_costs_only_the_cache(
    free: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    cut_off: bool,
) -> None:
    reserve, path = os.posix_fallocate, tmp_path / cache_file.FILE_NAME

    def full(file: int, start: int, nbytes: int) -> None:
        if nbytes > free:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(file, start, nbytes)

    if cut_off:
        rows(range(LENGTH), cache=tmp_path)
        os.truncate(path, TABLE_END)
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert rows(range(LENGTH), cache=tmp_path, epochs=2) == list(range(LENGTH)) * 2
    assert "no space for the cache" in caplog.text
    assert path.stat().st_size == min(free, TABLE_END)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="cannot be written"):
        rows(range(4), cache=tmp_path / "file")


def test_two_runs_share_a_folder(tmp_path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 8, "transform": made, "cache": tmp_path}
    with FeedRunner(range(LENGTH), **options) as one, FeedRunner(range(LENGTH), **options) as other:
        for a, b in zip(one, other, strict=True):
            assert (a["image"] == b["image"]).all()


def drawn(number: int, worker: Worker) -> Any:
    return np.array([number, worker.rng.random()])


def test_random_records_only_on_request() -> None:
    options: dict[str, Any] = {"batch_size": 4, "seed": 3, "epochs": 2}
    with pytest.raises(OptionError, match="random=True"):
        FeedRunner(range(8), transform=drawn, cache="ram", **options)
    noise = np.random.default_rng()
    with pytest.raises(OptionError, match="another record each time"):
        list(FeedRunner(range(8), transform=lambda n: n + noise.random(), cache="ram", **options))
    for name in ("transform", "filter"):
        rarely = iter(10 * [0] + [1] + 100 * [0])
        function = {name: lambda n, draws=rarely: next(draws)}
        with pytest.raises(OptionError, match="another record each time"):
            list(FeedRunner(range(8), cache="ram", **options, **function))
    cache = Cache("ram", random=True)
    found = []
    for threads in (1, 3):
        with FeedRunner(
            range(8), transform=drawn, cache=cache, threads=threads, **options
        ) as runner:
            found.append(np.concatenate(list(runner)))
    assert (found[0] == found[1]).all() and (found[0][:8] == found[0][8:]).all()


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (lambda n: np.zeros(n + 1), "record 1 is"),
        (str, "requires records of numbers"),
        (lambda n: {"a": np.array([None])}, "requires records of numbers"),
    ],
)
def test_records_that_have_no_row(transform: Any, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        list(FeedRunner(range(4), batch_size=2, transform=transform, pad=True, cache="ram"))


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (lambda: iter([1]), {}),
        (iter([1]), {"records": True, "batch_size": 2}),
        ([[1]], {"records": False}),
        (Mix([(range(4), 1), (range(4), 1)]), {"batch_size": 2}),
    ],
    ids=["callable", "iterator", "batches", "mix"],
)
def test_sources_without_records_by_index(source: Any, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="requires single records by index"):
        FeedRunner(source, cache="ram", **options)


@pytest.mark.parametrize("cache", [3, "", Path, True])
def test_what_is_no_cache(cache: Any) -> None:
    with pytest.raises(OptionError, match='must be "ram" or a folder'):
        FeedRunner(range(4), batch_size=2, cache=cache)


def test_no_map_of_the_file_outlives_the_runner(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with FeedRunner(range(LENGTH), batch_size=8, epochs=2, cache=folder) as runner:
        list(runner)
        assert str(folder) in Path("/proc/self/maps").read_text()
    assert str(folder) not in Path("/proc/self/maps").read_text()
    assert runner.snapshot().remade == 0


def test_no_map_of_the_file_outlives_a_refused_record(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    options: Any = {"batch_size": 8, "transform": lambda n: np.zeros(1 + n // 20), "cache": folder}
    with (
        pytest.raises(OptionError, match="record 20 is") as caught,
        FeedRunner(range(LENGTH), **options) as runner,
    ):
        list(runner)
    assert caught.value.__traceback__ is not None
    assert str(folder) not in Path("/proc/self/maps").read_text()


@given(st.permutations(range(23)), st.integers(1, 30), st.integers(1, 9))
def test_a_batch_is_read_whole_as_soon_as_its_records_are_there(
    order: list[int], look_ahead: int, batch_size: int
) -> None:
    path, close, _ = new_cache_file("ram", nbytes=1 << 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_file, "LOOK_AHEAD", look_ahead)
        file = CacheFile(path, 23, nbytes=1 << 20)
        assert not file.holds(np.arange(3)) and not file.complete
        file.learn([np.array(0)], "a number")
        for done, index in enumerate(order):
            rows = np.roll(np.arange(23), index)[:batch_size]
            assert file.holds(rows) == (set(rows.tolist()) <= set(order[:done]))
            assert not file.complete
            file.put(index, [np.array(index)])
        assert all(file.holds(np.arange(23)) for _ in range(23)) and file.complete
    file.release()
    assert not file.complete and not file.holds(np.arange(3))
    close()


def test_trainings_that_share_a_folder_check_each_record_once(tmp_path: Path) -> None:
    path, _, _ = new_cache_file(tmp_path, nbytes=1 << 20)
    files = []
    for _ in range(3):
        files.append(CacheFile(path, LENGTH, nbytes=1 << 20))
        files[-1].learn([np.array(0)], "a number")
    for index in range(LENGTH):
        files[1].put(index, [np.array(index)])
    everything = np.arange(LENGTH)
    for file in (*files, *files):
        assert file.holds(everything)
    assert files[0].states.tolist() == [3] * LENGTH  # the last run's check is enough for all


def test_a_batch_with_a_damaged_record_is_not_read_whole(tmp_path: Path) -> None:
    path, _, _ = new_cache_file(tmp_path, nbytes=1 << 20)
    one, other = CacheFile(path, 9, nbytes=1 << 20), CacheFile(path, 9, nbytes=1 << 20)
    for file in (one, other):
        file.learn([np.array(0)], "a number")
    for index in range(9):
        one.put(index, [np.array(index)])
    one.columns[0][4] = 40
    assert other.holds(np.arange(4)) and not other.holds(np.arange(3, 6)) and not other.damaged
    assert other.is_damaged(4) and other.damaged == 1
    other.put(4, [np.array(4)])
    assert other.holds(np.arange(9)) and one.holds(np.arange(9)) and one.damaged == 1


def test_the_functions_of_a_user_do_not_touch_the_cache() -> None:
    kept: list[Any] = []

    def collate(records: list[Any]) -> Any:
        kept.extend(records)
        batch = np.stack([record["image"] for record in records])
        for record in records:
            record["image"] += 1
        return batch

    options: dict[str, Any] = {"batch_size": 8, "transform": made, "collate": collate}
    with FeedRunner(range(LENGTH), cache="ram", epochs=4, **options) as runner:
        found = np.concatenate(list(runner))
    assert found[:, 0, 0].tolist() == list(range(LENGTH)) * 4
    assert "fastfeed-cache" not in Path("/proc/self/maps").read_text()


def test_numbers_of_another_byte_order() -> None:
    options: Any = {"batch_size": 8, "transform": lambda n: np.full(3, n, ">i4"), "epochs": 3}
    with (
        FeedRunner(range(LENGTH), **options) as plain,
        FeedRunner(range(LENGTH), cache="ram", **options) as runner,
    ):
        for batch, expected in zip(runner, plain, strict=True):
            assert batch.dtype == expected.dtype and (batch == expected).all()


def test_a_folder_on_a_read_only_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(range(LENGTH), cache=tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(OptionError, match=r"cannot be written \(Read-only file system\): choose"):
        rows(range(LENGTH), cache=tmp_path)


@in_each
def test_a_filter_that_leaves_nothing(threads: int, processes: int) -> None:
    options: Any = {"cache": "ram", "threads": threads, "processes": processes, "epochs": 2}
    with pytest.raises(SpecError, match="does filter= leave nothing"):
        rows(range(LENGTH), filter=lambda n: n < 0, **options)
