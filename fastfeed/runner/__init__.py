"""FeedRunner, the object that users hold, and what it is made of: streams, iterations, checkpoints.
Imports the engine, live and everything below; sinks only when their method is called."""
