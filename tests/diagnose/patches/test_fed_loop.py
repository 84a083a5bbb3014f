"""Placeholders that a loop feeds, and the tensors of a runner in their place."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from fastfeed.diagnose.patches.fed_loop import FedLoop
from tests.diagnose.patches.patching import Script

DIGITS = """\
import numpy as np
import tensorflow.compat.v1 as tf
mnist = read_data_sets("MNIST_data", one_hot=True)
x = tf.placeholder("float", [None, 784], name="pixels")
y = tf.placeholder(tf.float32, [None, 10])
keep = tf.placeholder(tf.float32)
train_step = network(x, y, keep)

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for epoch in range(3):
        for i in range(1000):
            # of 50 digits
            batch = mnist.train.next_batch(50)
            if i % 100 == 0:
                print(i, sess.run(accuracy, {x: test.images, y: test.labels, keep: 1.0}))
            sess.run(train_step, feed_dict={x: batch[0], y: batch[1], keep: 0.5})
"""
FED = """\
import numpy as np
import tensorflow.compat.v1 as tf
from fastfeed import FeedRunner
mnist = read_data_sets("MNIST_data", one_hot=True)
def make_batch():
    while True:
        batch = mnist.train.next_batch(50)
        yield {values}

feed_runner = FeedRunner(make_batch, threads=1, shuffle=False)
made_inputs = feed_runner.get_inputs()
x = tf.placeholder_with_default(made_inputs[0], [None, 784], name="pixels")
y = tf.placeholder_with_default(made_inputs[1], [None, 10])
keep = tf.placeholder(tf.float32)
train_step = network(x, y, keep)

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    feed_runner.start(sess)
    for epoch in range(3):
        for i in range(1000):
            # of 50 digits
            if i % 100 == 0:
                print(i, sess.run(accuracy, {x: test.images, y: test.labels, keep: 1.0}))
            sess.run(train_step, feed_dict={keep: 0.5})
"""
VALUES = '(np.array(batch[0], tf.as_dtype("float").as_numpy_dtype), np.array(batch[1], "float32"))'


STATE = """
def more(n):
    global at
    at += n
    return rows[at - n : at]
def more_of(rng):
    return rng.random(4)
def drawn():
    return rows[rng.integers(9)]
def shuffle():
    rows.sort()
def late():
    return more(9), more_of(rng)
"""


def digits(folder: Path, text: str = DIGITS) -> Script:
    script = Script(folder, text, kind="session", loop="sess.run(train_step, feed")
    return script.made_at("mnist.train.next_batch")


def test_a_runner_gives_what_a_loop_feeds(tmp_path: Path) -> None:
    assert digits(tmp_path).patched(FedLoop()) == FED.replace("{values}", VALUES)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("            if i", "            print(batch[1])\n            if i"),  # another reads it
        ("next_batch(50)", "next_batch(sizes[i])"),  # each iteration stands for itself
        ("train_step = n", "mnist = other\ntrain_step = n"),  # made of another one later
        ("train_step = n", "mnist.train.images.sort()\ntrain_step = n"),
        ('x = tf.placeholder("float"', 'x = tf.zeros("float"'),
        ("y = tf.placeholder", "x = y = tf.placeholder"),  # two names of one
        ("keep: 0.5}", "**rest}"),
        ("[None, 784]", "[None, None]"),  # records of varying shape
        ("import numpy as np\n", ""),
        ("batch = mnist.train.next_batch(50)", "batch = next(mnist.train)"),  # which may end
        # what the loop, or another one, asks of what the runner reads ahead of it
        ("for i in range(1000):", "while mnist.train.epochs_completed < 3:"),
        ("print(i, ", "print(mnist.train.images.shape, "),
        ("with tf.S", "print(mnist.train.next_batch(9))\nwith tf.S"),
        ("sess.run(train_step,", "i > 9 and sess.run(train_step,"),
        (
            "            if i % 100",
            "            if i == 7:\n                continue\n            if i % 100",
        ),
        ("for epoch in range(3)", "for mnist in folds"),
        (
            "    for epoch in range(3):",
            "    for epoch in range(3):\n        if mnist.train.ends: break",
        ),
        ("with tf.S", "if mnist.train.shuffle(): pass\nwith tf.S"),
        ("mnist.train.next_batch(50)", "more(50)"),  # and others ask it for more, or change it
        ("mnist.train.next_batch(50)", "more_of(rng)"),
        ("mnist.train.next_batch(50)", "drawn()"),
    ],
)
def test_what_a_runner_cannot_give_is_fed_as_before(
    tmp_path: Path, before: str, after: str
) -> None:
    assert before in DIGITS
    text = DIGITS.replace(before, after).replace("\nmnist", f"{STATE}\nmnist", 1)
    loop = next(one for one in text.split("\n") if "sess.run(train_step" in one)
    script = Script(tmp_path, text, kind="session", loop=loop).made_at("batch = ")
    assert script.proposals(FedLoop()) == []


def test_functions_and_lambdas_with_the_same_names_change_nothing(tmp_path: Path) -> None:
    more = "f = lambda x, batch: x + batch[0]\nrows = [x for x in range(3)]\n"
    text = DIGITS.replace(
        "mnist = read", f"{more}def g(x):\n    x = x + 1\n    return x\nmnist = read"
    )
    found = digits(tmp_path, text).patched(FedLoop())
    assert found.count("placeholder_with_default") == 2


@pytest.mark.parametrize("head", ["for lr in rates:", "def train(lr):"])
def test_a_model_that_is_built_more_than_once_keeps_its_feed_dict(
    tmp_path: Path, head: str
) -> None:
    """What a first runner has read ahead, the second one would not get."""
    begin = DIGITS.index("x = tf.pl")
    inner = "".join(f"    {line}\n" for line in DIGITS[begin:].split("\n"))
    text = f"{DIGITS[:begin]}{head}\n{inner}" + "train(1)\ntrain(2)\n" * head.startswith("def")
    script = Script(tmp_path, text, kind="session", loop="sess.run(train_step, feed")
    assert script.made_at("mnist.train.next").proposals(FedLoop()) == []
    once = text.replace("train(2)\n", "").replace("for lr in rates:", "if True:")
    script = Script(tmp_path, once, kind="session", loop="sess.run(train_step, feed")
    assert len(script.made_at("mnist.train.next").proposals(FedLoop())) == 2


def test_a_session_of_each_turn_keeps_its_feed_dict(tmp_path: Path) -> None:
    """A runner feeds one session."""
    text = dedent(
        """
        import numpy as np
        data = load()
        x = tf.placeholder(tf.float32, [None, 2])
        for fold in range(5):
            sess = tf.Session()
            for i in range(100):
                batch = draw(data)
                sess.run(train_step, feed_dict={x: batch})
        """
    )
    script = Script(tmp_path, text, kind="session", loop="sess.run(train_step")
    script.made_at("draw(data)")
    assert script.proposals(FedLoop()) == []
    inner = text.replace(
        "for fold in range(5):\n    sess = tf.Session()", "if True:\n    sess = tf.Session()"
    )
    script = Script(tmp_path, inner, kind="session", loop="sess.run(train_step")
    assert "feed_runner.start(sess)" in script.made_at("draw(data)").patched(FedLoop())
