"""Whose code a file holds: the user's, or that of Python, an installed package or fastfeed."""

from __future__ import annotations

import os
import sysconfig
from functools import cache
from pathlib import Path
from types import CodeType

PACKAGE_FOLDERS = ("site-packages", "dist-packages")
OWN_FOLDER = str(Path(__file__).parents[1]) + os.sep
LIBRARY_FOLDERS = tuple(
    {os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")}
)
# Code without a file that the user writes: of `python -c`, consoles and notebooks.
TYPED = ("<string>", "<stdin>", "<console>", "<python-input", "<ipython")
# Generated code of namedtuple and dataclass, which looks like the code of `python -c`.
GENERATED = frozenset(
    ("<lambda>", "__init__", "__eq__", "__repr__", "__hash__", "__new__", "__lt__", "__setattr__")
)


@cache
def is_users(file: str, function: str = "") -> bool:
    """Return True for a file of the user, and the function in it. Another process, whose file it
    may be, may have another Python."""
    if file.startswith("<"):
        return file.startswith(TYPED) and not (file == "<string>" and function in GENERATED)
    real = os.path.realpath(file)
    if any(f"{os.sep}{name}{os.sep}" in path for name in PACKAGE_FOLDERS for path in (file, real)):
        return False
    return not (is_own(file) or "/lib/python3" in real or real.startswith(LIBRARY_FOLDERS))


def is_users_code(code: CodeType) -> bool:
    """Return True for code of the user."""
    return is_users(code.co_filename, code.co_name)


def is_own(file: str) -> bool:
    """Return True for a file of fastfeed."""
    return file.startswith(OWN_FOLDER)


def short_name(file: str, here: str) -> str:
    """Return the name of a file in reports: below the folder of a package, of Python or `here`."""
    for name in PACKAGE_FOLDERS:
        _, found, rest = file.rpartition(f"{os.sep}{name}{os.sep}")
        if found:
            return rest
    if is_own(file):
        return "fastfeed/" + file.removeprefix(OWN_FOLDER)
    for folder in (*LIBRARY_FOLDERS, here):
        if file.startswith(folder):
            return file.removeprefix(folder)
    return os.path.basename(file) or file
