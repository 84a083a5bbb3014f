"""What a run notes of the calls that made what feeds its loop."""

from __future__ import annotations

import functools
import importlib
import linecache
import multiprocessing
import random
import sys
from pathlib import Path

import numpy as np
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
    facts = {"num_workers": 0, "persistent_workers": False, "whole": whole}
    facts |= {
        "stream": kind != "Rows",
        "starts": False,
        "draws": False,
        "start": multiprocessing.get_all_start_methods()[0],
    }
    assert loader_facts(loader) == facts
    options = {"worker_init_fn": print, "num_workers": 1, "multiprocessing_context": "spawn"}
    started = torch.utils.data.DataLoader(loader.dataset, **options)
    facts |= {"starts": True, "num_workers": 1, "start": "spawn"}
    assert loader_facts(started) == facts


NOISE = np.random.default_rng(0)


def noisy(x: float) -> float:
    return x + NOISE.normal()


class Augmented(torch.utils.data.Dataset):
    def __init__(self, **parts: object) -> None:
        self.samples = [(f"{n}.jpg", n) for n in range(20_000)]
        self.steps = [{"noise": parts}]


class Noisy(Augmented):
    def __getitem__(self, index: int) -> float:
        return noisy(index)


@pytest.mark.parametrize(
    ("parts", "draws"),
    [
        ({}, False),
        ({"rng": np.random.default_rng(0)}, True),
        ({"deep": [(random.Random(0),)]}, True),
        ({"rng": torch.Generator()}, True),
        ({"draw": np.random.default_rng(0).normal}, True),
        ({"part": functools.partial(min, np.random.default_rng(0))}, True),
        ({"closure": (lambda rng: lambda: rng.random())(random.Random(0))}, True),
        ({"module": random, "kind": random.Random, "numbers": list(range(100_000))}, False),
    ],
)
def test_generators_that_workers_would_copy_are_noted(
    parts: dict[str, object], draws: bool
) -> None:
    loader = torch.utils.data.DataLoader(Augmented(**parts))
    assert loader_facts(loader)["draws"] == draws


def test_generators_of_the_functions_that_a_dataset_calls_are_noted() -> None:
    whole = Noisy()
    for data in (whole, torch.utils.data.Subset(whole, range(4))):
        assert loader_facts(torch.utils.data.DataLoader(data))["draws"]
    collating = torch.utils.data.DataLoader(Augmented(), collate_fn=noisy)
    assert loader_facts(collating)["draws"]


def test_a_dataset_without_a_module_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noisy, "__module__", "module_that_is_gone")
    facts = loader_facts(torch.utils.data.DataLoader(Noisy()))
    assert not facts["whole"]
