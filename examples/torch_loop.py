"""A training loop of PyTorch, fed by two worker processes that draw digits.

    python examples/torch_loop.py
    python examples/torch_loop.py --device cuda    # copies run beside the step

The tensors share the memory in which the workers made the batch, without a copy on the CPU.
"""

import argparse
import sys

import numpy as np
import torch

from fastfeed import FeedRunner, OptionError

# Five rows of three pixels for each digit: 4 + 2 + 1.
FONT = ("75557", "26222", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717")


class Digits:
    """Noisy 8x8 images of digits at random places, drawn anew for each request, and the digits."""

    def __len__(self):
        return 20_000

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        digit = index % 10
        image = rng.normal(0, 0.2, (8, 8)).astype(np.float32)
        y, x = rng.integers(0, (4, 6))
        image[y : y + 5, x : x + 3] += [
            [int(row) >> bit & 1 for bit in (2, 1, 0)] for row in FONT[digit]
        ]
        return image.reshape(64), np.int64(digit)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="where to train (cpu)")
    args = parser.parse_args()
    torch.manual_seed(0)
    # so small a model gains nothing from more, and the workers want cores, too
    torch.set_num_threads(1)
    with FeedRunner(Digits(), batch_size=100, shuffle=True, seed=0, processes=2) as runner:
        batches = runner.torch(device=args.device)
        layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
        model = torch.nn.Sequential(*layers).to(args.device)
        optimizer = torch.optim.Adam(model.parameters(), 3e-3)
        for epoch in range(2):
            for images, digits in batches:
                loss = torch.nn.functional.cross_entropy(model(images), digits)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch + 1}: {len(batches)} steps, loss {loss.item():.3f}")
        print(f"waited for input {runner.snapshot().starvation:.1%} of the time")


if __name__ == "__main__":
    try:
        main()
    except OptionError as error:  # of an argument, and its way out
        sys.exit(str(error))
