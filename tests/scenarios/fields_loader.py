"""Photographs of fields, cut and blurred by OpenCV in the two workers of a DataLoader."""

import time

import cv2
import numpy as np
import torch
from clock import Clock, arguments, same
from torch.utils.data import DataLoader, Dataset

args = arguments()
cv2.setNumThreads(0)
side = 512 if args.variant == "fixed" else 1024  # the stored size
photo = np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)


class Fields(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        image = cv2.GaussianBlur(np.roll(photo, index, 0), (11, 11), 2.0)
        return torch.from_numpy(cv2.resize(image, (128, 128), interpolation=cv2.INTER_AREA))


loader = (
    same(DataLoader(Fields(), batch_size=4))
    if args.variant == "free"
    else DataLoader(Fields(), batch_size=4, num_workers=2)
)
clock = Clock(args)
for _batch in clock.over(loader):
    time.sleep(0.006)  # forward and backward on the accelerator
    clock.step()
    if not clock.running():
        break
clock.report()
