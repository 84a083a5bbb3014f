"""Loops that make their input between their steps, and what a runner makes ahead of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from fastfeed.diagnose.patches.serial_loop import SerialLoop
from fastfeed.diagnose.patches.source_file import edited
from tests.diagnose.patches.patching import Script, added, applied


def test_what_a_loop_makes_is_made_ahead(tmp_path: Path) -> None:
    text = dedent(
        """
        import numpy as np

        for epoch in range(3):
            for _ in range(100):
                clock.asked()
                x, y = make(rng)
                clock.got()
                session.run(train, {a: x, b: y})
        """
    )
    script = Script(tmp_path, text, kind="session", loop="session.run(train")
    found = script.made_at("x, y = make(rng)").patched(SerialLoop())
    assert added(text, found) == [
        "from fastfeed import FeedRunner",
        "def make_batch():",
        "while True:",
        "yield x, y",
        "made_batches = iter(FeedRunner(make_batch, threads=1))",
        "x, y = next(made_batches)",
    ]
    assert found.index("made_batches = iter") < found.index("for epoch")
    assert " \n" not in found


@pytest.mark.parametrize(
    ("text", "loop", "names"),
    [
        ("while True:\n    x, y = make()\n    step(x, y)\n", "while True:", "x, y"),
        ("for x in batches():\n    step(x)\n", "for x in", "x"),
    ],
)
def test_the_batches_of_a_loop_are_shown_with_and_without_the_change(
    tmp_path: Path, text: str, loop: str, names: str
) -> None:
    script = Script(tmp_path, text, kind="sampled", loop=loop).made_at(
        "make()" if "make()" in text else loop
    )
    (found, *_) = script.proposals(SerialLoop())
    for edits in (found.shows, (*found.edits, *found.shows)):
        shown = edited(text, edits)
        assert f".batch(({names},))\n    step(" in shown
        compile(shown, "train.py", "exec")


def test_what_each_iteration_makes_for_itself_is_made_in_parallel(tmp_path: Path) -> None:
    text = dedent(
        """
        for i in range(1000):
            x = make(i)
            step(x)
        """
    )
    script = Script(tmp_path, text, kind="sampled", loop="for i in range")
    script.made_at("x = make(i)").advised("processes", "2")
    found = script.patched(SerialLoop())
    assert added(text, found) == [
        "from fastfeed import FeedRunner",
        "def make_batch(i):",
        "return x",
        "for made_batch in FeedRunner(iter(range(1000)), transform=make_batch, processes=2):",
        "x = made_batch",
    ]
    assert "def make_batch(i):\n    x = make(i)\n    return x\n" in found


ITEMS = """
import numpy as np

def main(sampler, rng):
    files = sorted(found)
    order = rng.permutation(9)
    {head} {items}:
        {first}
        x = {make}
        {then}
        y = labels[i]
        step(x, y)
