"""Pictures of the size of photographs, where there are none: python -m bench.made_photos FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

COUNT = 127


def make_photos(folder: Path) -> None:
    """Smooth random JPEGs of 500 x 375."""
    import cv2

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for i in range(COUNT):
        small = rng.integers(0, 255, (47, 63, 3), np.uint8)
        cv2.imwrite(
            str(folder / f"{i:03}.jpg"),
            cv2.resize(small, (500, 375), interpolation=cv2.INTER_CUBIC),
        )


if __name__ == "__main__":
    make_photos(Path(sys.argv[1]))
