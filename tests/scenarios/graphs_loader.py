"""Graphs of friends as lists of edges, by a DataLoader with two workers."""

import time

import torch
from clock import Clock, arguments, same
from torch.utils.data import DataLoader, Dataset

args = arguments()
GRAPHS = [
    [{"from": i, "to": i * n % 997, "weight": i / 1000} for i in range(1000)] for n in range(16)
]
PACKED = [torch.tensor([[e["from"], e["to"], e["weight"]] for e in edges]) for edges in GRAPHS]


class Graphs(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return (PACKED if args.variant == "fixed" else GRAPHS)[index % 16]


def keep(graphs):
    return graphs


loader = DataLoader(
    Graphs(),
    batch_size=16,
    num_workers=2,
    collate_fn=torch.stack if args.variant == "fixed" else keep,
)
clock = Clock(args)
for _batch in (
    same(DataLoader(Graphs(), batch_size=16, collate_fn=keep))
    if args.variant == "free"
    else clock.over(loader)
):
    time.sleep(0.006)  # forward and backward on the accelerator
    clock.step()
    if not clock.running():
        break
clock.report()
