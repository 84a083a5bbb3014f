"""Next steps in the user's own names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fastfeed.diagnose.diagnosis import Diagnosis, Recommendation
from fastfeed.diagnose.report.json import json_of
from fastfeed.diagnose.report.sections import sections_of
from tests.diagnose.diagnoses import diagnosis

LOOP = "for batch in loader:"
CODE = "loader = DataLoader(..., num_workers=4, persistent_workers=True)"


def told(where: str, *, text: str = LOOP, knob: str = "num_workers", value: str = "4") -> Diagnosis:
    """A diagnosis of a loop on that line, with a change that knows its code."""
    one = diagnosis("input.serial")
    assert one.evidence.loop is not None
    loop = replace(one.evidence.loop, where=where, text=text)
    change = Recommendation("more", knob, value, 2.0, (1.8, 2.2), where=where, code=CODE)
    return replace(one, evidence=replace(one.evidence, loop=loop), recommendations=(change,))


def step(given: Diagnosis) -> dict[str, Any]:
    (found,) = json_of(given)["recommendations"]
    return {key: found[key] for key in ("where", "before", "after")}


def script(folder: Path, *lines: str) -> str:
    """Return the line of the loop in a file of these lines."""
    path = folder / "train.py"
    path.write_text("\n".join(lines) + "\n")
    return f"{path}:{1 + lines.index(LOOP)}"


def test_the_line_of_the_loop_before_and_after() -> None:
    found = told("train.py:41")
    assert step(found) == {"where": "train.py:41", "before": LOOP, "after": f"{CODE}\n{LOOP}"}
    items = [item for section in sections_of(json_of(found)) for item in section.items]
    (shown,) = [item for item in items if item.after]
    assert shown.diff == [("+", CODE), (" ", LOOP)]
    assert shown.where == "train.py:41"


def test_without_the_text_of_the_loop_the_code_alone_is_shown() -> None:
    assert step(told("train.py:41", text="")) == {
        "where": "train.py:41",
        "before": "",
        "after": CODE,
    }


def test_the_variable_that_holds_the_count_is_named(tmp_path: Path) -> None:
    where = script(
        tmp_path, "loader = DataLoader(data,", "    num_workers=args.n_thread)", LOOP, "    pass"
    )
    assert step(told(where)) == {
        "where": f"{tmp_path / 'train.py'}:2",
        "before": "num_workers=args.n_thread",
        "after": "num_workers=4",
    }


def test_one_of_several_counts_is_not_guessed(tmp_path: Path) -> None:
    lines = ("a = DataLoader(x, num_workers=2)", "b = DataLoader(y, num_workers=2)", LOOP, " pass")
    assert step(told(script(tmp_path, *lines)))["before"] == LOOP


def test_another_file_of_that_name_is_not_read(tmp_path: Path) -> None:
    where = script(tmp_path, "loader = DataLoader(data, num_workers=n)", LOOP, "    pass")
    assert step(told(where, text="for x in y:"))["before"] == "for x in y:"
    assert step(told(f"{tmp_path / 'gone.py'}:3"))["before"] == LOOP


def test_what_is_no_count_or_no_python_is_left_alone(tmp_path: Path) -> None:
    where = script(tmp_path, "model.fit(data, epochs=9)", LOOP, "    pass")
    assert step(told(where, knob="epochs", value="warm workers"))["before"] == LOOP
    broken = tmp_path / "broken"
    broken.mkdir()
    where = script(broken, "loader = DataLoader(data, num_workers=n)", LOOP)
    assert step(told(where))["before"] == LOOP
