"""The file of a cache is right after a loss of power or damage, or is refused."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import FeedRunner, OptionError
from fastfeed.core.collate import aligned_arrays
from fastfeed.options import Cache
from fastfeed.source import cache_file
from fastfeed.source.base import FILTERED
from fastfeed.source.cached import CachedRecords
from tests.source.test_cached import LENGTH, rows

SECTOR = 512  # of a disk, which writes one whole, or not at all
MANY = 300  # records, whose states and checksums lie in several sectors
EVERY_THIRD = range(0, MANY, 3)


def long_record(index: int) -> Any:
    return FILTERED if index % 7 == 3 else np.arange(index, index + 90)


def opened(folder: Path) -> CachedRecords:
    return CachedRecords(range(MANY), Cache(folder, memory=10**6), make=long_record)


def wrong_records(records: CachedRecords, indices: Any) -> list[int]:
    """Read records one by one, and in batches where all are there; return the wrong ones."""
    found = []
    for index in indices:
        batch = records.gather([index], aligned_arrays)
        record, expected = records[index], long_record(index)
        if (record is FILTERED) != (expected is FILTERED) or (
            expected is not FILTERED
            and ((record != expected).any() or (batch is not None and (batch != expected).any()))
        ):
            found.append(index)
    return found


@settings(max_examples=20)
@given(st.data())
def test_a_cache_is_right_after_any_loss_of_power(data: st.DataObject) -> None:
    """Of each sector, the disk has the version of any moment since the last loss of power."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    shares = data.draw(st.lists(st.sampled_from([0.2, 0.8, 1.0]), min_size=2, max_size=5))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / cache_file.FILE_NAME
        disk = b""
        for share in shares:  # of the records that a run reads before the power is lost
            records, moments = opened(Path(folder)), [disk]
            read = random.permutation(MANY)[: int(share * MANY)]
            for part in np.array_split(read, 3):
                assert not wrong_records(records, part.tolist())
                moments.append(file.read_bytes())
            records.release()
            sizes = [max(len(m) for m in moments)] * len(moments)
            pages = np.stack(
                [
                    np.frombuffer(m.ljust(-(-n // SECTOR) * SECTOR, b"\0"), np.uint8)
                    for m, n in zip(moments, sizes, strict=True)
                ]
            ).reshape(len(moments), -1, SECTOR)
            version = random.integers(0, len(moments), pages.shape[1])
            disk = pages[version, np.arange(pages.shape[1])].tobytes()[: sizes[0]]
            file.write_bytes(disk)
        records = opened(Path(folder))
        assert not wrong_records(records, range(MANY))
        records.release()


@settings(max_examples=40)
@given(st.data())
def test_a_cache_with_damaged_pages_is_right_or_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / cache_file.FILE_NAME
        records = opened(Path(folder))
        assert not wrong_records(records, EVERY_THIRD)
        records.release()
        content = np.frombuffer(bytearray(file.read_bytes()), np.uint8)
        table = range(cache_file.HEADER_NBYTES - 64, cache_file.HEADER_NBYTES + 8 * MANY, 64)
        for at in data.draw(st.lists(st.sampled_from([0, *table]), min_size=1, max_size=6)):
            length = data.draw(st.sampled_from([1, 4, 512, 4096]))
            content[at : at + length] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 255]))
        file.write_bytes(content.tobytes())
        records = opened(Path(folder))
        with contextlib.suppress(OptionError):  # of a header without sense
            assert not wrong_records(records, range(MANY))
        records.release()


HEADERS = [
    {"rows": value}
    for value in (None, -1, LENGTH + 1, 2**70, 1e400, 2.5, "3", [], {}, True, float("nan"))
]


@pytest.mark.parametrize(
    "header",
    [*HEADERS, [], 3, None, "x", [[[]]], {"leaves": None}, b"[" * 10_000],
    ids=lambda h: str(h)[:20],
)
def test_a_damaged_header_is_refused(header: Any, tmp_path: Path) -> None:
    rows(range(LENGTH), cache=tmp_path)
    file = tmp_path / cache_file.FILE_NAME
    content = bytearray(file.read_bytes())
    known = json.loads(content[: content.index(b"\0")])
    given = {**known, **header} if isinstance(header, dict) else header
    written = given if isinstance(given, bytes) else json.dumps(given).encode()
    content[: len(written) + 20] = written.ljust(len(written) + 20, b"\0")
    file.write_bytes(content)
    with pytest.raises(OptionError, match="Delete it, or choose another folder"):
        rows(range(LENGTH), cache=tmp_path)


@pytest.mark.parametrize("fewer", [1, 31, LENGTH])
def test_fewer_rows_than_there_were_give_the_right_records(fewer: int, tmp_path: Path) -> None:
    rows(range(LENGTH), cache=tmp_path)
    file = tmp_path / cache_file.FILE_NAME
    content = file.read_bytes().replace(b'"rows": 40', b'"rows": %2d' % (LENGTH - fewer))
    file.write_bytes(content)
    assert rows(range(LENGTH), cache=tmp_path, epochs=2) == list(range(LENGTH)) * 2


def test_records_of_a_thousand_columns_have_a_header(tmp_path: Path) -> None:
    def wide(number: int) -> dict[str, Any]:
        return {f"column {column}": np.float32(number + column) for column in range(1000)}

    for _ in range(2):
        with FeedRunner(range(9), batch_size=3, transform=wide, cache=tmp_path, epochs=2) as runner:
            found = [batch["column 999"].tolist() for batch in runner]
        assert np.ravel(found).tolist() == [n + 999.0 for n in (*range(9), *range(9))]
    with pytest.raises(OptionError, match="Delete it"):
        list(FeedRunner(range(9), batch_size=3, transform=lambda n: wide(n + 1), cache=tmp_path))
