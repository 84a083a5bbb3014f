"""Queues that the script's own threads or processes fill, and the runner in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastfeed.diagnose.patches.handmade_queue import HandmadeQueue
from fastfeed.diagnose.proof import WORDS
from tests.diagnose.patches.patching import Script

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


DRAWN = """import queue
import itertools
from scipy import ndimage
from threading import Thread

batches = queue.Queue(4)


class Rows:
    def draw(self):
        {draw}
        return self.rows[at]

    def __call__(self):
        self.at += 1
        return self.at


def fill(rows):
    while True:
        {loop}batches.put(rows.draw())


Thread(target=fill, args=(Rows(),)).start()
while running():
    x = batches.get(timeout=9)
    train(x)
"""


@pytest.mark.parametrize(
    ("loop", "draw", "words"),
    [
        ("", "at = np.random.randint(9)", 3),
        ("", "at = self.rng.choice(9)", 3),
        ("for _ in range(9): ", "at = np.random.randint(9)", 2),  # such as those of an epoch
        ("", "at = ndimage.rotate(np.random.randint(9), 3)", 3),
        ("", "self.at = at = (self.at + 1) % 9", 2),
        ("", "order = self.order; at = order.pop()", 2),
        ("", "at, *_ = itertools.islice(self.order, 3)", 2),
        ("", "at = self.video.read()", 2),
        ("", "at = mnist.next_batch(9)", 2),
        ("", "at = rows(1)", 2),
        ("", "at = self.step(1)", 2),
        ("", "at = next(self.order)", 2),
        ("", "np.random.shuffle(self.order); at = self.order[0]", 2),
        ("", "global last; last = at = last + 1", 2),
    ],
)
def test_processes_in_place_of_one_thread_must_show_its_records_if_it_reads_them_in_turn(
    tmp_path: Path, loop: str, draw: str, words: int
) -> None:
    """Each of two may read them all: an epoch would miss records and repeat others."""
    script = queue_script(tmp_path, DRAWN.format(loop=loop, draw=draw))
    found = {one.title: one.allows for one in script.proposals(HandmadeQueue())}
    assert found["FeedRunner(fill, processes=2) in place of the queue"] == WORDS[:words]
    assert found["FeedRunner(fill, processes=1) in place of the queue"] == WORDS[:3]


@pytest.mark.parametrize("endless", [True, False])
def test_processes_that_each_read_what_threads_share_must_show_its_records(
    tmp_path: Path, endless: bool
) -> None:
    """Two would make each record twice, and random pictures would not show it."""
    made = "for i in range(3):\n    Thread(target=fill, args=(1,)).start()"
    text = QUEUE.format(made=made)
    if not endless:
        text = text.replace("while True:", "for n in rows:").replace("        n += step\n", "")
    found = queue_script(tmp_path, text, ".start()").proposals(HandmadeQueue())
    allowed = {one.title.partition(", ")[2].partition(")")[0]: one.allows for one in found}
    assert allowed["processes=2"] == WORDS[: 3 if endless else 2]
    assert allowed["threads=1"] == allowed["processes=1"] == WORDS[:3]


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
