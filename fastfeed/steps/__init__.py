"""What a training loop did, step by step: the timeline, who writes it, and `fastfeed.watch`.
Imports only errors."""
