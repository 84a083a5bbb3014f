"""The state of a runner inside a checkpoint of TensorFlow, beside the model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastfeed.errors import required

with required("TensorFlow", "tensorflow-cpu"):
    import tensorflow as tf

if TYPE_CHECKING:
    from fastfeed.runner.runner import FeedRunner


class FeedCheckpoint(tf.train.experimental.PythonState):  # type: ignore[misc]  # TensorFlow has no types
    """The state of the training loop as a part of a checkpoint:
    `tf.train.Checkpoint(model=model, feed=FeedCheckpoint(runner))`.

    The state is that at the time of `save()`. Reading the checkpoint restores the runner, so read
    it before anything is started. Raise StateError afterwards, and OptionError for
    a checkpoint of another stream.
    """

    def __init__(self, runner: FeedRunner) -> None:
        super().__init__()
        self._runner = runner

    def serialize(self) -> str:
        """Return the state as JSON, for TensorFlow."""
        return json.dumps(self._runner.state())

    def deserialize(self, string_value: Any) -> None:
        """Restore the runner, for TensorFlow."""
        self._runner.restore(json.loads(string_value))
