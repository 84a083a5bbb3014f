"""A generator's loop becomes a function that several producers run, if it keeps no state."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from fastfeed.diagnose.evidence import PRODUCER, TRAINER
from fastfeed.diagnose.patches.generator_body import GeneratorBody
from fastfeed.diagnose.proof import OTHER_DRAWS, SAME
from tests.diagnose.patches.patching import Script, added, applied

WINDOWS = """
import jax
import numpy as np

def windows(signals, steps, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(steps):  # a batch
        rows = []
        for _ in range(4):
            if signals is None:
                break
            rows.append(signals[rng.integers(len(signals))])
        # of float32
        yield np.stack(rows).astype(np.float32)  # made

def main(signals):
    for epoch in range(2):
        for x in windows(signals, 3, seed=epoch):
            step(x)
"""


def sampled(folder: Path, text: str, *, function: str = "windows", part: str = "yield ") -> Script:
    """A plain loop whose thread makes its batches in a generator."""
    script = Script(folder, text, kind="sampled", loop="for x in windows")
    return script.sampled(TRAINER, function, part).advised("processes", "2")


def generated(body: str) -> str:
    """A script with a generator that has this body."""
    lines = "".join(f"    {line}\n" for line in dedent(body).strip().split("\n"))
    head, tail = (
        "import numpy as np\n\ndef windows(files):",
        "for x in windows(files):\n    step(x)",
    )
    return f"{head}\n{lines}\n{tail}\n"


def run(source: str) -> dict[str, Any]:
    """The names of a script after its run."""
    names: dict[str, Any] = {"rows": np.zeros((4, 2)), "step": lambda x: None}
    exec(compile(source, "train.py", "exec"), names)
    return names


def test_producers_run_the_body_of_a_generator(tmp_path: Path) -> None:
    script = sampled(tmp_path, WINDOWS)
    first, second = script.proposals(GeneratorBody())
    made = "transform=make_batch, processes=2"
    after = applied(WINDOWS, first)
    assert added(WINDOWS, after) == [
        "from fastfeed import FeedRunner",
        "def make_batch(_):  # a batch",
        "return np.stack(rows).astype(np.float32)  # made",
        f"yield from FeedRunner(iter(range(steps)), {made}, seed=seed)",
    ]
    assert "        # of float32\n" in after
    assert [one.title for one in (first, *first.instead)] == [
        f"FeedRunner(..., {made}){sink}" for sink in ("", ".jax()")
    ]
    assert "threads=2" in second.title
    assert (first.advice is not None, second.advice) == (True, None)
    assert first.allows == (SAME, OTHER_DRAWS)
    assert "processes=1, seed=seed" in first.alone[2].text
    assert "batch((x,))" in first.shows[0].text


def test_a_producer_for_each_core_is_tried_as_well(tmp_path: Path) -> None:
    script = Script(tmp_path, WINDOWS, kind="sampled", loop="for x in windows")
    script.sampled(TRAINER, "windows", "yield ").advised("processes", "1")
    titles = [one.title.partition("batch, ")[2] for one in script.proposals(GeneratorBody())]
    assert titles == ["processes=1)", "processes=2)", "threads=2)"]


def test_the_changed_generator_makes_the_same_batches(tmp_path: Path) -> None:
    text = WINDOWS.replace("import jax\n", "").replace("rng.integers(len(signals))", "3")
    after = sampled(tmp_path, text).patched(GeneratorBody(), titled="threads")
    signals = np.arange(40.0).reshape(10, 4)
    found = [list(map(np.array, run(source)["windows"](signals, 3))) for source in (text, after)]
    np.testing.assert_array_equal(*found)


def test_what_a_loop_iterates_over_is_taken_apart_in_the_body(tmp_path: Path) -> None:
    text = generated(
        """
        for n, (one, label) in enumerate(files):
            yield read(one, n), label
        """
    )
    after = sampled(tmp_path, text).patched(GeneratorBody())
    assert "    def make_batch(item):\n        n, (one, label) = item\n        return read" in after
    assert "FeedRunner(iter(enumerate(files)), transform=make_batch, processes=2)\n" in after


def test_a_generator_without_end_has_a_producer_for_each_core(tmp_path: Path) -> None:
    text = generated("while True:\n    yield draw(files)")
    script = sampled(tmp_path, text)
    assert added(text, script.patched(GeneratorBody())) == [
        "import itertools",
        "from fastfeed import FeedRunner",
        "def make_batch(_):",
        "return draw(files)",
        "yield from FeedRunner(itertools.count(), transform=make_batch, processes=2)",
    ]


EPOCHS = """
import numpy as np

def windows(rows, epochs):
    rng = np.random.default_rng(1)
    for epoch in range(epochs):
        order = rng.permutation(len(rows))

        # whole batches
        for start in range(0, len(rows) - 1, 2):
            part = order[start : start + 2]  # of two
            yield np.stack([rows[i] for i in part])
        print(epoch)

for x in windows(rows, 3):
    step(x)
"""


APART = """
    def make_batch(item):
        order, start = item
        part = order[start : start + 2]  # of two
        return np.stack([rows[i] for i in part])

    def batch_items():
        for epoch in range(epochs):
            order = rng.permutation(len(rows))

            # whole batches
            for start in range(0, len(rows) - 1, 2):
                yield order, start
            print(epoch)

    yield from FeedRunner(batch_items(), transform=make_batch, processes=2)
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_loops_around_it_become_a_generator_of_items(tmp_path: Path, newline: str) -> None:
    """A runner for each epoch would start its workers again."""
    text, apart = (one.replace("\n", newline) for one in (EPOCHS, APART))
    after = sampled(tmp_path, text).patched(GeneratorBody())
    assert f"default_rng(1){apart}{newline}for x in" in after


@pytest.mark.parametrize("fixed", ["", "order = np.arange(len(rows)); "], ids=["new", "shuffled"])
def test_the_changed_generator_makes_the_same_epochs(tmp_path: Path, fixed: str) -> None:
    """What an epoch changes in place belongs to a runner of that epoch alone."""
    text = EPOCHS.replace("    for epoch", f"    {fixed}\n    for epoch") if fixed else EPOCHS
    text = (
        text.replace("order = rng.permutation(len(rows))", "rng.shuffle(order)") if fixed else text
    )
    after = sampled(tmp_path, text).patched(GeneratorBody(), titled="processes")
    assert ("def batch_items" in after) == (not fixed)
    rows = np.arange(12.0).reshape(6, 2)
    found = [list(map(np.array, run(source)["windows"](rows, 2))) for source in (text, after)]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    "where", ["    print(epoch)\n\nfor x", "    count = lambda: order\n\nfor x"]
)
def test_names_that_are_read_behind_the_loops_stay_in_the_generator(
    tmp_path: Path, where: str
) -> None:
    text = EPOCHS.replace("\nfor x", where)
    after = sampled(tmp_path, text).patched(GeneratorBody(), titled="threads")
    assert "def make_batch" in after and "def batch_items" not in after
    rows = np.arange(12.0).reshape(6, 2)
    found = [list(map(np.array, run(source)["windows"](rows, 2))) for source in (text, after)]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("lines", "apart"),
    [
        ("order = rng.permutation(6); import math", False),
        ("order = rng.permutation(6); def at(i): return i", False),
        ("order = rng.permutation(6); rng.shuffle(order)", True),
        ("order = rng.permutation(6); print(epoch); rng.shuffle(order)", False),
        ("order = rng.permutation(6); print(epoch); order += 1", False),
    ],
)
def test_items_do_not_change_once_they_are_made(tmp_path: Path, lines: str, apart: bool) -> None:
    text = EPOCHS.replace("order = rng.permutation(len(rows))", lines.replace("; ", "\n        "))
    after = sampled(tmp_path, text).patched(GeneratorBody())
    assert ("def batch_items" in after) == apart


