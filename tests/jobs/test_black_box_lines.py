"""A black box is read as it was written; damaged lines are left out, other files refused."""

from __future__ import annotations

import json
import stat
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed import OptionError
from fastfeed.jobs import blackbox
from fastfeed.jobs.blackbox import (
    BlackBox,
    BlackBoxEvent,
    FlightRecord,
    ProducerTable,
    in_use,
    read,
)
from fastfeed.jobs.job_view import render
from fastfeed.jobs.runner_samples import ProducerSample, RunnerSample
from tests.helpers.mutations import DEPTH, mutated
from tests.jobs.flights import drawn, producer, sample

whole = st.integers(-1, 2**63 - 1)
real = st.floats(0, 1e12)
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=300)
STRATEGIES = {int: whole, float: real, str: text, float | None: st.none() | real}
STRATEGIES[dict[str, int]] = st.dictionaries(text, whole, max_size=4)
STRATEGIES[dict[str, float]] = st.dictionaries(text, real, max_size=4)


def any_of(kind: type) -> st.SearchStrategy[Any]:
    """Return a strategy for samples of this kind."""
    return st.builds(kind, *(STRATEGIES[hint] for hint in get_type_hints(kind).values()))


samples, rows = any_of(RunnerSample), any_of(ProducerSample)


def written(write: Callable[[BlackBox], None]) -> bytes:
    """Return the content of a black box."""
    with tempfile.TemporaryDirectory() as folder:
        box = BlackBox(Path(folder))
        write(box)
        box.close(True)
        return box.path.read_bytes()


def content(data: bytes) -> FlightRecord:
    """Return what is read from such a file, which can be drawn."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "box")
        path.write_bytes(data)
        found = read(path)
    drawn(render(found, 150))
    return found


def write_some(box: BlackBox) -> None:
    for n in range(1, 6):
        box.event(0, f"event {n}")
        box.write(sample(n))
        box.table([producer(n), producer(n + 1)])


SOME = written(write_some)
READ = content(SOME)


@settings(max_examples=20, deadline=None)
@given(st.lists(samples, max_size=5), st.lists(text, max_size=5), st.lists(rows, max_size=6))
def test_what_was_written_is_read(
    samples: list[RunnerSample], texts: list[str], rows: list[ProducerSample]
) -> None:
    def write(box: BlackBox) -> None:
        for one in samples:
            box.write(one)
        for text in texts:
            box.event(3, text)
        box.table(rows)

    found = content(written(write))
    assert found.samples == tuple(samples)
    assert [event.text for event in found.events] == texts
    assert found.table is not None and found.table.rows == tuple(rows)
    assert not found.damaged and found.ending == "with an error"


def test_a_file_that_has_grown_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(blackbox, "GROWTH_NBYTES", 2**14)
    kept = {RunnerSample: 64, BlackBoxEvent: 16, ProducerTable: 1}
    monkeypatch.setattr(blackbox, "KEPT_RECORDS", kept)
    box = BlackBox(tmp_path)
    box.event(0, "start")
    sizes = [0]
    for n in range(1, 500):
        box.write(sample(n))
        box.table([producer(n)])
        found = read(box.path) if n % 100 == 0 else None
        assert found is None or (found.samples[-1], found.ending) == (sample(n), "running")
        sizes.append(box.path.stat().st_size)
        assert stat.S_IMODE(box.path.stat().st_mode) == 0o600
    for n in range(200):
        box.event(0, f"event {n}")
    found = read(box.path)
    assert (count := len(found.samples)) >= 64 and max(sizes) < 2**16
    assert sum(after < before for before, after in pairwise(sizes)) > 3
    assert found.samples == tuple(sample(n) for n in range(500 - count, 500))
    assert [e.text for e in found.events][-16:] == [f"event {n}" for n in range(184, 200)]
    assert found.table is not None and found.table.rows == (producer(499),) and not found.damaged
    assert in_use(box.path) and list(tmp_path.iterdir()) == [box.path]
    box.close(True)
    assert not in_use(box.path) and read(box.path).header == found.header


def test_what_is_large_is_cut() -> None:
    def write(box: BlackBox) -> None:
        box.event(0, "x" * 10**6)
        box.table([producer(n) for n in range(1000)])

    found = content(written(write))
    assert found.events[0].text == "x" * blackbox.MAX_TEXT_LENGTH and found.table is not None
    assert (len(found.table.rows), found.table.total) == (blackbox.MAX_TABLE_ROWS, 1000)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, len(SOME) - 1))
def test_a_torn_last_line_is_ignored(nbytes: int) -> None:
    try:
        found = content(SOME[:nbytes])
    except OptionError:
        assert nbytes < SOME.index(b"\n")
        return
    assert not found.damaged and found.ending == "killed"
    assert found.samples == READ.samples[: len(found.samples)]
    assert found.events == READ.events[: len(found.events)]
    assert len(found.samples) + len(found.events) >= SOME[:nbytes].count(b"\n") // 3 * 2 - 2


@settings(max_examples=30, deadline=None)
@given(st.integers(0, len(SOME) - 1), st.binary(min_size=1, max_size=600))
def test_garbage_costs_only_the_lines_it_hits(at: int, garbage: bytes) -> None:
    data = SOME[:at] + garbage + SOME[at + len(garbage) :]
    try:
        found = content(data)
    except OptionError:
        assert at <= SOME.index(b"\n")
        return
    kept = (*found.samples, *found.events)
    lost = sum(one not in kept for one in (*READ.samples, *READ.events))
    assert lost <= SOME[at : at + len(garbage)].count(b"\n") + 1


@pytest.mark.parametrize("seed", range(120))
def test_a_forged_line_harms_nothing(seed: int) -> None:
    lines = [*SOME.splitlines(), SOME.splitlines()[0]]  # a second header is passed over
    n = seed % len(lines)
    forged = mutated(json.loads(lines[n]), seed=seed)
    try:
        lines[n] = json.dumps(forged).encode()
    except RecursionError:
        lines[n] = b'{"RunnerSample": ' + b"[" * DEPTH + b"]" * DEPTH + b"}"
    try:
        found = content(b"\n".join(lines) + b"\n")
    except OptionError:
        assert n == 0
        return
    assert found.damaged <= 1 and sum(one not in found.samples for one in READ.samples) <= 1


@pytest.mark.parametrize(
    "data",
    [b"", b"\x89PNG", b"{}\n", b"[" * 10**5, b'{"BlackBoxEnd": {}}\n', SOME[1:], b"\0\n" * 9],
)
def test_strange_files_are_refused(data: bytes) -> None:
    with pytest.raises(OptionError, match="is no black box of this version"):
        content(data)
