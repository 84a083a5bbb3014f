"""Epochs that may end early: a runner over a stream would go on behind what was taken."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from fastfeed.diagnose.patches.epochs import is_left_early
from tests.diagnose.patches.patching import Script

EPOCHS = "for epoch in range(3):\n"
LOOP = "for x in data:\n    step(x)\n"
BREAKS = f"{LOOP}    if x > 3:\n        break\n"
RETURNS = f"{LOOP}    if x > 3:\n        return\n"
NEXT = "it = iter(data)\nfor i in range(9):\n    step(next(it))\n"
UNTIL_END = (
    "it = iter(data)\nwhile True:\n    try:\n        x = next(it)\n    except StopIteration:\n"
    "        break\n    step(x)\n"
)
FIT = "model.fit(data, epochs=1, steps_per_epoch=10)\n"


def function(name: str, body: str) -> str:
    return f"def {name}(data):\n{indent(body, '    ')}"


def epochs(body: str) -> str:
    return EPOCHS + indent(body, "    ")


@pytest.mark.parametrize(
    ("text", "line", "early"),
    [
        (LOOP, "for x in data", False),
        (epochs(LOOP), "for x in data", False),
        (BREAKS, "for x in data", False),  # the training is over
        (epochs(BREAKS), "for x in data", True),
        (epochs("for n, x in zip(range(3), data):\n    step(x)\n"), "for n, x in", True),
        (epochs("for x in data.take(3):\n    step(x)\n"), "for x in", True),
        (epochs("for x in data:\n    step(np.take(x, y))\n"), "for x in", False),
        (epochs(NEXT), "step(next(it))", True),
        (NEXT, "step(next(it))", False),
        (epochs(UNTIL_END), "x = next(it)", False),
        (function("train", BREAKS) + epochs("train(data)\n"), "for x in data", True),
        (function("train", RETURNS) + epochs("train(data)\n"), "for x in data", True),
        (
            function("train", BREAKS) + function("run", "train(data)\n") + epochs("run(data)\n"),
            "for x in data",
            True,
        ),
        (function("main", epochs(RETURNS)), "for x in data", False),
        (
            f"while n < total:\n{indent(LOOP, '    ')}        n += 1\n        if n == total:\n"
            "            break\n",
            "for x in data",
            False,
        ),
        (epochs("for x in data:\n    for y in x:\n        break\n"), "for x in data", False),
        (FIT, "model.fit(", False),
        (epochs(FIT), "model.fit(", True),
        ("model.fit(data, validation_data=other, validation_steps=3)\n", "model.fit(", True),
    ],
)
def test_an_epoch_that_may_end_before_its_data(
    tmp_path: Path, text: str, line: str, early: bool
) -> None:
    kind = "keras" if "fit" in text else "tf.data"
    script = Script(tmp_path, f"import numpy as np\n{text}", kind=kind, loop=line)
    assert is_left_early(script.case()) == early
