"""Threads of OpenMP that sleep while they wait, beside the producers of a change."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastfeed.diagnose.patches.catalogue import proposals_of
from fastfeed.diagnose.patches.passive_threads import passive_threads
from tests.diagnose.patches.patching import Script, applied

LOADER = """\
\"\"\"A training.\"\"\"
from __future__ import annotations
import numpy
from torch.utils.data import DataLoader

loader = DataLoader(data, batch_size=8)
for x in loader:
    step(x)
"""
HEAD = """\
\"\"\"A training.\"\"\"
from __future__ import annotations
import os
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads
import numpy
"""


def loaded(folder: Path, text: str = LOADER) -> Script:
    script = Script(folder, text, kind="torch", loop="for x in loader:")
    return script.calls_of("DataLoader", "loader = DataLoader(", num_workers=0)


def test_a_change_of_who_makes_the_batches_has_room_beside_the_step(tmp_path: Path) -> None:
    found = list(proposals_of(loaded(tmp_path).case()))
    assert {one.makes for one in found} >= {True}
    for one in found:
        assert (one.room is not None) == one.makes
        if one.room is not None:
            assert applied(LOADER, one, one.room).startswith(HEAD)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import numpy", "import os; os.environ['OMP_WAIT_POLICY'] = 'ACTIVE'"),
        ("from torch.utils.data", "from loaders"),
    ],
)
def test_other_scripts_have_none(tmp_path: Path, old: str, new: str) -> None:
    assert passive_threads(loaded(tmp_path, LOADER.replace(old, new)).case()) is None
