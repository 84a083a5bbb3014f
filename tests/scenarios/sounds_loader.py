"""Sounds of a street; now and then one has to be fetched again."""

import time

import torch
from clock import Clock, arguments, same
from torch.utils.data import DataLoader, Dataset

args = arguments()


class Sounds(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.16 if index % 160 == 50 else 0.0005)
        return torch.full((1000,), float(index))


ahead = 24 if args.variant == "fixed" else 2
loader = DataLoader(Sounds(), batch_size=8, num_workers=2, prefetch_factor=ahead)
clock = Clock(args)
for _batch in same(DataLoader(Sounds(), batch_size=8)) if args.variant == "free" else loader:
    time.sleep(0.012)  # forward and backward on the accelerator
    clock.step()
    if not clock.running():
        break
clock.report()
