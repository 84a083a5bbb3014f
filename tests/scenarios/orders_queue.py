"""Orders from a server on the network, through a queue of TensorFlow."""

import os
import socket
import subprocess
import sys
import threading

import numpy as np
import tensorflow as tf
from clock import Clock, arguments

args = arguments()
v1 = tf.compat.v1
v1.disable_eager_execution()
SERVER = """
import os, socket, sys, threading, time
def serve(peer):
    while peer.recv(1):
        time.sleep(0.035)
        peer.sendall(bytes(64 * 256 * 4))
with socket.socket(fileno=int(sys.argv[1])) as server:
    while os.getppid() == int(sys.argv[2]):
        threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


def receive(peer, count):
    found = bytearray()
    while len(found) < count:
        found += peer.recv(count - len(found))
    return found


def order(peer):
    peer.sendall(b"?")
    return np.frombuffer(receive(peer, 64 * 256 * 4), np.float32).reshape(64, 256)


def feed(session):
    try:
        with socket.create_connection(address) as peer:
            while True:
                session.run(enqueue, {x_in: order(peer)})
    except tf.errors.CancelledError:
        return


listener = socket.create_server(("127.0.0.1", 0))
address = listener.getsockname()
command = [sys.executable, "-c", SERVER, str(listener.fileno()), str(os.getpid())]
server = subprocess.Popen(command, pass_fds=[listener.fileno()])
listener.close()

x_in = v1.placeholder(tf.float32, (None, 256))
queue = tf.queue.RandomShuffleQueue(1000, 64, [tf.float32], shapes=[(256,)])
enqueue = queue.enqueue_many([x_in])
dequeued = queue.dequeue_many(64)
x = {"free": tf.zeros((64, 256)), "seen": v1.placeholder(tf.float32, (64, 256))}.get(
    args.variant, dequeued
)
h = x
for width in (1024, 1024, 64):
    h = tf.nn.relu(h @ v1.Variable(tf.random.normal((h.shape[1], width), stddev=0.02)))
loss = tf.reduce_mean(tf.square(h - 1.0))
train_op = v1.train.GradientDescentOptimizer(1e-4).minimize(loss)

with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    threads = {"fixed": 4, "free": 0}.get(args.variant, 1)
    for _ in range(threads):
        threading.Thread(target=feed, args=(session,), daemon=True).start()
    clock = Clock(args)
    while clock.running():
        if args.variant == "seen":
            clock.asked()
            batch = session.run(dequeued)
            clock.got()
            session.run(train_op, {x: batch})
        else:
            session.run(train_op)
        clock.step()
    clock.report()
    session.run(queue.close(cancel_pending_enqueues=True))
server.terminate()
server.wait()
