"""What a training will need: producers, memory, bandwidth, time and money, before it runs.
Imports benchmark, for its profile of a source and a step, and everything below."""