"""


def made_apart(folder: Path, items: str, **parts: str) -> Script:
    """A loop that makes a batch of each item."""
    known = {"head": "for i in", "first": "n = 1", "make": "make(files[i])", "then": "m = 2"}
    text = ITEMS.format(items=items, **{**known, **parts})
    return Script(folder, text, kind="sampled", loop=f" {items}:").made_at("make(")


class Sampler:
    """Numbers in another order each time."""

    def __init__(self) -> None:
        self.random = random.Random(0)

    def __iter__(self) -> Iterator[int]:
        return iter(self.random.sample(range(9), 9))


@pytest.mark.parametrize(
    "items", ["sampler", "list(sampler)", "order", "enumerate(order)", "(i for i in sampler)"]
)
def test_each_step_gets_the_item_that_its_batch_is_of(tmp_path: Path, items: str) -> None:
    """What is iterated over is read once: a sampler would give the labels another order."""
    head = "for i in" if items != "enumerate(order)" else "for (_, i) in"
    script = made_apart(tmp_path, items, head=head)
    assert all("batch((x, y,))\n" in one.shows[0].text for one in script.proposals(SerialLoop()))
    steps: list[tuple[int, int]] = []
    names: dict[str, Any] = {
        "found": range(9),
        "labels": range(9),
        "make": lambda n: np.array([10 * n]),
        "step": lambda x, y: steps.append((int(x[0]), y)),
    }
    exec(script.patched(SerialLoop()), names)
    names["main"](Sampler(), np.random.default_rng(0))
    assert sorted(steps) == [(10 * i, i) for i in range(9)]


@pytest.mark.parametrize(
    ("change", "proposed"),
    [
        ({"first": "if bad(i): break"}, False),
        ({"then": "if bad(i): break"}, False),
        ({"then": "print(i, files, order)"}, True),
        ({"then": "log(i)"}, False),
        ({"then": "if bad(i): continue"}, True),
        ({"then": "if bad(i): break", "items": "range(9)"}, True),
        ({"then": "if bad(i): break", "items": "list(range(9))"}, True),
        ({"then": "if bad(i): break", "items": "enumerate(order)"}, False),
        ({"first": "if bad(i): continue"}, False),
        ({"first": "for k in sampler:\n            if bad(k): continue"}, True),
        ({"first": "order.append(i)"}, False),
        ({"then": "order = sampler"}, False),
        ({"then": "files[i] = x"}, False),
        ({"first": "last = order.pop()"}, False),
        ({"make": "make(files[i], next(sampler))"}, False),
    ],
)
def test_each_iteration_takes_the_batch_of_its_item(
    tmp_path: Path, change: dict[str, str], proposed: bool
) -> None:
    script = made_apart(tmp_path, **{"items": "order", **change})
    found = [applied(script.text, one) for one in script.proposals(SerialLoop())]
    assert any("def make_batch" in one for one in found) == proposed


@pytest.mark.parametrize("end", ["break", "continue"])
def test_what_an_iteration_may_not_reach_is_not_made_ahead(tmp_path: Path, end: str) -> None:
    text = f"while True:\n    x = make()\n    if bad(x): {end}\n    y = make(x)\n    step(x, y)\n"
    script = Script(tmp_path, text, kind="sampled", loop="while ").made_at("x = make", "y = make")
    assert script.proposals(SerialLoop()) == []


@pytest.mark.parametrize(
    "text",
    [
        "while True:\n    x = make(state)\n    state = step(x)\n",
        "while True:\n    x = make(x)\n    x = step(x)\n",
        "while True:\n    x = make(replay)\n    step(x)\n    replay.add(x)\n",
        "while True:\n    x = self.replay.make()\n    step(x)\n    self.replay.add(x)\n",
        "while reader.next():\n    x = make(reader.row)\n    reader.skip(step(x))\n",
        "while True:\n    x = make(rows)\n    step(x)\n    rows[0] = 1\n",
        "while True:\n    for k in ids:\n        images[k] = make(k)\n    step(images)\n",
        "while True:\n    x = make(next(rows))\n    y = next(rows)\n    step(x, y)\n",
        "while True:\n    x = make(rows)\n    y = rows.pop()\n    step(x, y)\n",
        "while True:\n    x = make(rows.pop())\n    step(x, rows)\n",
        "try:\n    while True:\n        x = make()\n        step(x)\nexcept KeyError:\n    pass\n",
    ],
)
def test_what_the_step_shares_with_its_input_is_not_made_ahead(tmp_path: Path, text: str) -> None:
    script = Script(tmp_path, text, kind="sampled", loop="while ")
    assert script.made_at("make(").proposals(SerialLoop()) == []


@pytest.mark.parametrize(
    "head",
    [
        *("at = 0", "rng.shuffle(order)", "order[:] = rows", "at, order = 0, rows"),
        *("rng.shuffle(order.rows)", "order.epoch = epoch", "order.rows[0] = epoch"),
    ],
)
def test_what_each_epoch_begins_with_stays_in_it(tmp_path: Path, head: str) -> None:
    text = (
        f"for epoch in range(3):\n    {head}\n    for _ in range(9):\n"
        "        x = make(order, at)\n        at += 1\n        step(x)\n"
    )
    script = Script(tmp_path, text, kind="sampled", loop="for _ in range")
    found = script.made_at("make(").patched(SerialLoop())
    assert found.index(head) < found.index("def make_batch")


@pytest.mark.parametrize(
    "body",
    [
        "with open(name()) as f:\n            x = make(f)",
        "for name in names():\n            x = make(name)",
        "x = [make(k) for k in ids()]",
        "x = make(lambda k: k)",
    ],
)
def test_names_of_the_statements_themselves_are_no_state(tmp_path: Path, body: str) -> None:
    text = f"def main():\n    while True:\n        {body}\n        step(x)\n\n\nk = f = name = 1\n"
    script = Script(tmp_path, text, kind="sampled", loop="while True:")
    found = script.made_at("make(").patched(SerialLoop())
    assert "def make_batch():" in found
    assert "x = next(made_batches)" in found


def test_a_module_that_both_use_is_no_state_but_its_generator_is(tmp_path: Path) -> None:
    text = "import time\nimport numpy as np\nwhile True:\n"
    text += "    x = make(time.time())\n    time.sleep(x)\n"
    script = Script(tmp_path, text, kind="sampled", loop="while ").made_at("make(")
    assert "x = next(made_batches)" in script.patched(SerialLoop())
    text = text.replace("time.time()", "np.random.rand()").replace("time.sleep(", "np.random.seed(")
    script = Script(tmp_path, text, kind="sampled", loop="while ").made_at("make(")
    assert script.proposals(SerialLoop()) == []


def test_a_counter_of_the_input_stays_one(tmp_path: Path) -> None:
    text = dedent(
        """
        def main():
            at = 0
            while True:
                x = data[at % 5]
                at += 1
                step(x)
        """
    )
    script = Script(tmp_path, text, kind="sampled", loop="while True:")
    found = script.made_at("x = data[", "at += 1").patched(SerialLoop())
    assert "def make_batch(*, at=at):" in found
    assert "x = next(made_batches)" in found


def test_a_loop_over_a_generator_gets_it_from_a_runner(tmp_path: Path) -> None:
    text = "for n, (x, y) in enumerate(tqdm(batches(3))):\n    step(x, y)\n"
    script = Script(tmp_path, text, kind="sampled", loop="for n, (x")
    found = script.patched(SerialLoop())
    assert "in enumerate(tqdm(FeedRunner(lambda: batches(3), threads=1))):\n" in found


@pytest.mark.parametrize(("source", "found"), [("stream", False), ("batches()", True)])
def test_a_loop_that_ends_early_loses_nothing(tmp_path: Path, source: str, found: bool) -> None:
    text = f"for x in {source}:\n    step(x)\n    if enough(x):\n        break\n"
    script = Script(tmp_path, text, kind="sampled", loop="for x in")
    assert bool(script.proposals(SerialLoop())) == found


def test_comments_move_with_their_lines(tmp_path: Path) -> None:
    text = "while True:\n    at = pick()  # one\n    x = read(at)  # two\n    step(x)  # three\n"
    script = Script(tmp_path, text, kind="sampled", loop="while True:")
    found = script.made_at("at = pick", "x = read").patched(SerialLoop())
    assert all(found.count(f"# {one}\n") == 1 for one in ("one", "two", "three")), found
