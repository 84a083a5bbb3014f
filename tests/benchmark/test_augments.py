"""fastfeed bench --augment: the same operations by each executor."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fastfeed.cli import main

cv2 = pytest.importorskip("cv2")
EXECUTORS = ["producers", *["dali-cpu"] * (importlib.util.find_spec("nvidia.dali") is not None)]
QUICK = (
    "--seconds",
    "0.1",
    "--repeats",
    "1",
    "--threads",
    "1,2",
    "--batch-size",
    "4",
    "--consumer",
    "sim:1ms",
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for i in range(9):
        cv2.imwrite(str(folder / f"{i}.jpg"), rng.integers(0, 255, (90 + i, 120, 3), np.uint8))
    return folder


def bench(*args: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["bench", *args])
    return done.exit_code, done.output


@pytest.mark.slow
def test_a_curve_for_each_executor(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    chosen = ("--augment", "standard", "--augment-on", ",".join(EXECUTORS))
    code, said = bench("--workload", f"photos:{photos}", *chosen, *QUICK, "--output", str(folder))
    assert code == 0, said
    assert all(name in said for name in EXECUTORS) and "is the quickest" in said
    assert {p.name for p in folder.iterdir()} == {"bench.json", "bench.png", "bench.svg"}
    found = json.loads((folder / "bench.json").read_text())
    assert [(s["kind"], s["threads"]) for s in found["settings"]] == [
        (e, n) for e in EXECUTORS for n in (1, 2)
    ]
    assert all(s["steps_per_second"]["min"] > 0 for s in found["settings"])
    assert [s["kind"] for s in found["settings"] if s["predicted"]] == ["producers"] * 2
    assert "Decode, RandomResizedCrop, Flip" in found["data"]
    drawn = (folder / "bench.svg").read_text()
    assert all(f"<!-- {name}, threads in the trainer -->" in drawn for name in EXECUTORS)
    result = str(folder / "bench.json")
    said = CliRunner().invoke(main, ["compare", result, result]).output
    assert all(f"1 thread, {name} " in said for name in EXECUTORS)


def test_operations_of_ones_own(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_spec.py").write_text(
        "from fastfeed.augment import *\nspec = Augment([Decode(), Resize(8)])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    code, said = bench("--workload", f"photos:{photos}", "--augment", "my_spec:spec", *QUICK)
    assert code == 0, said
    assert "Decode, Resize" in said


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--workload", "sleep:1ms", "--augment", "standard"), "--workload photos:DIR"),
        (("--workload", "photos:{photos}", "--augment", "fancy"), "standard or"),
        (("--workload", "photos:{photos}", "--augment", "json:dumps"), "of an Augment"),
        (
            ("--workload", "photos:{photos}", "--augment", "standard", "--augment-on", "tpu"),
            "dali-gpu",
        ),
        (("--workload", "photos:{photos}", "--augment", "standard", "--data", "x"), "--data"),
        (("--workload", "photos:{photos}", "--augment-on", "producers"), "--augment-on alone"),
        (("--workload", "photos:{photos}", "--augment", ":"), "standard or"),
        (("--workload", "photos:{empty}", "--augment", "standard"), "it holds none"),
    ],
)
def test_bad_input(args: tuple[str, ...], told: str, photos: Path, tmp_path: Path) -> None:
    code, said = bench(*(a.format(photos=photos, empty=tmp_path) for a in args), *QUICK)
    assert code == 2
    assert told in said
