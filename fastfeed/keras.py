"""Callbacks for `fit` of Keras."""

from fastfeed.sinks.keras_callbacks import FeedCallback, StateCallback

__all__ = ["FeedCallback", "StateCallback"]
