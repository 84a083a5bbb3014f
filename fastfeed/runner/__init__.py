"""FeedRunner, the one object that users hold, and the streams, passes and checkpoints behind it."""
