"""Rows of a genome from one file."""

import os
import tempfile
import time

import torch
from clock import Clock, arguments, same
from torch.utils.data import DataLoader, Dataset

args = arguments()
CHUNK, CHUNKS = 6 << 20, 24


class Rows(Dataset):
    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        file = os.open(self.path, os.O_RDONLY)
        try:
            start = index * 7 % CHUNKS * CHUNK
            os.posix_fadvise(file, start, CHUNK, os.POSIX_FADV_DONTNEED)
            data = bytearray(os.pread(file, CHUNK, start))
        finally:
            os.close(file)
        return torch.frombuffer(data, dtype=torch.uint8)[:4096].clone()


class FewerRows(Rows):
    def __getitem__(self, index):
        with open(self.path, "rb") as file:
            file.seek(index * 7 % CHUNKS * CHUNK)
            return torch.frombuffer(bytearray(file.read(4096)), dtype=torch.uint8)


def write(path):
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for _ in range(CHUNKS * CHUNK >> 20):
            file.write(block)
        os.fsync(file.fileno())


with tempfile.TemporaryDirectory(dir=".") as folder:
    path = os.path.join(folder, "genome")
    write(path)
    data = FewerRows(path) if args.variant == "fixed" else Rows(path)
    loader = (
        same(DataLoader(data, batch_size=4))
        if args.variant == "free"
        else DataLoader(data, batch_size=4, num_workers=2)
    )
    clock = Clock(args)
    for _batch in loader:
        time.sleep(0.01)  # forward and backward on the accelerator
        clock.step()
        if not clock.running():
            break
    clock.report()
