"""Queues of the graph that threads of the script fill, and the runner in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastfeed.diagnose.patches.fed_queue import FedQueue
from fastfeed.diagnose.patches.proposal import COMPARED
from tests.diagnose.patches.patching import Script

CUSTOM = """\
import threading
import numpy as np
import tensorflow.compat.v1 as tf


class CustomRunner:
    def __init__(self):
        self.dataX = tf.placeholder(tf.float32, [None, 28, 28])
        self.dataY = tf.placeholder(tf.int64, [None])
        self.queue = tf.RandomShuffleQueue(
            shapes=[[28, 28], []], dtypes=[tf.float32, tf.int64],
            capacity=2000, min_after_dequeue=1000)
        self.enqueue_op = self.queue.enqueue_many([self.dataX, self.dataY])

    def get_inputs(self):
        images, labels = self.queue.dequeue_many(128)
        return images, labels

    def thread_main(self, sess):
        for x, y in data_iterator():
            sess.run(self.enqueue_op, feed_dict={self.dataY: y, self.dataX: x})

    def start_threads(self, sess, n_threads=4):
        threads = []
        for n in range(n_threads):
            t = threading.Thread(target=self.thread_main, args=(sess,))
            t.daemon = True
            t.start()
            threads.append(t)
        return threads


runner = CustomRunner()
train_op = network(*runner.get_inputs())
sess = tf.Session()
runner.start_threads(sess)
while True:
    sess.run(train_op)
"""
FED = """\
import threading
import numpy as np
import tensorflow.compat.v1 as tf
from fastfeed import FeedRunner, Shuffle


class CustomRunner:
    def __init__(self):
        self.dataX = tf.placeholder(tf.float32, [None, 28, 28])
        self.dataY = tf.placeholder(tf.int64, [None])
        self.queue = {made}

    def get_inputs(self):
        images, labels = self.queue.get_inputs()
        return images, labels

    def thread_main(self, sess):
        for x, y in data_iterator():
            yield (np.array(x, "float32"), np.array(y, "int64"))

    def start_threads(self, sess, n_threads=4):
        threads = []
        self.queue.start(sess)
        return threads


runner = CustomRunner()
train_op = network(*runner.get_inputs())
sess = tf.Session()
runner.start_threads(sess)
while True:
    sess.run(train_op)
"""
MADE = (
    "FeedRunner(lambda worker: CustomRunner.thread_main(None, None), processes=2, epochs=1, "
    'batch_size=128, last_batch="drop", shuffle=Shuffle(capacity=2000, min_after_dequeue=1000))'
)


def script_of(folder: Path, text: str) -> Script:
    script = Script(folder, text, kind="session", loop="sess.run(train_op)")
    return script.calls_of("Thread", "t.start()").advised("processes", "2")


def test_the_runner_of_many_code_bases_becomes_a_feedrunner(tmp_path: Path) -> None:
    script = script_of(tmp_path, CUSTOM)
    (first, *_) = script.proposals(FedQueue())
    assert first.reorders, "it draws other records next than the queue of the graph"
    assert script.patched(FedQueue()) == FED.replace("{made}", MADE)


@pytest.mark.parametrize("endless", [True, False])
def test_processes_of_data_with_an_end_must_keep_nothing_between_batches(
    endless: bool, tmp_path: Path
) -> None:
    rows = "    while True:\n        yield 1\n" if endless else "    yield 1\n"
    text = CUSTOM.replace("class Custom", f"def data_iterator():\n{rows}\n\nclass Custom")
    (found, *_) = script_of(tmp_path, text).proposals(FedQueue())
    assert "processes=2" in found.title and found.allows == COMPARED
    assert (found.single is None) == endless


@pytest.mark.parametrize(
    ("before", "after", "made"),
    [
        ("RandomShuffleQueue", "FIFOQueue", "shuffle=False"),
        ("dequeue_many(128)", "dequeue_many(n=n)", "batch_size=n, last_batch"),
        ("[tf.float32, tf.int64],", '["float", "int64"],', 'tf.as_dtype("float").as_numpy_dtype'),
        ("RandomShuffleQueue", "FIFOQueue", "yield (np.array(x,"),
    ],
)
def test_what_the_queue_gives_the_runner_gives(
    tmp_path: Path, before: str, after: str, made: str
) -> None:
    assert made in script_of(tmp_path, CUSTOM.replace(before, after)).patched(FedQueue())


def test_batches_that_are_queued_whole_stay_as_they_are(tmp_path: Path) -> None:
    text = CUSTOM.replace("RandomShuffleQueue", "FIFOQueue").replace("_many(128)", "()")
    found = script_of(tmp_path, text.replace("enqueue_many", "enqueue")).patched(FedQueue())
    assert "processes=2, epochs=1, shuffle=False)" in found


def test_the_end_of_the_data_ends_the_runner(tmp_path: Path) -> None:
    """The loop then gets OutOfRangeError, as it would from a queue that is closed."""
    end = "\n        sess.run(self.queue.close())\n\n    def start"
    text = CUSTOM.replace("\n\n    def start", end)
    found = script_of(tmp_path, text).patched(FedQueue())
    assert "epochs=1" in found and "close" not in found and "stop()" not in found


def test_one_component_is_one_tensor_and_the_end_stops_the_runner(tmp_path: Path) -> None:
    text = """\
