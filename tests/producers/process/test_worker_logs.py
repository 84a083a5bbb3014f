"""Log records of worker processes: the program's handlers and levels treat them."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner
from tests.helpers.dying import LONG_S

RECORDS = 300  # many more than a socket holds


def logs(index: int) -> np.ndarray:
    logging.getLogger("own.part").debug("record %d", index, extra={"odd": object()})
    logging.getLogger("other").info("not wanted")
    if index == 1:
        for number in range(RECORDS):
            logging.getLogger("own").info("many %d", number)
        try:
            raise KeyError(index)
        except KeyError:
            logging.getLogger("own").exception("failed")
    return np.array([index])


def produced(transform: Any, processes: int, threads: int = 1) -> None:
    options = {"batch_size": 1, "threads": threads, "stall_timeout_s": LONG_S}
    with FeedRunner(range(6), processes=processes, transform=transform, **options) as runner:
        assert len(list(runner)) == 6


@pytest.mark.parametrize("mix", [(0, 2), (2, 1), (1, 2)], ids=str)
def test_records_reach_the_programs_handlers_as_those_of_threads_do(
    mix: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("ERROR", "other")
    caplog.set_level("DEBUG", "own")
    produced(logs, *mix)
    found = Counter(r.getMessage() for r in caplog.records if r.name.startswith(("own", "other")))
    wanted = [*(f"record {n}" for n in range(6)), *(f"many {n}" for n in range(RECORDS))]
    failed = [text for text in found if text not in wanted]
    assert found == Counter([*wanted, *failed])
    assert [text.split("\n")[0] for text in failed] == ["failed"]
    assert "KeyError: 1" in caplog.text


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module whose logger has a handler of its own."""
    (tmp_path / "logs_by_itself.py").write_text(
        "import logging, os\n"
        "import numpy as np\n"
        "LOG = logging.getLogger('by_itself')\n"
        f"handler = logging.FileHandler({str(tmp_path / 'own.log')!r})\n"
        "LOG.addHandler(handler)\n"
        "def logs(index):\n"
        "    LOG.warning('once')\n"
        "    return np.array([index])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import logs_by_itself  # type: ignore[import-not-found]

    yield logs_by_itself
    logs_by_itself.LOG.removeHandler(logs_by_itself.handler)
    logs_by_itself.handler.close()
    del sys.modules["logs_by_itself"]


def test_a_handler_of_an_imported_module_gets_a_record_once(
    own_module: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    produced(own_module.logs, 2)
    assert (tmp_path / "own.log").read_text() == "once\n" * 6
    assert [r.getMessage() for r in caplog.records if r.name == "by_itself"] == ["once"] * 6
