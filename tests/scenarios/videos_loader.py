"""Videos, filtered by PyTorch in the workers of a DataLoader."""

import os
import time

import torch
from clock import Clock, arguments, same
from torch.utils.data import DataLoader, Dataset

args = arguments()
workers, threads = (2, 1) if args.variant == "fixed" else (4, os.cpu_count())


def start(_):
    torch.set_num_threads(threads)


class Videos(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        frames = torch.rand(4, 3, 64, 64)
        kernel = torch.ones(3, 1, 7, 7) / 49
        for _ in range(1):
            frames = torch.nn.functional.conv2d(frames, kernel, padding=3, groups=3).sqrt()
            for _ in range(6):
                frames = (frames * 0.9 + 0.05).clamp(0.0, 1.0)
        return frames


loader = DataLoader(Videos(), batch_size=2, num_workers=workers, worker_init_fn=start)
clock = Clock(args)
for _batch in (
    same(DataLoader(Videos(), batch_size=2)) if args.variant == "free" else clock.over(loader)
):
    time.sleep(0.004)  # forward and backward on the accelerator
    clock.step()
    if not clock.running():
        break
clock.report()
