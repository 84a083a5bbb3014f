"""The options of other loaders, and what to write here instead."""

from __future__ import annotations

from typing import Any

_PARALLEL = (
    "threads= are producer threads (they hide waits and native code), processes= are worker "
    "processes (for Python code)"
)
_LAST = 'last_batch="drop" leaves out the last, smaller batch'
_AHEAD = "prefetch= bounds the batches that are ready ahead by number, memory= by bytes"
_POOL = (
    "shuffle=True draws from all records of an indexable, and shuffle=Shuffle(capacity=2000, "
    "min_after_dequeue=1000) from a pool of records"
)

# by keyword of DataLoader, tf.data, Keras and the queues of TensorFlow 1
OTHER_LOADERS = {
    "num_workers": _PARALLEL,
    "workers": _PARALLEL,
    "num_threads": _PARALLEL,
    "num_parallel_calls": f"{_PARALLEL}; both run transform=",
    "use_multiprocessing": "processes=4 makes batches in worker processes, threads=4 in threads",
    "multiprocessing_context": "worker processes are forked from a small server; leave it out",
    "prefetch_factor": f"{_AHEAD}, both for all producers together",
    "max_queue_size": _AHEAD,
    "queue_size": _AHEAD,
    "buffer_size": f"{_AHEAD}. For a shuffle, {_POOL}",
    "capacity": f"{_POOL}. {_AHEAD}",
    "min_after_dequeue": _POOL,
    "drop_last": _LAST,
    "drop_remainder": _LAST,
    "collate_fn": "collate= makes a batch from a list of records",
    "map_func": "transform= works on a record, batch_transform= on a batch",
    "batch_sampler": "sampler= gives the indices of an epoch, batch_size= cuts them into batches. "
    "For batches of varying size pass lists of indices as the source: FeedRunner(index_lists, "
    "records=False, transform=batch_of, pad=True)",
    "pin_memory": 'runner.torch(device="cuda", pin_memory=True) pins batches, and does so unasked '
    "on CUDA",
    "persistent_workers": "leave it out: workers stay for all epochs of `for epoch in "
    "runner.epochs()`",
    "worker_init_fn": "leave it out: workers and records are seeded by seed=, and a function that "
    "takes `worker` finds worker.index, worker.count and worker.rng",
    "generator": "seed= is the root of every random draw",
    "timeout": "stall_timeout_s= is the longest wait for one batch, in seconds",
    "num_epochs": "epochs= is the number of passes over the source",
}


def pool_hint(shuffle: Any) -> str:
    """Return what to write for the size of a buffer, as in tf.data; empty for anything else."""
    if not isinstance(shuffle, int) or shuffle < 2:
        return ""
    return (
        f": a pool of that size is Shuffle(capacity={shuffle}, min_after_dequeue={shuffle // 2}), "
        "and True draws from all records of an indexable"
    )
