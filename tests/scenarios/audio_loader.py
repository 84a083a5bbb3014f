"""Recordings of voices from a bucket, by a DataLoader."""

import time

import torch
from clock import Clock, arguments, same
from torch.utils.data import DataLoader, Dataset

args = arguments()


class Voices(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.008)
        return torch.full((2000,), float(index))


workers = 8 if args.variant == "fixed" else 2
loader = (
    same(DataLoader(Voices(), batch_size=8))
    if args.variant == "free"
    else DataLoader(Voices(), batch_size=8, num_workers=workers)
)
clock = Clock(args)
for _batch in loader:
    time.sleep(0.012)  # forward and backward on the accelerator
    clock.step()
    if not clock.running():
        break
clock.report()
