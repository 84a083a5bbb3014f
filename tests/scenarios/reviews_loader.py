"""Reviews of books, split into words by the dataset."""

import time

import torch
from clock import Clock, arguments, same
from torch.utils.data import DataLoader, Dataset

args = arguments()
TEXT = "this book has a long beginning , a short end and nothing at all between them . " * 40


class Reviews(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        words = {}
        for word in (TEXT + str(index)).split():
            key = "".join(c for c in word.lower() if c.isalnum())
            words[key] = words.get(key, 0) + 1
        return torch.tensor(
            [words.get(w, 0) for w in ("book", "long", "short", "end")], dtype=torch.float32
        )


workers = 2 if args.variant == "fixed" else 0
loader = (
    same(DataLoader(Reviews(), batch_size=16))
    if args.variant == "free"
    else DataLoader(Reviews(), batch_size=16, num_workers=workers)
)
clock = Clock(args)
for _batch in loader:
    time.sleep(0.012)  # forward and backward on the accelerator
    clock.step()
    if not clock.running():
        break
clock.report()