def test_a_generator_that_another_one_calls(tmp_path: Path) -> None:
    text = generated("rows = []\nfor row in rows_of(files):\n    rows += [row]\n    yield rows")
    text = f"def rows_of(files):\n    for file in files:\n        yield read(file)\n\n{text}"
    script = Script(tmp_path, text, kind="keras", loop="for x in windows")
    script.sampled(PRODUCER, "windows", "for row in").sampled(PRODUCER, "rows_of", "read(file)")
    assert "    def make_batch(file):\n        return read(file)" in script.patched(GeneratorBody())


@pytest.mark.parametrize(
    "body",
    [
        "for file in files:\n    yield read(file)\nyield None",
        "for file in files:\n    x = yield read(file)",
        "for file in files:\n    yield read(file)\n    count(file)",
        "for file in files:\n    if not file:\n        continue\n    yield read(file)",
        "for file in files:\n    yield from read(file)",
        "for f in files:\n    for x in f:\n        pass\n    else:\n        break\n    yield f",
        "for file in files:\n    yield read(file)\nelse:\n    end()",
        "for file in files: yield read(file)",
        "n = 0\nfor file in files:\n    n += 1\n    yield read(file, n)",
        "rows = []\nfor file in files:\n    rows.append(read(file))\n    yield np.stack(rows)",
        "out = np.zeros(3)\nfor file in files:\n    out[:] = read(file)\n    yield out",
        "for file in files:\n    global last\n    last = read(file)\n    yield last",
        "for file in files:\n    last = read(file)\n    yield last\nprint(last)",
        "while files:\n    yield read(files)",
        "xs = iter(files)\nwhile True:\n    x = next(xs); y = next(xs)\n    yield x, y",
        "xs = iter(files)\nfor _ in range(3):\n    yield [next(xs) for _ in range(2)]",
        "while True:\n    x = files.pop()\n    yield x",
    ],
)
def test_a_generator_that_may_keep_a_state_stays(tmp_path: Path, body: str) -> None:
    script = sampled(tmp_path, generated(body), part="yield")
    assert script.proposals(GeneratorBody()) == []