import numpy as np
import tensorflow as tf


def feed(session, op, place):
    while True:
        session.run(op, {place: make()})


x_in = tf.compat.v1.placeholder(tf.float32, (None, 256))
queue = tf.queue.FIFOQueue(1000, [tf.float32], shapes=[(256,)])
enqueue = queue.enqueue_many([x_in])
train_op = network(queue.dequeue_many(64))
with tf.compat.v1.Session() as session:
    for _ in range(2):
        Thread(target=feed, args=(session, enqueue, x_in), daemon=True).start()
    while running():
        session.run(train_op)
    session.run(queue.close(cancel_pending_enqueues=True))
"""
    script = Script(tmp_path, text, kind="session", loop="session.run(train_op)")
    script.calls_of("Thread", ".start()").advised("processes", "2")
    found = script.patched(FedQueue())
    assert '        yield (np.array(make(), "float32"),)\n' in found
    assert "queue = FeedRunner(lambda worker: feed(None, None, None), processes=2, " in found
    assert "train_op = network(queue.get_inputs()[0])\n" in found
    assert "    queue.start(session)\n    while running():\n" in found
    assert found.endswith("        session.run(train_op)\n    queue.stop()\n")
    assert "enqueue = " not in found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("while True:", "while sess.run(runner.queue.size()):"),  # asked by another
        ("while True:", "runner.thread_main(sess)\nwhile True:"),  # run by another
        ("while True:", "sess.run(runner.enqueue_op, fed)\nwhile True:"),
        ("            t.start()\n", "            t.start()\n            log(t)\n"),
        ("self.dataX: x}", "self.dataX: x, self.keep: 1.0}"),  # more than the queue takes
        ("feed_dict={self.dataY: y, self.dataX: x}", "feed_dict=fed(x, y)"),
        ("        for x, y in data", "        yield\n        for x, y in data"),
        ("RandomShuffleQueue", "PaddingFIFOQueue"),
        ("dtypes=[tf.float32, tf.int64],", "dtypes=KINDS,"),
        (
            "            sess.run(self.en",
            "            sess.run(summary)\n            sess.run(self.en",
        ),
        ("_many(128)", "_many(self.size)\n        self.size = self.size = 2"),
        ("*runner.get_inputs()", "*runner.get_inputs(), *runner.get_inputs()"),  # two batches
        ("def get_inputs(self)", "def get_inputs(self, n=9)"),
        ("self.queue.enqueue_many", "self.queue.enqueue"),  # of single records, which differ
        ("while True:", "sess.run([runner.queue.close(), other])\nwhile True:"),
        ("runner.start_threads", "for sess in sessions: runner.start_threads"),
        (
            "sess = tf",
            "data_iterator = one\ndata_iterator = other\nsess = tf",
        ),  # made of another one later
    ],
)
def test_a_queue_that_others_use_stays(tmp_path: Path, before: str, after: str) -> None:
    assert before in CUSTOM
    text = CUSTOM.replace(before, after)
    text = text.replace("dequeue_many(128)", "dequeue_many(n)") if "n=9" in after else text
    assert script_of(tmp_path, text).proposals(FedQueue()) == []
