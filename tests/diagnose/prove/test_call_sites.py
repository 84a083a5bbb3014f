"""What a run notes of the calls that made what feeds its loop."""

from __future__ import annotations

import importlib
import linecache
import sys
from pathlib import Path

import pytest

from fastfeed.diagnose.prove.call_sites import loader_facts

torch = pytest.importorskip("torch")
STREAM = """
import torch
from torch.utils.data import Dataset, IterableDataset

class Stream(IterableDataset):
    def __iter__(self):
        {first}
        return iter(range(8))

class More(Stream):
    pass

class Rows(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return i
"""


@pytest.mark.parametrize(
    ("kind", "first", "whole"),
    [
        ("Stream", "pass", True),
        ("More", "pass", True),
        ("More", "torch.utils.data.get_worker_info()", False),
        ("Rows", "pass", False),
    ],
)
def test_a_stream_that_each_worker_reads_is_noted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    first: str,
    whole: bool,
) -> None:
    (tmp_path / "streams_of_test.py").write_text(STREAM.format(first=first))
    linecache.clearcache()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "streams_of_test", raising=False)
    module = importlib.import_module("streams_of_test")
    loader = torch.utils.data.DataLoader(getattr(module, kind)(), num_workers=0)
    facts = {"num_workers": 0, "persistent_workers": False, "whole": whole, "starts": False}
    assert loader_facts(loader) == facts
    started = torch.utils.data.DataLoader(loader.dataset, worker_init_fn=print)
    assert loader_facts(started) == {**facts, "starts": True}
