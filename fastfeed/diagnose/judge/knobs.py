"""Changes of a feed: one small function for each knob, from feed to feed."""

from __future__ import annotations

from dataclasses import replace

from fastfeed.diagnose.judge.feed_costs import Change, FeedCosts
from fastfeed.model.workload import Producers

# Wait of a step for a ready batch of a DataLoader's worker: 1.4 to 3.7 ms were measured.
LOADER_HANDOVER_S = 2.5e-3


def free_input(feed: FeedCosts) -> FeedCosts:
    """Return the feed with its input always at hand."""
    found = even_batches(warm_epochs(feed.batches(0.0)))
    return replace(found, converted=0.0, handover=0.0, unexplained=0.0)


def no_waits(feed: FeedCosts) -> FeedCosts:
    """Return the feed whose producers never wait off the cores, apart from the disk."""
    return feed.batches(wait=0.0)


def no_work_away(share: float) -> Change:
    """Return the change to producers on nodes of their own without this share of their work, all of
    which is waiting for this machine."""
    return lambda feed: feed.batches(wait=1 - share)


def even_batches(feed: FeedCosts) -> FeedCosts:
    """Return the feed without the slow batches of a tail."""
    return replace(feed, late=0.0)


def no_disk(feed: FeedCosts) -> FeedCosts:
    """Return the feed with its data in memory."""
    left = 1 - feed.reading
    return feed.batches(disk=0.0, lock=left, native=left)


def no_bytecode(feed: FeedCosts) -> FeedCosts:
    """Return the feed without bytecode in its producers, apart from copies."""
    return feed.batches(lock=feed.other_work)


def no_native_work(feed: FeedCosts) -> FeedCosts:
    """Return the feed without native work of its batches, apart from what other knobs remove."""
    return feed.batches(native=feed.other_work + (1 - feed.other_work) * feed.crowded)


def no_copies(feed: FeedCosts) -> FeedCosts:
    """Return the feed whose batches are made in their final form."""
    found = feed.batches(lock=1 - feed.copying, native=1 - feed.copying)
    return replace(found, converted=0.0)


def no_handover(feed: FeedCosts) -> FeedCosts:
    """Return the feed with batches in shared memory: nothing is sent or read again."""
    return replace(feed, handover=0.0)


def single_threaded_pools(feed: FeedCosts) -> FeedCosts:
    """Return the feed with one thread in each native pool of its producers."""
    return replace(feed.batches(native=1 - feed.crowded), crowded=0.0)


def warm_epochs(feed: FeedCosts) -> FeedCosts:
    """Return the feed that makes the batches of the next epoch ahead."""
    return replace(feed, start=0.0)


def kept_workers(feed: FeedCosts) -> FeedCosts:
    """Return the feed whose workers live on between epochs: each begins with the wait for a first
    batch."""
    return replace(feed, start=min(feed.start, feed.batch / feed.epoch))


def no_others(feed: FeedCosts) -> FeedCosts:
    """Return the feed on a machine without other processes."""
    step, queued = (1 - share for share in feed.foreign)
    return replace(feed, step=feed.step * step, queued=feed.queued * queued, others=0.0)


def pauses(left: float) -> Change:
    """Return the change that leaves this share of the pauses."""
    return lambda feed: replace(feed, pause=left * feed.pause)


def batch_cost(left: float) -> Change:
    """Return the change that leaves this share of the cost of a batch."""
    return lambda feed: feed.batches(left)


def step_cost(left: float) -> Change:
    """Return the change that leaves this share of the cost of a step, apart from its pauses."""
    names = ("step", "host", "step_lock", "step_cpu")
    return lambda feed: replace(feed, **{name: left * getattr(feed, name) for name in names})


def own_readers(change: Change) -> Change:
    """Return that change of producers each of which then reads its share of the source."""
    return lambda feed: change(replace(feed, reader=0.0))


def made_by(producers: Producers, *, handover_s: float = 0.0) -> Change:
    """Return the change to these producers, which take `handover_s` of the training thread for a
    batch."""

    def change(feed: FeedCosts) -> FeedCosts:
        found = replace(feed, producers=producers, handover=feed.handover + handover_s)
        if not feed.producers.count:  # an epoch begins with the wait for its first batch
            found = replace(found, start=feed.start + feed.batch / feed.epoch)
        return found

    return change