@pytest.mark.parametrize(
    "body",
    [
        "rows = [x for x in files]\nfor file in files:\n    x = read(file)\n    yield x",
        "for file in files:\n    x = read(file)\n    x += 1\n    np.random.shuffle(x)\n    yield x",
        "for file in files:\n    x = []\n    x.append(files[0])\n    yield x",
        "for file in files:\n    x = open(file)\n    next(x)\n    yield next(iter(files)), x.pop()",
        "for file in files:\n    x = [row.pop() for row in read(file)]\n    yield x",
    ],
)
def test_names_of_the_body_alone_are_no_state(tmp_path: Path, body: str) -> None:
    assert sampled(tmp_path, generated(body)).proposals(GeneratorBody())


@pytest.mark.parametrize(
    ("head", "draw", "seed"),
    [
        ("np.random.seed(0)", "np.random.normal()", "int(np.random.randint(2**31))"),
        ("random.seed(0)", "random.random()", "random.getrandbits(31)"),
        ("random.seed(0)", "np.random.normal()", ""),  # what it draws is not the same again anyway
        ("np.random.seed(0)", "rows.sum()", ""),
        ("pass", "np.random.normal()", ""),
        ("np.random.seed(0)", "np.random.default_rng(3).normal()", ""),
        ("random.seed(0)", "random.Random(3).random()", ""),
    ],
)
def test_processes_draw_the_same_when_a_script_runs_again(
    head: str, draw: str, seed: str, tmp_path: Path
) -> None:
    text = generated(
        """
        for file in files:
            yield load(file)
        """
    )
    text = text.replace("import numpy as np", f"import random\nimport numpy as np\n{head}")
    text = text.replace("def windows", f"def load(file):\n    return rows + {draw}\n\ndef windows")
    found = sampled(tmp_path, text).proposals(GeneratorBody())
    lines = {one.title: added(text, applied(text, one))[-1] for one in found}
    assert len(lines) == 2
    for title, line in lines.items():
        given = f", seed={seed})" if seed and "processes" in title else f"{title.split(', ')[-1]}"
        assert line.endswith(given), line
