"""Fewer threads of the step, beside the producers of a change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fastfeed.diagnose.patches.catalogue import proposals_of
from fastfeed.diagnose.patches.loader import LoaderWorkers
from fastfeed.diagnose.patches.step_threads import room_for
from tests.diagnose.patches.patching import Script, added, applied

LOADER = """\
import numpy
import torch as t
from torch.utils.data import DataLoader

LIMIT = 3
import os

loader = DataLoader(data, batch_size=8)
for x in loader:
    step(x)
"""


def loaded(folder: Path, text: str = LOADER) -> Script:
    script = Script(folder, text, kind="torch", loop="for x in loader:")
    return script.calls_of("DataLoader", "loader = DataLoader(", num_workers=0)


def test_a_change_of_who_makes_the_batches_has_room_beside_the_step(tmp_path: Path) -> None:
    script = loaded(tmp_path)
    found = [one for one in proposals_of(script.case()) if one.makes]
    assert found and all(len(one.room) == 1 for one in found)
    for one in found:
        text = applied(LOADER, replace(one, edits=(*one.edits, *one.room)))
        assert "t.set_num_threads(1)" in added(LOADER, text)
        assert text.index("import DataLoader") < text.index("set_num_threads") < text.index("LIMIT")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "t.set_num_threads(4)"),  # the script does so itself
        ("import torch as t", "import jax as t"),
        ("import torch as t", "if True:\n    import torch as t"),
    ],
)
def test_other_scripts_keep_their_threads(tmp_path: Path, old: str, new: str) -> None:
    script = loaded(tmp_path, LOADER.replace(old, new))
    (one, *_) = script.proposals(LoaderWorkers())
    assert room_for(script.case(), one) == ()
