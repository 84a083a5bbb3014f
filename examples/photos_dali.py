"""One list of image operations, executed by OpenCV in the producers or by DALI on the CPU or the
GPU, and measured.

    python examples/photos_dali.py
    python examples/photos_dali.py --photos my/photos --on producers dali-cpu dali-gpu
    python examples/photos_dali.py --on auto                # chooses by a measurement

Without --photos a few hundred images are drawn. The training is a simulated accelerator with steps
of 20 ms.
"""

import argparse
import logging
import sys
import time
from itertools import islice
from pathlib import Path

import cv2
import numpy as np

from fastfeed import FeedRunner, MissingExtra, OptionError
from fastfeed import augment as A

IMAGENET = A.Normalize(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
OPERATIONS = [
    A.Decode(),
    A.RandomResizedCrop(160),
    A.Flip(),
    A.Brightness(A.Uniform(0.7, 1.3)),
    A.Contrast(A.Uniform(0.7, 1.3)),
    A.Erase(p=0.25),
    IMAGENET,
]


class Photos:
    """The bytes of files and their labels: from a folder, or drawn and encoded once."""

    def __init__(self, folder=None):
        paths = sorted(Path(folder).glob("*.jpg")) if folder else []
        if folder and not paths:
            raise OptionError(f"--photos {folder}: no .jpg file is there")
        self.files = [path.read_bytes() for path in paths] or [self.drawn(i) for i in range(300)]

    @staticmethod
    def drawn(index):
        rng = np.random.default_rng(index)
        picture = cv2.resize(
            rng.integers(0, 255, (6, 8, 3), np.uint8), (400, 300), interpolation=cv2.INTER_CUBIC
        )
        return cv2.imencode(".jpg", picture)[1].tobytes()

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return np.frombuffer(self.files[index], np.uint8), np.int64(index % 10)


def train(images, labels):
    time.sleep(0.02)  # on the accelerator


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photos", help="a folder of .jpg files (default: drawn pictures)")
    parser.add_argument(
        "--on", nargs="+", default=["producers", "dali-cpu"], help="executors of the operations"
    )
    parser.add_argument("--threads", type=int, default=2, help="producer threads (2)")
    parser.add_argument("--steps", type=int, default=100, help="steps with each (100)")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error(f"--steps {args.steps}: must be 1 or more")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    photos = Photos(args.photos)
    options = {"batch_size": 32, "shuffle": True, "seed": 0, "last_batch": "drop", "epochs": 10**6}
    for on in args.on:
        spec = A.Augment(OPERATIONS, on=on)
        with FeedRunner(photos, augment=spec, threads=args.threads, **options) as runner:
            for images, labels in islice(runner, args.steps):
                train(images, labels)
            now = runner.snapshot()
            rate = now.consumed.records / now.elapsed_s
            print(
                f"{on}: {images.shape} {images.dtype}, labels {labels.shape}, {rate:.0f} "
                "images/s, ",
                end="",
            )
            print(f"waited for input {now.starvation:.1%} of the time")


if __name__ == "__main__":
    try:
        main()
    except (OptionError, MissingExtra) as error:  # of an argument, and its way out
        sys.exit(str(error))
