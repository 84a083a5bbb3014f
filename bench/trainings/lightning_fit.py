"""A training of masks by the Trainer of PyTorch Lightning."""

from __future__ import annotations

import time
from typing import Any

import lightning
import torch

from bench.trainings.networks import mask_loss
from bench.trainings.training import Progress


class Segmentation(lightning.LightningModule):
    """Trains a network on pictures and masks by Adam."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Any, number: int) -> Any:
        """Return the loss of a batch."""
        pictures, masks = batch
        return mask_loss(self.model(pictures), masks)

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), 1e-3)


class Ending(lightning.Callback):
    """Reports each loss, and the time between two steps as the wait for input."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._end_s = 0.0

    def on_train_batch_start(self, *given: Any) -> None:
        """Report a wait."""
        now_s = time.perf_counter()
        self._progress.waited(now_s - (self._end_s or now_s))

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *given: Any) -> None:
        """Report a loss, and end the training if it is the last one."""
        trainer.should_stop = self._progress.over(outputs["loss"])
        self._end_s = time.perf_counter()


def fit_until(model: torch.nn.Module, made: Any, progress: Progress) -> None:
    """Train a network on the batches of a loader."""
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=-1,
        max_steps=progress.cap,
        callbacks=[Ending(progress)],
        **dict.fromkeys(silent, False),
    )
    trainer.fit(Segmentation(model), made)
