"""Photographs with made objects, and the masks of these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.trainings.training import DATA_SEED


def made_masks(
    photographs: Sequence[bytes], count: int, *, side: int
) -> tuple[list[bytes], list[bytes]]:
    """Return encoded pictures (side, side, 3) with ellipses that are veiled by a pattern, and masks
    (side, side) of the ellipses."""
    import cv2

    rng = np.random.default_rng(DATA_SEED)
    pictures, masks = [], []
    for number in range(count):
        file = np.frombuffer(photographs[number % len(photographs)], np.uint8)
        picture = cv2.resize(cv2.imdecode(file, cv2.IMREAD_COLOR), (side, side))
        mask = np.zeros((side, side), np.uint8)
        for _ in range(rng.integers(1, 4)):
            centre = rng.integers(side // 5, side - side // 5, 2).tolist()
            axes, angle = rng.integers(side // 16, side // 5, 2).tolist(), rng.uniform(0, 180)
            cv2.ellipse(mask, centre, axes, float(angle), 0, 360, 255, -1)
        noise = rng.integers(0, 256, (side // 4, side // 4, 3), np.uint8)
        pattern = cv2.resize(noise, (side, side), interpolation=cv2.INTER_NEAREST)
        veiled = cv2.addWeighted(picture, 0.6, pattern, 0.4, 0)
        picture = np.where(mask[..., None] > 0, veiled, picture)
        pictures.append(cv2.imencode(".jpg", picture)[1].tobytes())
        masks.append(cv2.imencode(".png", mask)[1].tobytes())
    return pictures, masks
