"""The report on a terminal: its content, at every width, without colour, and in ASCII."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from fastfeed.diagnose.diagnosis import CODES, Diagnosis, Reproduction
from fastfeed.diagnose.evidence import FRAMEWORK, Task
from fastfeed.diagnose.report import terminal
from fastfeed.diagnose.report.headline import headline_of
from fastfeed.diagnose.report.words import split
from fastfeed.errors import clean
from tests.diagnose.diagnoses import (
    EXAMPLES,
    NAN,
    abstained,
    diagnosis,
    doubtful,
    no_gain,
    odd,
    unknown,
    whole_epochs,
)

GLYPHS = "█▓▒░"


def shown(
    told: Diagnosis, *, width: int = 80, encoding: str = "utf-8", colour: bool = False
) -> str:
    """Return the text for a terminal; fail if it cannot be encoded."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    system = "truecolor" if colour else None
    console = Console(
        file=file, width=width, force_terminal=colour, color_system=system, legacy_windows=False
    )
    console.print(terminal.render(told))
    file.flush()
    return raw.getvalue().decode(encoding)


def words_of(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_line_is_wider_than_the_terminal(name: str) -> None:
    told = EXAMPLES[name]()
    for width in (80, 200, 40, 24):
        lines = shown(told, width=width).splitlines()
        assert max(map(cell_len, lines)) <= min(width, terminal.WIDEST), width


@pytest.mark.parametrize("width", [1, 2, 5, 10])
@pytest.mark.parametrize("name", ["input.serial", "odd", "no_steps"])
def test_a_terminal_that_is_too_narrow_is_no_reason_to_fail(name: str, width: int) -> None:
    assert shown(EXAMPLES[name](), width=width)


@pytest.mark.parametrize("code", CODES)
def test_what_is_said(code: str) -> None:
    told = diagnosis(code)
    text = words_of(shown(told))
    assert text.startswith(f"{headline_of(told)} {code}: {CODES[code]}")
    for cause in told.causes:
        assert f"% {cause.code}" in text
        assert all(f"• {sentence}" in text for sentence in cause.evidence)
    for one in told.recommendations:
        assert f"{one.change} {one.knob}={one.value}" in text
    for missing in told.evidence.missing:
        assert missing in text
    assert "watching cost 0.8 % of a step" in text
    assert ("FileNotFoundError" in text) == (code == "feed.dead")
    assert ("Next steps" in text) == bool(told.recommendations)


def test_the_numbers_of_one() -> None:
    text = words_of(shown(diagnosis("input.serial")))
    assert (
        "█ step 16.7 ms 28 % ▓ waits for input 42.4 ms 71 % ▒ host: Python of the loop 597 µs 1 %"
        in text
    )
    assert "threads=4 3.4x (3.2x to 3.6x) 3 give 2.9x." in text
    assert (
        "If input cost nothing: 3.4x (3.2x to 3.7x), a step of 14.8 ms, measured with 24 cached "
        "batches" in text
    )
    assert "starvation 71 % (68 to 74 %) lost to input 71 % AU 28 %" in text
    assert "wait p50 42.4 ms, p99 67.8 ms" in text
    assert "rough" not in text


def test_a_feed_that_the_model_does_not_reproduce() -> None:
    found = Reproduction(-0.12, 0.07, ("the cores",))
    text = words_of(shown(replace(diagnosis("input.serial"), reproduction=found)))
    assert "The gains are rough: the model of this feed makes -12% steps/s" in text
    assert "Counters say that the cores had more work than there was time." in text


def test_the_bar_is_as_long_as_the_shares() -> None:
    text = shown(diagnosis("pause.periodic"))
    bar = next(line for line in text.splitlines() if line.startswith("██"))
    assert [bar.count(sign) for sign in GLYPHS] == [57, 1, 1, 21]
    assert len(bar) == 80


def test_no_verdict() -> None:
    text = words_of(shown(EXAMPLES["abstained"]()))
    assert text.startswith(
        "No verdict: the script ended after 12 steps, and 20 are needed. What the process did • "
    )
    assert "Where a step's time goes" in text
    assert "input." not in text


def test_no_causes_without_a_verdict() -> None:
    """They are what a verdict would be made of."""
    one = abstained()
    text = shown(replace(one, causes=diagnosis("input.serial").causes))
    assert text == shown(one)


def test_a_thread_that_waits_for_native_threads() -> None:
    one = abstained()
    waits = replace(one.evidence.tasks[0], busy={"lock": 0.97, "native": 0.03})
    pool = Task("2 threads of XLA", 4000, 4003, FRAMEWORK, 20.0, 30.0)
    for tasks, words in (
        ((waits, pool), "waits for the framework's threads 97 %"),
        ((waits,), "lock 97 %"),
    ):
        seen = replace(one.evidence, tasks=tasks)
        assert f"Its thread: {words}, native" in words_of(shown(replace(one, evidence=seen)))


def test_doubt_and_changes_that_may_cost() -> None:
    text = words_of(shown(doubtful()))
    assert "The verdict is between input.latency and input.cpu: of the judgements, of the" in text
    assert "May cost: changes that may as well make the loop slower 1. Make batches in a" in text
    assert "train.py:8 FeedRunner(..., threads=4)" in text
    assert "6% of the watched time lies before, after or beside the steps that count." in text
    assert "No change of the input gains anything" in words_of(shown(no_gain()))


def test_waits_that_are_hidden_in_steps() -> None:
    """Without a verdict the figures would read as if there were no waits."""
    one = abstained()
    assert one.evidence.loop is not None
    loop = replace(one.evidence.loop, waits="hidden")
    text = words_of(shown(replace(one, evidence=replace(one.evidence, loop=loop))))
    assert "starvation" not in text and "Where a step's time goes" not in text
    assert "Watched: " in text


def test_children_that_train() -> None:
    text = words_of(shown(whole_epochs()))
    assert "2 child processes train, 0.80 steps/s together: Process-1 (process 4101) 0.40," in text
    assert "running: `train_on_batch` at train.py:41 took 97 % of the time. Let it do fewer" in text


def test_what_is_not_known_is_no_number() -> None:
    text = shown(unknown())
    assert "nan" not in text
    assert "inf" not in text


def test_names_cannot_speak_to_the_terminal() -> None:
    """An escape sequence in a name could colour or clear the screen; rich's own markup in it is
    text."""
    text = shown(odd())
    assert "\x1b" not in text
    assert "\\x1b[31m" in text
    assert "\\udcff" in text


def test_colour_only_where_there_is_colour() -> None:
    told = diagnosis("input.gil")
    coloured = shown(told, colour=True)
    assert "\x1b[" in coloured
    plain = "".join(
        part.partition("m")[2] if i else part for i, part in enumerate(coloured.split("\x1b["))
    )
    assert plain == shown(told)


def test_a_console_that_knows_only_ascii() -> None:
    text = shown(odd(), encoding="ascii")
    bar = next(line for line in text.splitlines() if line.startswith("##"))
    assert set(bar) == {"#", "="}
    assert "?" in text, "what has no ASCII"


def test_the_parts_of_a_step_make_the_whole() -> None:
    figures = diagnosis("input.serial").figures
    assert figures is not None
    for shares, kinds in (
        ({"step": 0.5, "wait": 0.2}, {"step": 0.5, "wait": 0.2, "other": 0.3}),
        ({"step": 0.9, "wait": 0.9}, {"step": 0.5, "wait": 0.5}),
        ({"pause": 0.25, "step": 0.75}, {"step": 0.75, "pause": 0.25}),
        ({"step": NAN}, {}),
    ):
        parts = split(replace(figures, shares=shares))
        assert {part.kind: pytest.approx(part.share) for part in parts} == kinds
        assert [part.kind for part in parts] == list(kinds)
        assert sum(part.seconds for part in parts) == pytest.approx(
            bool(kinds) * figures.seconds / figures.steps
        )


def test_every_part_has_a_cell_as_long_as_there_are_cells() -> None:
    for shares, width in itertools.product(
        ([0.98, 0.01, 0.005, 0.005], [0.5, 0.5], [1.0], [0.26] * 3), (0, 1, 4, 80)
    ):
        cells = terminal.cells_of(shares, width)
        assert sum(cells) == width
        assert min(cells) >= (1 if width >= len(shares) else 0)


def test_clean_keeps_what_can_be_read() -> None:
    assert clean("`decode` at dätä.py:41, 漢") == "`decode` at dätä.py:41, 漢"
    assert clean("a\tb\nc\x00\x9b\u202e") == "a b c\\x00\\x9b\\u202e"


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        (
            terminal.percent,
            {0.71: "71 %", 0.004: "0.4 %", 0.0: "0 %", 0.00996: "1.0 %", 1.0: "100 %"},
        ),
        (terminal.duration, {0.0521: "52.1 ms", 0.00034: "340 µs", 1.9: "1.90 s", 75.0: "75.0 s"}),
        (terminal.duration, {0.99996: "1.00 s"}),
        (terminal.factor, {3.43: "3.4x", 1.08: "1.08x", 20.0: "20x"}),
    ],
)
def test_forms_of_numbers(form: Callable[[float | None], str], texts: dict[float, str]) -> None:
    assert {number: form(number) for number in texts} == texts
    assert form(NAN) == form(None) == "–"
