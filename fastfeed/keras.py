"""What one gives to `fit` of Keras beside the data."""

from fastfeed.sinks.checkpoint_keras import StateCallback
from fastfeed.sinks.keras_callback import FeedCallback

__all__ = ["FeedCallback", "StateCallback"]
