"""A recipe: how a public script runs here, and how its truth is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

TICK = "__import__('tally').tick()"
# What is right if a ready batch gains most, by how the input is made: between two steps (the
# default); by worker processes or threads of tf.data, on the processors that the step needs too;
# from arrays in memory, in a thread of the framework or on the way into its session; by an
# environment that the loop itself steps through.
SERIAL = ("input.serial",)
BESIDE = ("input.cpu", "input.oversubscribed", "input.ipc")
IN_MEMORY = ("input.serial", "input.cpu", "input.copy")
ENVIRONMENT = ("input.serial", "step.host")
# Of the first scripts one half is for development, and the other was met once; later ones are
# sets of their own, each of which was met once.
DEVELOPMENT, TEST, SECOND, THIRD = "development", "test", "second", "third"
# The fourth set is split as the first: one half for development, one that is met once.
FOURTH, FOURTH_HELD = "fourth", "fourth-held"
UNMET = "unmet"  # recipes that are ready, of scripts that no diagnosis has met


@dataclass(frozen=True)
class Edit:
    """A substitution in a copy of a file of the checkout; of the script if `file` is empty."""

    pattern: str
    replacement: str
    file: str = ""


@dataclass(frozen=True)
class Variant:
    """A way to run a script: substitutions, and switches of `standins/public_switches.py`."""

    edits: tuple[Edit, ...] = ()
    switches: tuple[str, ...] = ()
    args: str | None = None  # in place of the recipe's
    environment: Mapping[str, str] = field(default_factory=dict)
    codes: tuple[str, ...] = ()  # also right if this change gains


@dataclass(frozen=True)
class Recipe:
    """How a script runs, and its variants.

    `args` and `rows` (records of the training set) give epochs of seconds on two cores. `count`:
    `torch`, `session` or `keras`, whose steps are seen in the framework, or the pattern of the
    line that ends a step. `free`: the input of the training is a ready batch. `quiet`: nothing
    but training. `changes`: a knob turned by hand, by its name.
    """

    name: str
    framework: str
    kind: str
    repository: str
    path: str
    args: str = ""
    count: str | Edit = "torch"
    rows: int | None = None
    edits: tuple[Edit, ...] = ()
    free: Variant = field(default_factory=Variant)
    quiet: Variant | None = None
    changes: Mapping[str, Variant] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # folders of the checkout beside the script's own
    environment: Mapping[str, str] = field(default_factory=dict)
    input_codes: tuple[str, ...] = SERIAL  # right if a ready batch gains most
    pause_codes: tuple[str, ...] = ("pause.periodic",)  # right if leaving out the rest gains most

    @property
    def variants(self) -> dict[str, Variant]:
        """All ways to run it; `now` is the script as it is."""
        quiet = {} if self.quiet is None else {"quiet": self.quiet}
        return {"now": Variant(), "free": self.free, **quiet, **self.changes}


def after(pattern: str, *, file: str = "") -> Edit:
    """Return the substitution that counts a step after every line that `pattern` matches."""
    return Edit(rf"(?m)^([ \t]*)({pattern})[ \t]*$", rf"\1\2\n\1{TICK}", file)


def without(pattern: str, *, file: str = "") -> Edit:
    """Return the substitution that leaves out every line that `pattern` matches."""
    return Edit(rf"(?m)^([ \t]*){pattern}.*$", r"\1pass", file)


def halves(recipes: Sequence[Recipe]) -> dict[str, str]:
    """Return the half of every recipe by its name.

    Of two neighbours of one framework the one with the smaller hash is for development. So both
    halves have scripts of every framework, and new recipes at the end move none.
    """
    strata: dict[str, list[str]] = {}
    for recipe in recipes:
        strata.setdefault(recipe.framework, []).append(recipe.name)
    found: dict[str, str] = {}
    for names in strata.values():
        for at in range(0, len(names), 2):
            pair = names[at : at + 2]
            first = min(pair, key=_hash)
            alone = int(_hash(pair[0]), 16) % 2
            for name in pair:
                development = name == first if len(pair) == 2 else alone == 0
                found[name] = DEVELOPMENT if development else TEST
    return found


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
