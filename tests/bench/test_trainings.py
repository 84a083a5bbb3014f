"""The whole trainings of bench/trainings run in each of their forms, and are reported right."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.trainings import audio, command, tokens
from bench.trainings.figures import report, steps_apart, summary
from bench.trainings.training import (
    FIRST_LOSSES,
    NAMES,
    QUICK_STEPS,
    SMOOTHING,
    WARM_UP,
    Form,
    Progress,
    Training,
    lines_of,
    training_of,
)
from bench.trainings.turns import measured, memory_of
from fastfeed import FeedRunner

ABSENT = "a_module_that_nobody_has"


def nothing(data: Any, progress: Progress) -> None:
    """Stand in for a form."""


def test_a_run_is_over_when_its_mean_loss_is_low_enough() -> None:
    progress = Progress(target=0.5, cap=1000)
    steps = 1
    assert not progress.over(1.0)
    while not progress.over(0.0):
        steps += 1
    mean = (1 - SMOOTHING) ** steps
    assert mean <= 0.5 < mean / (1 - SMOOTHING)
    assert progress.result["reached"]
    assert progress.result["loss"] == pytest.approx(mean)
    assert progress.result["steps"] == steps + 1
    assert progress.result["starvation"] is None  # nobody has measured a wait
    first = progress.result
    assert progress.over(9.0)
    assert progress.result is first


def test_a_run_ends_after_its_last_step() -> None:
    progress = Progress(target=-1.0, cap=5)
    assert [progress.over(1.0 / n) for n in range(1, 6)] == [False] * 4 + [True]
    found = progress.result
    assert (found["reached"], found["steps"]) == (False, 5)
    assert found["first_losses"] == [1.0, 1 / 2, 1 / 3][:FIRST_LOSSES]
    assert found["seconds"] > 0 < found["steps_per_s"]
    assert found["cpu_s"] >= 0


def test_a_run_that_ends_in_its_warm_up_has_no_rate() -> None:
    progress = Progress(target=2.0, cap=100)
    progress.waited(1.0)
    assert progress.over(1.0)
    found = progress.result
    assert (found["reached"], found["steps_per_s"], found["starvation"]) == (True, None, None)


def test_a_wait_before_the_warm_up_ends_does_not_count() -> None:
    progress = Progress(target=-1.0, cap=WARM_UP * 3)
    for number in range(WARM_UP * 3):
        progress.waited(100.0 if number < WARM_UP else 0.0)
        progress.over(1.0)
    assert progress.result["starvation"] == 0.0


@pytest.mark.parametrize("way", ["watch", "feed"])
def test_the_waits_of_a_loop_are_measured(way: str) -> None:
    progress = Progress(target=-1.0, cap=WARM_UP * 3)
    with FeedRunner((np.arange(1000),), batch_size=10) as runner:
        fed = progress.watch(runner) if way == "watch" else progress.feed(runner)
        for _ in fed:
            if progress.over(1.0):
                break
    assert 0.0 < progress.result["starvation"] <= 1.0


def documented() -> Iterator[int]:
    """Yield numbers.

    The docstring, comments and blank lines do not count.
    """
    # of the first kind

    yield 1  # this line counts
    yield from [
        2,
        3,
    ]


class Documented:
    """A class, whose docstrings do not count."""

    def method(self) -> int:
        """Neither do those of its methods."""
        return 1


def test_lines_of_code_are_counted() -> None:
    assert lines_of(documented) == lines_of(partial(documented)) == 6
    assert lines_of(Documented) == 3
    assert Form("both", documented, uses=(Documented,)).lines == 9


@pytest.mark.parametrize("name", NAMES)
def test_each_training_has_what_is_compared(name: str) -> None:
    training = training_of(name)
    names = [form.name for form in training.forms]
    assert len(set(names)) == len(names)
    assert sorted(form.ours for form in training.forms if form.ours) == ["auto", "fixed"]
    assert any(not form.ours for form in training.forms)
    assert all(form.lines > 3 for form in training.forms)


def test_a_module_that_is_not_installed_is_named() -> None:
    training = Training("", lambda quick: (None, ""), (), 1.0, 1, needs=("json",), prefers=ABSENT)
    assert training.missing(Form("", nothing, needs=("sys", ABSENT))) == [ABSENT]
    assert training.missing(Form("", nothing)) == []
    assert training.note == f"a plain loop, because {ABSENT} is not installed"


def test_texts_become_tokens_that_cover_them() -> None:
    data, _ = tokens.load(quick=True)
    again, _ = tokens.load(quick=True)
    assert data.texts == again.texts
    letters = {number: token for token, number in data.vocabulary.items()}
    found, label = data[7]
    assert "".join(letters[n] for n in found.tolist()) == data.texts[7].replace(" ", "")
    assert label == data.labels[7]


def test_a_batch_of_texts_is_padded_with_zeros() -> None:
    records = [(np.full(n, 5, np.int32), np.int32(n)) for n in (3, tokens.WIDTH + 1, 1)]
    batch, labels = tokens.padded(records)
    assert batch.shape == (3, 2 * tokens.WIDTH)
    assert (batch > 0).sum(axis=1).tolist() == [3, tokens.WIDTH + 1, 1]
    assert labels.tolist() == [3, tokens.WIDTH + 1, 1]


def test_a_tone_is_loud_in_its_band() -> None:
    seconds = np.arange(audio.RATE) / audio.RATE
    waves = np.stack([3000 * np.sin(2 * np.pi * hertz * seconds) for hertz in (400, 4000)])
    data = audio.Sounds(waves.astype(np.int16), np.array([0, 1]))
    (low, first), (high, second) = data[0], data[1]
    assert (first, second) == (0, 1)
    assert low.shape == high.shape == (98, audio.BANDS)
    for spectrogram, hertz in ((low, 400), (high, 4000)):
        of_tone = audio.FILTERS[:, hertz * audio.FRAME // audio.RATE]
        assert spectrogram.mean(axis=0).argmax() == of_tone.argmax()


def test_memory_is_that_of_living_processes() -> None:
    assert memory_of(os.getpid()) > 1e7
    assert memory_of(2**22 + 1) == 0  # larger than any process id


def run(seconds: float, **about: Any) -> dict[str, Any]:
    """A run as it is stored, of 100 steps."""
    found = {
        "seconds": seconds,
        "reached": True,
        "steps": 100,
        "loss": 0.25,
        "steps_per_s": 100 / seconds,
        "starvation": 0.5,
        "cpu_s": 2 * seconds,
        "memory_mb": 300.0,
        "origin": "10 made texts",
        "note": "",
    }
    return {**found, **about}


def document(rows: dict[str, tuple[str, list[dict[str, Any]]]], **about: Any) -> dict[str, Any]:
    """A document of one training by its rows."""
    described = {
        "title": "texts, JAX",
        "target": 0.3,
        "cap": 2000,
        "quick": False,
        "forms": list(rows),
        "not_installed": {},
    }
    return {
        "trainings": {"tokens": {**described, **about}, "audio": {**described, "title": "none"}},
        "rows": [
            {"training": "tokens", "form": name, "ours": ours, "lines": 7, "runs": runs}
            for name, (ours, runs) in rows.items()
        ],
    }


def test_the_report_has_medians_spreads_and_the_best_form() -> None:
    text = report(
        document(
            {
                "plain": ("", [run(40.0), run(42.0), run(41.0)]),
                "Grain": ("", [run(20.0, starvation=None), run(21.0, starvation=None), run(24.0)]),
                "ours": ("fixed", [run(22.0), run(23.0), run(26.0)]),
                "auto": ("auto", [run(30.0), run(31.0), run(35.0)]),
            }
        )
    )

    def row(name: str, seconds: str, rate: str, cpu: str) -> str:
        return f"| {name} | {seconds} | {seconds} | 100 | {rate} | 50 % | {cpu} | 300 | 7 |"

    about = "steps | steps/s | waited | CPU s | memory, MB | lines |"
    assert text.split("\n") == [
        "**texts, JAX**",
        "",
        "Target: a mean loss of 0.3, in 2,000 steps at most. 10 made texts.",
        "",
        f"|  | s to the target | s for 100 steps | {about}",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        row("plain", "41 (40 to 42)", "2.44 (2.38 to 2.5)", "82 (80 to 84)"),
        row("Grain", "21 (20 to 24)", "4.76 (4.17 to 5)", "42 (40 to 48)"),
        row("ours", "23 (22 to 26)", "4.35 (3.85 to 4.55)", "46 (44 to 52)"),
        row("auto", "31 (30 to 35)", "3.23 (2.86 to 3.33)", "62 (60 to 70)"),
        "",
        "- s for 100 steps: the best is Grain (21 (20 to 24)); ours: 1.10 of it (no difference "
        "seen); auto: 1.48 of it.",
        "- steps/s: the best is Grain (4.76 (4.17 to 5)); ours: 0.91 of it (no difference seen); "
        "auto: 0.68 of it.",
    ]


def test_a_form_that_did_not_reach_the_target_is_not_the_best() -> None:
    rows = {
        "fast": ("", [run(5.0, reached=False, loss=0.9), run(6.0)]),
        "broken": ("", [{"failed": "no memory"}]),
        "ours": ("fixed", [run(20.0), {"failed": "no memory"}]),
        "auto": ("auto", []),
    }
    text = report(document(rows, not_installed={"Grain": ["grain"]}, quick=True))
    lines = text.split("\n")
    assert lines[2] == (
        "Target: a mean loss of 0.3, in 2,000 steps at most. 10 made texts. Three steps of each: "
        "the figures mean nothing. Grain: not run, because grain is not installed."
    )
    starts = [line.split(" | ")[:2] for line in lines[6:10]]
    assert starts == [
        ["| fast", "reached in 1 of 2 runs, mean loss 0.575 (0.25 to 0.9)"],
        ["| broken", "failed: no memory"],
        ["| ours", "20; 1 failed"],
        ["| auto", "failed: not run"],
    ]
    assert lines[-2:] == [
        "- s for 100 steps: the best is ours (20); auto: no figure.",
        "- steps/s: the best is fast (18.3 (16.7 to 20)); ours: 0.27 of it (one run); "
        "auto: no figure.",
    ]


def test_the_load_before_the_runs_is_told() -> None:
    runs = [run(40.0, load=0.25), run(42.0, load=3.11), run(41.0)]
    assert "Load average before the runs: 0.2 to 3.1." in report(document({"plain": ("", runs)}))


def test_the_summary_has_the_time_to_the_target_of_both_forms() -> None:
    rows = {
        "plain": ("", [run(40.0), run(42.0)]),
        "Grain": ("", [run(20.0), run(22.0)]),
        "fastest": ("", [run(1.0, reached=False), run(1.0)]),
        "fastfeed, threads=2": ("fixed", [run(21.0, steps=120), run(23.0, steps=120)]),
        "auto": ("auto", [run(31.0), run(33.0)]),
    }
    head, _, line = summary(document(rows)).split("\n")
    assert head.endswith("| times the s to the target, auto |")
    assert line.endswith(
        "| 1.05 (Grain, ranges overlap); 0.84 for the same steps | "
        "1.52 (Grain); 1.52 for the same steps |"
    ), "20 steps fewer"
    assert "| threads=2: 4.55 |" in line
    assert steps_apart(document(rows)) == "texts: 100 to 120 (20 %)"

    rows["auto"] = "auto", [run(31.0, reached=False)]
    assert summary(document(rows)).endswith("for the same steps | target not reached |")


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that compares a training of two forms, and returns the runs it made."""
    absent = Form("absent", nothing, needs=(ABSENT,))
    forms = Form("one", nothing), Form("two", nothing), absent

    def compared(*, end: int = 99, target: float = 1.0, rounds: int = 2) -> list[str]:
        made: list[str] = []
        training = Training("title", lambda quick: (None, ""), forms, target, 9)

        def measure(training: str, form: str, *, quick: bool, seed: int) -> dict[str, Any]:
            if len(made) == end:
                raise KeyboardInterrupt
            made.append(f"{form}, seed {seed}" if seed else form)
            return run(10.0)

        monkeypatch.setattr(command, "training_of", lambda name: training)
        monkeypatch.setattr(command, "measured", measure)
        arguments = ["trainings", "--output", str(tmp_path), "--rounds", str(rounds), "tokens"]
        monkeypatch.setattr(sys, "argv", arguments)
        with contextlib.suppress(KeyboardInterrupt):
            command.main()
        return made

    return compared


