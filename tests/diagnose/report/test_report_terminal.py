"""The report on a terminal: its content, at every width, without colour, and in ASCII."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from fastfeed.diagnose.diagnosis import CODES, Cause, Diagnosis
from fastfeed.diagnose.report import formats, terminal
from fastfeed.diagnose.report.headline import headline_of
from fastfeed.diagnose.report.json import json_of
from fastfeed.diagnose.report.sections import sections_of
from fastfeed.errors import clean
from tests.diagnose.diagnoses import (
    EXAMPLES,
    NAN,
    abstained,
    diagnosis,
    doubtful,
    no_gain,
    odd,
    proven,
    unknown,
    whole_epochs,
)


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
    console.print(terminal.render(told), crop=False)
    file.flush()
    return raw.getvalue().decode(encoding)


def words_of(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_line_is_wider_than_the_terminal(name: str) -> None:
    told = EXAMPLES[name]()
    for width in (80, 200, 40, 24):
        lines = shown(told, width=width).splitlines()
        diff = told.proof.diff.splitlines() if told.proof is not None else []
        fitted = [line for line in lines if line not in diff]
        assert max(map(cell_len, fitted)) <= min(width, terminal.WIDEST), width
        assert not any(line.endswith(" ") for line in lines), "no blanks fill a line"


@pytest.mark.parametrize("width", [1, 2, 5, 10])
@pytest.mark.parametrize("name", ["input.serial", "odd", "no_steps"])
def test_a_terminal_that_is_too_narrow_is_no_reason_to_fail(name: str, width: int) -> None:
    assert shown(EXAMPLES[name](), width=width)


@pytest.mark.parametrize("code", CODES)
def test_what_is_said(code: str) -> None:
    told = diagnosis(code)
    text = words_of(shown(told))
    assert text.startswith(headline_of(told))
    for cause in told.causes:
        assert f"% {cause.code} {CODES[cause.code]}" in text
        assert all(f"• {sentence}" in text for sentence in cause.evidence)
    for one in told.recommendations:
        assert f"{one.knob}={one.value} {one.change}" in text
    for missing in told.evidence.missing:
        assert missing in text
    assert "Watching cost at most 0.1 % of a step (90.0 ms of CPU time)." in text
    assert ("FileNotFoundError" in text) == (code == "feed.dead")
    assert ("Next steps" in text) == bool(told.recommendations)


def test_the_numbers_of_one() -> None:
    text = words_of(shown(diagnosis("input.serial")))
    for part in (
        "step 16.7 ms 28 % ███████████ waits for input 42.4 ms 71 % ",
        "host: Python of the loop 597 µs 1 % █ ",
        "threads=4 Make batches in 4 threads 3.4x (3.2x to 3.6x) • 3 give 2.9x.",
        "starvation 71 % (68 % to 74 %) lost to input 71 %",
        "if input cost nothing 3.4x (3.2x to 3.7x)",
        "wait p50 42.4 ms wait p99 67.8 ms accelerator use (AU) 28 %",
        "A step whose input is at hand takes 14.8 ms (14.1 ms to 16.0 ms): measured with 24 cached",
    ):
        assert part in text


def test_the_bars_are_as_long_as_the_shares() -> None:
    lines = shown(diagnosis("pause.periodic")).splitlines()
    assert [line.count("█") for line in lines if "█" in line] == [29, 1, 1, 10]


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


def test_what_the_process_did_where_there_is_no_verdict() -> None:
    text = words_of(shown(abstained()))
    assert "Calls or iterations of train_on_batch: 2, 51.0 ms each (51.0 ms" in text
    for table in ("Hottest lines", "Who does what", "Machine"):
        assert table in text and table not in shown(diagnosis("input.gil"))
    assert "producer 2 0.61 sleeps 62 %, Python 20 %, native code 10 %" in text


def test_shares_that_overlap_are_said_to() -> None:
    assert "shares overlap" not in shown(diagnosis("input.disk"))
    told = diagnosis("input.serial")
    first, second = told.causes
    text = words_of(shown(replace(told, causes=(first, replace(second, share=0.5)))))
    assert "The shares overlap: all causes of the input together take 71 %, not 121 %." in text
    paused = replace(second, code="pause.periodic", share=0.5)
    text = words_of(shown(replace(told, causes=(first, paused))))
    assert "The shares overlap: each is what the loop loses to that cause alone." in text


def test_doubt_and_changes_that_may_cost() -> None:
    text = words_of(shown(doubtful()))
    assert "The verdict is between input.latency and input.cpu: 67 % of the judgements" in text
    assert "Risky: these may make the loop slower 1. num_workers=1 Make batches in a" in text
    assert "between 0.92x and 1.10x" in text
    assert "train.py:8 + FeedRunner(..., threads=4)" in text
    assert "6 % of the watched time lies before, after or beside the steps that count." in text
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
    assert "2 child processes train, 0.80 steps/s together: Process-1 (process 4101)" in text
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
    assert any(line.endswith("#" * 38) for line in text.splitlines()), "the bar"
    assert "?" in text, "what has no ASCII"


def test_the_parts_of_a_step_make_the_whole() -> None:
    one = diagnosis("input.serial")
    figures = one.figures
    assert figures is not None
    for shares, kinds in (
        ({"step": 0.5, "wait": 0.2}, {"step": 0.5, "wait": 0.2, "other": 0.3}),
        ({"step": 0.9, "wait": 0.9}, {"step": 0.5, "wait": 0.5}),
        ({"pause": 0.25, "step": 0.75}, {"step": 0.75, "pause": 0.25}),
        ({"step": NAN}, {}),
    ):
        told = json_of(replace(one, figures=replace(figures, shares=shares)))
        (section,) = [s for s in sections_of(told) if s.title == "Where a step's time goes"]
        assert {part.kind: pytest.approx(part.share) for part in section.bar} == kinds
        assert [part.kind for part in section.bar] == list(kinds)


def test_clean_keeps_what_can_be_read() -> None:
    assert clean("`decode` at dätä.py:41, 漢") == "`decode` at dätä.py:41, 漢"
    assert clean("a\tb\nc\x00\x9b\u202e") == "a b c\\x00\\x9b\\u202e"


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        (
            formats.percent,
            {0.71: "71 %", 0.004: "0.4 %", 0.0: "0 %", 0.9962: "99.6 %", 1.0: "100 %"},
        ),
        (formats.duration, {0.0521: "52.1 ms", 0.00034: "340 µs", 1.9: "1.90 s", 75.0: "75.0 s"}),
        (formats.duration, {0.99996: "1.00 s"}),
        (formats.factor, {3.43: "3.4x", 1.08: "1.08x", 20.0: "20x"}),
    ],
)
def test_forms_of_numbers(form: Callable[[float | None], str], texts: dict[float, str]) -> None:
    assert {number: form(number) for number in texts} == texts
    assert form(NAN) == form(None) == "–"


def test_what_was_proven_comes_first() -> None:
    text = shown(proven())
    words = words_of(text)
    assert words.index("Proven") < words.index("Causes, by their share")
    assert "31 to 58 steps/s, 1.87x (1.81 to 1.93), same batches" in words
    assert "+runner = FeedRunner(batches, threads=4)" in text
    for part in ("slower", "PicklingError: a lock", "the first 200 are equal", "--also-rarer"):
        assert part in words
    assert "• predicted " in words
    assert "Next steps" not in words
    assert "Not tried" in words and "1. cv2.setNumThreads=0" in words


def test_nothing_proven_on_a_busy_machine_names_it() -> None:
    found = proven()
    assert found.proof is not None
    causes = (*found.causes, Cause("external.noise", 0.48, ("others",)))
    for diff, told in (("", True), (found.proof.diff, False)):
        one = replace(found, causes=causes, proof=replace(found.proof, diff=diff))
        assert ("Other programs took 48 % of the time" in words_of(shown(one))) == told


@pytest.mark.parametrize(
    ("top", "cause", "told"),
    [
        (0.9, "input.cpu", True),
        (1.1, "input.cpu", False),
        (0.9, "input.latency", False),
    ],
)
def test_producers_that_only_take_the_cores_are_named(top: float, cause: str, told: bool) -> None:
    found = proven()
    assert found.proof is not None
    tried = tuple(replace(one, interval=one.interval and (0.7, top)) for one in found.proof.tried)
    proof = replace(found.proof, diff="", tried=tried)
    one = replace(found, causes=(Cause(cause, 0.5, ("busy",)),), proof=proof)
    assert ("fills the cores that the step needs" in words_of(shown(one))) == told


def test_a_reason_is_told_once() -> None:
    found = proven()
    assert found.proof is not None
    one = replace(found.proof.tried[0], why="other batches: all", batches="other batches")
    proof = replace(found.proof, diff="", tried=(replace(one, differs="all"),))
    assert words_of(shown(replace(found, proof=proof))).count("• other batches: all") == 1


def test_a_proven_diff_is_shown_whole() -> None:
    found = proven()
    assert found.proof is not None
    lines = [f"+line {n}" for n in range(60)] + ["+line " + "x" * 200]
    proof = replace(found.proof, diff="\n".join(lines) + "\n")
    text = shown(replace(found, proof=proof))
    assert [one for one in text.splitlines() if one.startswith("+line")] == lines
