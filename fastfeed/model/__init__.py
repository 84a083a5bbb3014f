"""The arithmetic of a feed: what a batch costs, and what a change of it gains. Imports only
core."""