def test_forms_run_in_turn_and_an_interrupted_comparison_goes_on(
    compare: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(end=3) == ["one", "two", "two, seed 1"]
    assert compare() == ["one, seed 1"]
    assert compare() == []
    assert compare(rounds=3) == ["one, seed 2", "two, seed 2"]
    found = json.loads((tmp_path / "trainings.json").read_text())
    assert {row["form"]: len(row["runs"]) for row in found["rows"]} == {"one": 3, "two": 3}
    said = capsys.readouterr().out
    assert said.count("tokens, one: 10.0 s, 100 steps, 10.0 steps/s, waited 50 %") == 3
    assert f"absent: not run, because {ABSENT} is not installed." in said


def test_runs_of_another_target_are_not_mixed(compare: Callable[..., list[str]]) -> None:
    compare()
    with pytest.raises(SystemExit, match="another target"):
        compare(target=0.5)


SAME = {"audio": ("DataLoader, 0 workers", "DataLoader, 2 workers")}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_form_runs_and_the_same_seed_gives_the_same_batches(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On made data. The first losses are equal if weights and batches are."""
    monkeypatch.setenv("FASTFEED_DATA", str(tmp_path))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    training = training_of(name)
    forms = [form for form in training.forms if not training.missing(form)]
    if not forms:
        pytest.skip(f"needs {', '.join(training.needs)}")
    found = {form.name: measured(name, form.name, quick=True) for form in forms}
    assert not {form: one["failed"] for form, one in found.items() if "failed" in one}
    for one in found.values():
        assert (one["steps"], one["reached"]) == (QUICK_STEPS, False)
        assert 0.0 <= one["starvation"] <= 1.0
        assert one["memory_mb"] > 10
        assert one["cpu_s"] > 0
    ours = [form.name for form in forms if form.ours]
    for first, second in (ours, SAME.get(name, ours)):
        losses = found[first]["first_losses"]
        assert len(set(losses)) == QUICK_STEPS
        assert losses == pytest.approx(found[second]["first_losses"], rel=1e-3)
