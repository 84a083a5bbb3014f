"""Queues that the script's own threads or processes fill, and the runner in their place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fastfeed.diagnose.patches.handmade_queue import HandmadeQueue
from fastfeed.diagnose.patches.proposal import COMPARED
from tests.diagnose.patches.patching import Script, applied

QUEUE = """import queue
from threading import Thread
batches = queue.Queue(4)


def fill(step):
    n = 0
    while True:
        batches.put(make(n))  # in order
        n += step


{made}
while running():
    x = batches.get(timeout=9)
    train(x)
"""
FILLED = """def fill(step):
    n = 0
    while True:
        yield make(n)  # in order
        n += step


made_batches = iter(FeedRunner(lambda worker: fill({argument}), {words}))
while running():
    x = next(made_batches)
    train(x)
"""


def queue_script(folder: Path, text: str, start: str = "start()") -> Script:
    script = Script(folder, text, kind="queue", loop="while running():")
    return script.calls_of("Thread", start).advised("processes", "2")


@pytest.mark.parametrize(
    ("made", "argument", "words"),
    [
        ("Thread(target=fill, args=(1,), daemon=True).start()", "1", "processes=2"),
        (
            "for i in range(3):\n    Thread(target=fill, args=(1 + i,)).start()",
            "1 + worker.index",
            "threads=3",
        ),
        ("t = Thread(target=fill, args=(1,))\nt.daemon = True\nt.start()", "1", ""),
        (
            "ts = [Thread(target=fill, args=[i]) for i in range(n)]\nfor t in ts:\n    t.start()",
            "worker.index",
            "threads=n",
        ),
    ],
)
def test_a_queue_that_threads_fill_becomes_a_runner(
    tmp_path: Path, made: str, argument: str, words: str
) -> None:
    script = queue_script(tmp_path, QUEUE.format(made=made))
    found = script.patched(HandmadeQueue())
    assert "Queue(4)" not in found and "from fastfeed import FeedRunner\n" in found
    assert found.endswith(FILLED.format(argument=argument, words=words or "processes=2"))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("Thread(target=fill, args=(1,)).start()", ["threads=1", "processes=2", "processes=1"]),
        (
            "for i in range(3):\n    Thread(target=fill, args=(1,)).start()",
            ["threads=2", "processes=2", "threads=1", "processes=1"],
        ),
    ],
)
def test_threads_that_share_nothing_by_now_do_not_begin_to(
    tmp_path: Path, made: str, words: list[str]
) -> None:
    text = QUEUE.format(made=made).replace("n += step", "rows.sort()")
    script = Script(tmp_path, text, kind="queue", loop="while running():")
    script.calls_of("Thread", ".start()").advised("threads", "2")
    titles = [one.title for one in script.proposals(HandmadeQueue())]
    assert titles == [f"FeedRunner(fill, {one}) in place of the queue" for one in words]


SINGLE = "iter(FeedRunner(lambda worker: fill(1), threads=1))"


@pytest.mark.parametrize(
    ("made", "endless", "checked"),
    [
        ("Thread(target=fill, args=(1,)).start()", True, ["processes=2"]),
        ("for i in range(3):\n    Thread(target=fill, args=(1,)).start()", True, []),
        ("for i in range(3):\n    Thread(target=fill, args=(1,)).start()", False, ["processes=2"]),
    ],
)
def test_more_streams_than_the_script_has_must_keep_nothing_between_batches(
    tmp_path: Path, made: str, endless: bool, checked: list[str]
) -> None:
    """Each of two may read all records, and random pictures would not show it."""
    text = QUEUE.format(made=made)
    if not endless:
        text = text.replace("while True:", "for n in rows:").replace("        n += step\n", "")
    found = list(queue_script(tmp_path, text, ".start()").proposals(HandmadeQueue()))
    assert all(one.allows == COMPARED for one in found)
    several = [one for one in found if one.single is not None]
    titles = [one.title.partition(", ")[2].partition(")")[0] for one in several]
    assert titles == checked
    for one in several:
        assert SINGLE in applied(text, replace(one, edits=one.single or ()))


def test_a_queue_given_to_processes_and_passed_on_becomes_a_runner(tmp_path: Path) -> None:
    text = """def put_all(number, found):
    while True:
        found.put(make(number))


def main():
    batches = context.Queue()
    workers = [context.Process(target=put_all, args=(i, batches)) for i in range(2)]
    for worker in workers:
        worker.start()
    try:
        train(batches.get)
    finally:
        for worker in workers:
            worker.join()
    while running():
        from fastfeed import FeedRunner
"""
    script = queue_script(tmp_path, text, "worker.start()")
    script.advice.clear()
    found = script.advised("transport", "shared memory").patched(
        HandmadeQueue(), titled="processes"
    )
    assert found.endswith(
        """        yield make(number)


def main():
    made_batches = iter(FeedRunner(lambda worker: put_all(worker.index, None), processes=2))
    try:
        train(made_batches.__next__)
    finally:
        pass
    while running():
        pass
"""
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x = batches.get(timeout=9)", "x = batches.get() if batches.qsize() else None"),
        ("        n += step", "        batches.put(None)"),
        ("        n += step", "        yield n"),
        (
            "Thread(target=fill, args=(1,)).start()",
            "Thread(target=fill, kwargs={'step': 1}).start()",
        ),
        (
            "Thread(target=fill, args=(1,)).start()",
            "t = Thread(target=fill, args=(1,))\nt.start()\nw(t)",
        ),
        ("x = batches.get(timeout=9)", "x = take(batches)"),
        (
            "Thread(target=fill, args=(1,)).start()",
            "def go():\n    Thread(target=fill, args=(1,)).start()",
        ),
    ],
)
def test_a_queue_that_is_used_otherwise_stays(tmp_path: Path, old: str, new: str) -> None:
    made = QUEUE.format(made="Thread(target=fill, args=(1,)).start()")
    assert list(queue_script(tmp_path, made).proposals(HandmadeQueue()))
    changed = made.replace(old, new)
    assert changed != made
    assert not list(queue_script(tmp_path, changed).proposals(HandmadeQueue()))
