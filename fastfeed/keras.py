"""Callbacks for `fit` of Keras."""

from fastfeed.sinks.checkpoint_keras import StateCallback
from fastfeed.sinks.keras_callback import FeedCallback

__all__ = ["FeedCallback", "StateCallback"]
