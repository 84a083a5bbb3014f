"""Every block of docs/streams.md runs, in their order, as a reader would try them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "streams.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_all_code_is_found() -> None:
    assert len(BLOCKS) == TEXT.count("```") // 2 > 10


@pytest.mark.filterwarnings("ignore:.*missing from the checkpoint:UserWarning")
def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorflow")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "streams"}
    for block in BLOCKS:
        line = TEXT[: TEXT.index(block)].count("\n")
        exec(compile("\n" * line + block, "docs/streams.md", "exec"), names)
    assert {"model.json", "model.keras", "checkpoints"} == {
        path.name for path in tmp_path.iterdir()
    }
