"""What sessions get from a runner is compared with what they were fed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fastfeed.diagnose.patches.fed_loop import FedLoop
from fastfeed.diagnose.patches.fed_queue import FedQueue
from fastfeed.diagnose.patches.proposal import Patch
from fastfeed.diagnose.patches.serial_loop import SerialLoop
from fastfeed.diagnose.proof import DIFFERENT, SAME
from fastfeed.diagnose.prove.digests import as_fed, compared, is_number
from fastfeed.diagnose.prove.trial import Trials
from fastfeed.diagnose.prove.workspace import Workspace
from fastfeed.diagnose.run.script import Script as Command
from tests.diagnose.patches.patching import Script

HEAD = """\
import threading
import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
images = np.random.default_rng(0).random((1000, 6))
def next_batch(rng):
    rows = rng.integers(0, 1000, 8)
    return images[rows], rows % 10
def batches():
    rng = np.random.default_rng(1)
    while True:
        yield next_batch(rng)
"""
LOOP = """\
rng = np.random.default_rng(1)
x = tf.placeholder(tf.float32, [None, 6], name="x")
y = tf.placeholder("int64", [None])
rate = tf.placeholder(tf.float32)
loss = tf.reduce_mean(x) * rate + tf.cast(tf.reduce_mean(y), tf.float32)
with tf.Session() as sess:
    for i in range(300):
        batch = next_batch(rng)
        if i % 50 == 0:
            sess.run(loss, {x: images, y: np.arange(1000), rate: 1.0})
        sess.run(loss, feed_dict={rate: 0.5, y: batch[1], x: batch[0]})
"""
QUEUE = """\
class CustomRunner:
    def __init__(self):
        self.dataX = tf.placeholder(dtype=tf.float32, shape=[None, 6])
        self.dataY = tf.placeholder(dtype=tf.int64, shape=[None])
        self.queue = tf.RandomShuffleQueue(
            shapes=[[6], []], dtypes=[tf.float32, tf.int64], capacity=100, min_after_dequeue=40)
        self.enqueue_op = self.queue.enqueue_many([self.dataX, self.dataY])
    def thread_main(self, sess):
        try:
            for x, y in batches():
                sess.run(self.enqueue_op, feed_dict={self.dataY: y, self.dataX: x})
        except tf.errors.CancelledError:
            return
    def start(self, sess):
        threading.Thread(target=self.thread_main, args=(sess,), daemon=True).start()
runner = CustomRunner()
x, y = runner.queue.dequeue_many(12)
loss = tf.reduce_mean(x) + tf.cast(tf.reduce_mean(y), tf.float32)
sess = tf.Session()
runner.start(sess)
for i in range(400):
    sess.run(loss)
sess.run(runner.queue.close(cancel_pending_enqueues=True))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "other"), [("loop", ""), ("loop", "rows"), ("queue", "")])
def test_a_session_gets_what_it_was_fed(
    kind: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations, other placeholders, casts and the order of a feed_dict make no difference."""
    pytest.importorskip("tensorflow")
    monkeypatch.chdir(tmp_path)
    patch: Patch = FedLoop() if kind == "loop" else FedQueue()
    text, loop = (HEAD + LOOP, "loss, feed") if kind == "loop" else (HEAD + QUEUE, "run(loss)")
    script = Script(tmp_path, text, kind="session", loop=loop)
    if kind == "loop":
        script.made_at("batch = next_batch")
    else:
        script.calls_of("Thread", "target=self.thread_main")
    one = next(found for found in script.proposals(patch) if "threads=1" in found.title)
    (tmp_path / "scratch").mkdir()
    room = Workspace(Command(("train.py",)), scratch=tmp_path / "scratch", environment={})
    trials = Trials(room, seconds=30.0, end_s=math.inf)
    edits = list(one.edits)
    if other:  # a patch that is wrong
        edits = [
            edit._replace(text=edit.text.replace("batch[1]", "batch[1] + 1")) for edit in edits
        ]
    before, after = (
        trials.batches(tuple(found), seconds=30.0) for found in (one.shows_before, edits)
    )
    assert before.failed == after.failed == ""
    found = compared(before.digests, after.digests)
    assert found.word == (DIFFERENT if other else SAME)
    assert "200" in found.text


EPOCHS = """\
def epoch():
    rows = np.random.permutation(240).reshape(-1, 8)
    for some in rows:
        yield images[some], some % 10
x = tf.placeholder(tf.float32, [None, 6], name="x")
y = tf.placeholder(tf.int64, [None])
loss = tf.reduce_mean(x) + tf.cast(tf.reduce_mean(y), tf.float32)
with tf.Session() as sess:
    for number in range(9):
        for a, b in epoch():
            sess.run(loss, feed_dict={x: a, y: b})
"""


@pytest.mark.slow
def test_a_generator_of_each_epoch_is_compared_by_what_it_feeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hook sees its end, and the graph takes its float64 as float32."""
    pytest.importorskip("tensorflow")
    monkeypatch.chdir(tmp_path)
    script = Script(tmp_path, HEAD + EPOCHS, kind="session", loop="loss, feed")
    script.made_at("yield images[some]")
    one = next(found for found in script.proposals(SerialLoop()) if "threads=1" in found.title)
    (tmp_path / "scratch").mkdir()
    room = Workspace(Command(("train.py",)), scratch=tmp_path / "scratch", environment={})
    trials = Trials(room, seconds=30.0, end_s=math.inf)
    before, after = (trials.batches(tuple(edits), seconds=30.0) for edits in ((), one.edits))
    assert before.digests.full and after.digests.epochs[0] == 30
    assert compared(before.digests, after.digests).word == SAME


def test_fed_values_are_as_the_graph_gets_them() -> None:
    tf = pytest.importorskip("tensorflow")
    with tf.Graph().as_default():
        place = tf.compat.v1.placeholder(tf.float32)
    assert as_fed(place, [0.1]).dtype == np.float32
    assert as_fed("x:0", [0.1]) == [0.1]
    assert as_fed(place, "no number") == "no number", "the session says so"
    assert all(map(is_number, (1, 0.5, "a", np.float32(1), np.array(2))))
    assert not any(map(is_number, ([1], np.zeros(1), None)))
