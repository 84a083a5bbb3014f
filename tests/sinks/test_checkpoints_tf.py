"""A checkpoint of TensorFlow with the model and the state of its feed."""

from __future__ import annotations

import importlib
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, MissingExtra, OptionError, Shuffle, StateError

tf = pytest.importorskip("tensorflow")
from fastfeed.sinks.checkpoint_tf import FeedCheckpoint  # noqa: E402
from tests.helpers.graphs import session  # noqa: E402


def runner_of(**options: Any) -> FeedRunner:
    """Return a runner with ten batches in an epoch."""
    return FeedRunner(range(40), transform=np.atleast_1d, **{"batch_size": 4, "seed": 3, **options})


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in np.ravel(batch)]


def whole(**options: Any) -> list[int]:
    with runner_of(**options) as runner:
        return ids(runner)


def checkpoint(runner: FeedRunner) -> Any:
    return tf.train.Checkpoint(weight=tf.Variable(0.0), feed=FeedCheckpoint(runner))


def trained(saver: Any, runner: FeedRunner, count: int) -> list[int]:
    """Train on the next batches; the weight is the number of records."""
    found = list(islice(runner, count))
    saver.weight.assign_add(sum(map(len, found)))
    return ids(found)


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True}, {"shuffle": Shuffle(12, 6)}, {"processes": 2}]
)
def test_training_goes_on_with_the_batch_after_the_saved_one(
    options: dict[str, Any], tmp_path: Path
) -> None:
    with runner_of(**options) as runner:
        saver = checkpoint(runner)
        first = trained(saver, runner, 3)
        path = saver.save(str(tmp_path / "model"))
        trained(saver, runner, 2)  # in vain
    with runner_of(**{**options, "threads": 2}) as runner:
        saver = checkpoint(runner)
        saver.restore(path).assert_consumed()
        assert saver.weight.numpy() == 12
        assert first + ids(runner) == whole(**options)


def test_the_manager_keeps_the_state_of_each_save(tmp_path: Path) -> None:
    with runner_of() as runner:
        saver = checkpoint(runner)
        manager = tf.train.CheckpointManager(saver, str(tmp_path), max_to_keep=2)
        for _ in range(3):
            trained(saver, runner, 2)
            manager.save()
    assert len(manager.checkpoints) == 2
    for path, records in zip(manager.checkpoints, (16, 24), strict=True):
        with runner_of() as runner:
            saver = checkpoint(runner)
            saver.restore(path)
            assert saver.weight.numpy() == records
            assert ids(runner)[0] == records


def test_a_part_that_is_made_after_reading_is_restored_when_it_joins(tmp_path: Path) -> None:
    with runner_of() as runner:
        saver = checkpoint(runner)
        trained(saver, runner, 4)
        path = saver.save(str(tmp_path / "model"))
    later = tf.train.Checkpoint(weight=tf.Variable(0.0))
    later.restore(path)
    with runner_of() as runner:
        later.feed = FeedCheckpoint(runner)
        assert ids(runner)[0] == 16


def test_reading_after_the_start_is_refused(tmp_path: Path) -> None:
    with runner_of() as runner:
        saver = checkpoint(runner)
        trained(saver, runner, 1)
        path = saver.save(str(tmp_path / "model"))
        with pytest.raises(StateError, match="after the start"):
            saver.restore(path)


def test_a_checkpoint_of_another_stream_is_refused(tmp_path: Path) -> None:
    with runner_of() as runner:
        path = checkpoint(runner).save(str(tmp_path / "model"))
    with (
        runner_of(batch_size=5) as runner,
        pytest.raises(OptionError, match="batch_size was 4 and is 5"),
    ):
        checkpoint(runner).restore(path).expect_partial()


def test_a_session_saves_what_it_has_taken(graph: Any, tmp_path: Path) -> None:
    """Every save in a graph writes the present state, and the content of the queue does not
    count."""
    with session(runner := runner_of(shuffle=False)) as (sess, inputs), sess.as_default():
        saver = tf.train.Checkpoint(feed=FeedCheckpoint(runner))
        saver.save_counter.initializer.run()
        paths = []
        for _ in range(2):
            sess.run(inputs)
            paths.append(saver.save(str(tmp_path / "model")))
    for path, first in zip(paths, (4, 8), strict=True):
        with tf.Graph().as_default(), tf.compat.v1.Session(), runner_of(shuffle=False) as runner:
            saver = tf.train.Checkpoint(feed=FeedCheckpoint(runner))
            saver.restore(path).expect_partial()
            with session(runner) as (sess, inputs):
                assert sess.run(inputs)[0, 0] == first


def test_a_session_that_shuffles_cannot_be_saved(graph: Any, tmp_path: Path) -> None:
    with session(runner := runner_of()) as (sess, _), sess.as_default():
        saver = tf.train.Checkpoint(feed=FeedCheckpoint(runner))
        with pytest.raises(StateError, match="shuffles"):
            saver.save(str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("tensorflow", "checkpoint_tf", "tensorflow-cpu"),
        ("tensorflow", "session_queue", "tensorflow-cpu"),
        ("tensorflow", "tf_dataset", "tensorflow-cpu"),
        ("keras", "keras_callbacks", "keras"),
        ("keras", "keras_data", "keras"),
    ],
)
def test_what_is_missing_is_named(
    name: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"fastfeed.sinks.{module}", raising=False)
    with pytest.raises(MissingExtra, match=rf"is not installed: pip install 'fastfeed\[{extra}\]'"):
        importlib.import_module(f"fastfeed.sinks.{module}")
