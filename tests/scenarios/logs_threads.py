"""Lines of logs, turned into counts by two threads."""

import queue
import threading
import time

import numpy as np
from clock import Clock, arguments

args = arguments()
LINES = [
    f"2026-01-{i % 28 + 1:02} host{i % 7} GET /item/{i * 37 % 1000} {200 + i % 5} {i % 900}ms"
    for i in range(6000)
]


def parse(lines):
    rows = []
    for line in lines:
        day, host, _, path, code, took = line.split(" ")
        number = int(path.rsplit("/", 1)[1])
        key = 0
        for letter in host + path:
            key = (key * 31 + ord(letter)) % 65536
        rows.append((int(day[-2:]), key, number, int(code), int(took[:-2])))
    return np.array(rows, np.float32)


def batches_of_lines():
    while True:
        yield parse(LINES)


batches = queue.Queue(maxsize=8)


def parser():
    for batch in batches_of_lines():
        batches.put(batch)


cached = parse(LINES)
clock = Clock(args)


def loop(take):
    while clock.running():
        clock.asked()
        take()
        clock.got()
        time.sleep(0.005)  # the step on the accelerator
        clock.step()


if args.variant == "slow":
    for _ in range(2):
        threading.Thread(target=parser, daemon=True).start()
    loop(batches.get)
if args.variant == "free":
    loop(lambda: cached)
if args.variant == "fixed":
    from fastfeed import FeedRunner

    with FeedRunner(batches_of_lines, processes=2) as runner:
        stream = iter(runner)
        loop(lambda: next(stream))
clock.report()
