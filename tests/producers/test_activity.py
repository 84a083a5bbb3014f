"""The activity of a producer's thread, read from its stack."""

from __future__ import annotations

from pathlib import Path

import fastfeed
from fastfeed.producers.activity import WAIT_STATES


def test_functions_in_which_a_producer_waits_exist() -> None:
    """States are read from the names of fastfeed's own files and functions."""
    files = {file.name: file for file in Path(fastfeed.__file__).parent.rglob("*.py")}
    for file, function in WAIT_STATES:
        assert f"def {function}(" in files[file].read_text()
