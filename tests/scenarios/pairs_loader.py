"""Pairs of sentences, by a DataLoader with two workers."""

import time

import torch
from clock import Clock, arguments, same
from torch.utils.data import DataLoader, Dataset

args = arguments()


class Pairs(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.0012)
        return torch.full((64,), index), torch.ones(64)


ahead = 8 if args.variant == "fixed" else 2
loader = (
    same(DataLoader(Pairs(), batch_size=8))
    if args.variant == "free"
    else DataLoader(Pairs(), batch_size=8, num_workers=2, prefetch_factor=ahead)
)
clock = Clock(args)
for _a, _b in loader:
    time.sleep(0.08)  # forward and backward on the accelerator
    clock.step()
    if not clock.running():
        break
clock.report()
