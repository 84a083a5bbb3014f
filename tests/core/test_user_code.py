"""Whose code a file holds: one answer for the diagnosis, `fastfeed top` and a feed's status."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from fastfeed.core import collate
from fastfeed.core.user_code import is_users


@pytest.mark.parametrize(
    ("file", "function", "users"),
    [
        (__file__, "", True),
        (np.__file__, "", False),
        (pytest.__file__, "", False),
        (collate.__file__, "", False),
        (dataclasses.__file__, "", False),
        ("/other/lib/python3.10/queue.py", "get", False),
        ("<frozen importlib._bootstrap>", "_load", False),
        ("<__array_function__ internals>", "stack", False),
        ("<string>", "batches", True),
        ("<string>", "__init__", False),  # of a dataclass
        ("<stdin>", "__init__", True),
        ("<ipython-input-3-a>", "batches", True),
    ],
)
def test_whose_code_it_is(file: str, function: str, users: bool) -> None:
    assert is_users(file, function) is users


def test_a_package_that_is_a_link_is_no_code_of_the_user(tmp_path: Path) -> None:
    """Installers link into their cache."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "one.py").touch()
    (tmp_path / "site-packages").mkdir()
    link = tmp_path / "site-packages" / "one.py"
    link.symlink_to(tmp_path / "cache" / "one.py")
    assert is_users(str(tmp_path / "cache" / "one.py"))
    assert not is_users(str(link))
