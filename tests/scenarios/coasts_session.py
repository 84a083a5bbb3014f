"""Coasts from the air, fed by two threads; the session is saved every so many steps."""

import os
import queue
import tempfile
import threading

import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()
v1 = tf.compat.v1
v1.disable_eager_execution()
ready = queue.Queue(maxsize=8)


def coasts(seed):
    rng = np.random.default_rng(seed)
    while True:
        ready.put(rng.standard_normal((64, 512), dtype=np.float32))


x = v1.placeholder(tf.float32, (None, 512))
h = x
for width in (2048, 2048, 64):
    h = tf.nn.relu(h @ v1.Variable(tf.random.normal((h.shape[1], width), stddev=0.02)))
loss = tf.reduce_mean(tf.square(h - 1.0))
train_op = v1.train.AdamOptimizer(1e-4).minimize(loss)
saver = v1.train.Saver(max_to_keep=2)
every = 1000 if args.variant == "fixed" else 6
cached = np.zeros((64, 512), np.float32)
if args.variant != "free":
    for seed in range(2):
        threading.Thread(target=coasts, args=(seed,), daemon=True).start()

with v1.Session() as session, tempfile.TemporaryDirectory(dir=".") as folder:
    session.run(v1.global_variables_initializer())
    clock = Clock(args)
    done = 0
    while clock.running():
        clock.asked()
        batch = cached if args.variant == "free" else ready.get()
        clock.got()
        session.run(train_op, {x: batch})
        done += 1
        if done % every == 0:
            saver.save(session, os.path.join(folder, "model"), global_step=done)
        clock.step()
    clock.report()
