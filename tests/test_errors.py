"""What every error has: a page, and a way through a pickle."""

from __future__ import annotations

import inspect
import pickle
import re
import traceback
from pathlib import Path

import pytest

from fastfeed import errors
from fastfeed.errors import (
    BadImage,
    FeedError,
    FeedTimeout,
    FeedWarning,
    MissingExtra,
    OptionError,
    ProducerDied,
    ProducerFailed,
    page_of,
)

PAGE = (Path(__file__).parents[1] / "docs" / "errors.md").read_text()
KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__
]


class OwnError(OptionError):
    """A user's own kind of error."""


EXAMPLES = [
    OptionError("threads=0"),
    FeedTimeout("nothing came"),
    BadImage("truncated", leaf="image"),
    MissingExtra("torch", "torch"),
    ProducerFailed("producer 3", ValueError("no \x1b[1m such file")),
    ProducerDied("killed", pid=7, signal=9, exit_code=None, out_of_memory=True),
    OwnError("mine"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda one: type(one).__name__)
def test_an_error_goes_through_a_pickle(error: FeedError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert (str(found), found.__notes__) == (str(error), error.__notes__)
    for name in ("reason", "leaf", "package", "extra", "pid", "signal", "out_of_memory", "place"):
        assert getattr(found, name, None) == getattr(error, name, None)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_class_has_a_section(kind: type[BaseException]) -> None:
    assert re.search(rf"^## {kind.__name__}$", PAGE, re.MULTILINE)


def test_a_traceback_ends_with_the_name_of_the_page() -> None:
    lines = traceback.format_exception_only(OptionError, OptionError("threads=0"))
    assert lines[-1].strip().endswith("[docs: errors#optionerror]")
    warning = str(FeedWarning("slow"))
    assert warning == "slow [docs: errors#feedwarning]"
    assert page_of(OwnError) == "errors#optionerror" and page_of(KeyError) == "errors#feederror"
