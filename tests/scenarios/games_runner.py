"""Moves of a board game, searched a little in Python, fed by FeedRunner."""

import time

import numpy as np
from clock import Clock, arguments

from fastfeed import FeedRunner

args = arguments()


def moves():
    rng = np.random.default_rng()
    while True:
        boards = []
        for _ in range(96):
            board = rng.integers(0, 3, 81).tolist()
            score = [0.0] * 81
            for place in range(81):
                row, column = divmod(place, 9)
                for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1)):
                    r, c, length = row, column, 0
                    while 0 <= r < 9 and 0 <= c < 9 and board[r * 9 + c] == board[place]:
                        r, c, length = r + dr, c + dc, length + 1
                    score[place] += length
            boards.append(score)
        yield np.array(boards, np.float32)


def train(batch):
    time.sleep(0.005)  # on the accelerator


clock = Clock(args)
if args.variant == "free":
    batch = next(moves())
    while clock.running():
        train(batch)
        clock.step()
else:
    producers = {"threads": 4} if args.variant == "slow" else {"processes": 2}
    with FeedRunner(moves, **producers) as runner:
        batches = iter(runner)
        while clock.running():
            clock.asked()
            batch = next(batches)
            clock.got()
            train(batch)
            clock.step()
clock.report()
