"""Changes of a feed: one small function for each knob, from feed to feed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fastfeed.diagnose.judge.observed_feed import Change, FeedModel
from fastfeed.model.workload import BATCH_PARTS, Producers, fed_by, rows_of

# Wait of a step for a ready batch of a DataLoader's worker: 1.4 to 3.7 ms were measured.
LOADER_HANDOVER_S = 2.5e-3


def free_input(feed: FeedModel) -> FeedModel:
    """Return the feed with its input always at hand."""
    return new_loader(feed).batch(0.0).with_(epoch_batches=0)


def no_waits(feed: FeedModel) -> FeedModel:
    """Return the feed whose producers never wait off the cores, apart from the disk."""
    return feed.batch(wait=0.0)


def no_work_away(share: float) -> Change:
    """Return the change to producers on nodes of their own without this share of their work, all of
    which is waiting for this machine."""
    return lambda feed: feed.batch(wait=1 - share)


def even_batches(feed: FeedModel) -> FeedModel:
    """Return the feed with batches that all cost the mean."""
    mean = feed.workload.batches.mean(axis=0)
    return feed.with_(batches=np.tile(mean, (len(feed.workload.batches), 1)))


def any_order(feed: FeedModel) -> FeedModel:
    """Return the feed that delivers ready batches first."""
    return feed.with_(ordered=False)


def no_disk(feed: FeedModel) -> FeedModel:
    """Return the feed with its data in memory."""
    return feed.work(1 - feed.reading).batch(disk=0.0)


def no_bytecode(feed: FeedModel) -> FeedModel:
    """Return the feed without bytecode in its producers, apart from copies and pickling."""
    return feed.batch(lock=feed.other_work)


def no_native_work(feed: FeedModel) -> FeedModel:
    """Return the feed without native work of its batches, apart from what other knobs remove."""
    return feed.batch(native=feed.other_work + (1 - feed.other_work) * feed.crowded)


def no_conversion(feed: FeedModel) -> FeedModel:
    """Return the feed whose batches reach the training thread in their final form."""
    rest = rows_of(BATCH_PARTS, handover=feed.converted_s)
    return feed.with_(batches=np.maximum(0.0, feed.workload.batches - rest))


def no_copies(*, converted: bool) -> Change:
    """Return the change to batches that are made in their final form.

    `converted`: what the training thread does to them before the step is converting, too.
    """

    def change(feed: FeedModel) -> FeedModel:
        found = feed.work(1 - feed.copying)
        return no_conversion(found) if converted else found

    return change


def no_pickling(feed: FeedModel) -> FeedModel:
    """Return the feed with batches in shared memory: nothing is pickled, sent or read again."""
    taken = feed.workload.batch("handover") - feed.converted_s
    rest = rows_of(BATCH_PARTS, handover=np.maximum(0.0, taken))
    found = feed.batch(**dict.fromkeys(BATCH_PARTS[:-1], 1 - feed.pickling))
    return found.with_(batches=found.workload.batches - rest)


def single_threaded_pools(feed: FeedModel) -> FeedModel:
    """Return the feed with one thread in each native pool of its producers."""
    return replace(feed.with_(pool=1.0), crowded=0.0)


def warm_epochs(feed: FeedModel) -> FeedModel:
    """Return the feed that makes the batches of the next epoch ahead."""
    return feed.with_(epoch_batches=0)


def no_others(feed: FeedModel) -> FeedModel:
    """Return the feed on a machine without other processes."""
    return feed.with_(other_cpu=0.0)


def new_loader(feed: FeedModel) -> FeedModel:
    """Return the feed with a loader that does not make the process return its memory."""
    return replace(feed.step(1 - feed.retouched), retouched=0.0)


def pauses(left: float) -> Change:
    """Return the change that leaves this share of the pauses."""
    return lambda feed: feed.step(pause=left)


def batch_cost(left: float) -> Change:
    """Return the change that leaves this share of the cost of a batch."""
    return lambda feed: feed.batch(left)


def step_cost(left: float) -> Change:
    """Return the change that leaves this share of the cost of a step, apart from its pauses."""
    return lambda feed: feed.step(left)


def made_by(producers: Producers, *, same: bool, handover_s: float = 0.0) -> Change:
    """Return the change to these producers, which take `handover_s` of the training thread for a
    batch; `same`: they have the loader that is there."""

    def change(feed: FeedModel) -> FeedModel:
        workload = feed.workload if same else fed_by(feed.workload, producers)
        batches = workload.batches + rows_of(BATCH_PARTS, handover=handover_s)
        found = replace(feed, workload=replace(workload, batches=batches), producers=producers)
        return found if same and feed.producers.count > 1 else new_loader(found)

    return change
