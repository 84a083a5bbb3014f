"""Batches of DALI in every framework, and leaves on a device, which a stand-in replaces on the
host."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cv2")
pytest.importorskip("nvidia.dali", reason="needs fastfeed[dali]")
from fastfeed import FeedRunner
from fastfeed import augment as A
from fastfeed.augment.device import DeviceArray, on_host
from fastfeed.core.batch import Batch
from fastfeed.engine.dali_stage import DaliStage
from tests.augment.pictures import noise, png, rotten
from tests.helpers.streams import LIMIT_S

COUNT = 10
FILES = [png(noise(9 + n % 3, 8 + n % 4, seed=n)) for n in range(COUNT)]
SPEC = A.Augment([A.Decode(), A.Crop(6), A.Normalize(9.0, 2.0)], on="dali-cpu")


class Pictures:
    """(file, its index)."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return FILES[index], np.int32(index)


def runner_of(*, source: Any = None, **options: Any) -> FeedRunner:
    given = {
        "batch_size": 5,
        "seed": 5,
        "augment": SPEC,
        "stall_timeout_s": LIMIT_S,
    }
    return FeedRunner(source or Pictures(), **{**given, **options})


def expected() -> np.ndarray[Any, Any]:
    with runner_of(augment=replace(SPEC, on="producers")) as runner:
        return np.concatenate([images.copy() for images, _ in runner])


def is_right(images: Any, labels: Any) -> bool:
    made, numbers = (
        np.concatenate([np.asarray(i) for i in images]),
        np.concatenate([np.asarray(n) for n in labels]),
    )
    assert sorted(numbers.tolist()) == list(range(COUNT))
    return np.allclose(made, expected()[numbers], atol=1e-5)


@pytest.mark.parametrize("shuffle", [None, False], ids=["shuffled", "in order"])
def test_a_session(shuffle: bool | None) -> None:
    tf = pytest.importorskip("tensorflow")
    with tf.Graph().as_default(), runner_of(shuffle=shuffle, epochs=1) as runner:
        x, y = runner.get_inputs()
        assert x.shape.as_list() == [None, 6, 6, 3]
        found = []
        with tf.compat.v1.Session() as session:
            runner.start(session)
            with pytest.raises(tf.errors.OutOfRangeError):
                while True:
                    found.append(session.run([x, y]))
        assert is_right(*zip(*found, strict=True))


@pytest.mark.parametrize("taken", [1, 2, 4])
def test_what_a_session_left_out_is_not_made_again(taken: int) -> None:
    tf = pytest.importorskip("tensorflow")

    class Damaged(Pictures):
        def __getitem__(self, index: int) -> Any:
            return (rotten(FILES[0]) if index in (1, 7) else FILES[index]), np.int32(index)

    options = {"batch_size": 3, "shuffle": False, "on_error": "skip", "epochs": 1}
    with tf.Graph().as_default(), runner_of(source=Damaged(), **options) as runner:
        _, y = runner.get_inputs()
        with tf.compat.v1.Session() as session:
            runner.start(session)
            had = [session.run(y).tolist() for _ in range(taken)]
            state = runner.state()
    whole = [[0, 2], [3, 4, 5], [6, 8], [9]]
    assert had == whole[:taken]
    with runner_of(source=Damaged(), **options) as rest:
        left = [labels.tolist() for _, labels in rest.restore(state)]
    assert left == whole[taken:]


def test_a_dataset() -> None:
    tf = pytest.importorskip("tensorflow")
    with runner_of() as runner:
        data = runner.dataset()
        assert data.element_spec[0] == tf.TensorSpec((5, 6, 6, 3), tf.float32)
        for _ in range(2):
            assert is_right(*zip(*data, strict=True))


def test_a_dataset_in_a_graph_of_tensorflow_1() -> None:
    """A session without get_inputs has ends, and an iteration for each initialization."""
    tf = pytest.importorskip("tensorflow")
    with tf.Graph().as_default(), runner_of() as runner:
        data = runner.dataset()
        once = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
        again = tf.compat.v1.data.make_initializable_iterator(data)
        following = again.get_next()
        with tf.compat.v1.Session() as session:
            assert is_right(*zip(*until_the_end(session, once), strict=True))
            for _ in range(2):
                session.run(again.initializer)
                assert is_right(*zip(*until_the_end(session, following), strict=True))


def until_the_end(session: Any, tensors: Any) -> list[Any]:
    import tensorflow as tf

    found = []
    with pytest.raises(tf.errors.OutOfRangeError):
        while True:
            found.append(session.run(tensors))
    return found


def test_a_dataset_in_a_tf_function() -> None:
    tf = pytest.importorskip("tensorflow")
    with runner_of() as runner:
        data = runner.dataset()

        @tf.function
        def gathered() -> Any:
            images, labels = tf.TensorArray(tf.float32, 2), tf.TensorArray(tf.int32, 2)
            for n, (x, y) in data.enumerate():
                images, labels = (
                    images.write(tf.cast(n, tf.int32), x),
                    labels.write(tf.cast(n, tf.int32), y),
                )
            return images.concat(), labels.concat()

        images, labels = gathered()
        assert is_right([images], [labels])


def test_tensorflow_takes_arrays_by_dlpack_where_they_are() -> None:
    tf = pytest.importorskip("tensorflow")

    def tensor(array: Any) -> Any:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())

    with runner_of() as runner:
        kept = [(tensor(images), labels, images.ctypes.data) for images, labels in runner]
    for made, _, address in kept:
        assert np.from_dlpack(made).ctypes.data == address, (
            "the same memory, which outlives the runner"
        )
    assert is_right([made for made, *_ in kept], [labels for _, labels, _ in kept])


def test_keras() -> None:
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    pytest.importorskip("tensorflow")
    pytest.importorskip("keras")
    with runner_of() as runner:
        assert is_right(*zip(*runner.keras(), strict=True))


def test_torch_shares_the_memory() -> None:
    torch = pytest.importorskip("torch")
    with runner_of() as runner:
        found = list(runner.torch())
    assert found[0][0].dtype == torch.float32
    assert is_right(*zip(*found, strict=True))


def test_jax() -> None:
    pytest.importorskip("jax")
    with runner_of() as runner:
        assert is_right(*zip(*runner.jax(), strict=True))


class Held:
    """A host array with the interface of DALI's TensorGPU."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self._array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def as_cpu(self) -> np.ndarray[Any, Any]:
        return self._array


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images come as they would from a GPU."""
    whole = DaliStage._whole

    def moved(self: DaliStage, *args: Any, **given: Any) -> Batch:
        made = whole(self, *args, **given)
        images = made.leaves[0]
        leaf: Any = DeviceArray(Held(images), images.shape, dtype=images.dtype)
        return Batch((leaf, *made.leaves[1:]), made.rows, made.nbytes)

    monkeypatch.setattr(DaliStage, "_whole", moved)


@pytest.mark.usefixtures("on_a_device")
def test_a_loop_has_it_where_it_is() -> None:
    with runner_of() as runner:
        found = list(runner)
    assert all(isinstance(images, DeviceArray) and len(images) == 5 for images, _ in found)
    assert found[0][0].nbytes == 5 * 6 * 6 * 3 * 4
    assert is_right(*zip(*found, strict=True))


@pytest.mark.usefixtures("on_a_device")
@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_dlpack_takes_it(kind: str) -> None:
    pytest.importorskip(kind)
    with runner_of() as runner:
        found = list(getattr(runner, kind)())
    assert kind in type(found[0][0]).__module__
    assert is_right(*zip(*found, strict=True))


@pytest.mark.usefixtures("on_a_device")
def test_tensorflow_has_a_copy_on_the_host() -> None:
    pytest.importorskip("tensorflow")
    with runner_of() as runner:
        assert is_right(*zip(*runner.dataset(), strict=True))


def test_what_is_on_the_host_stays_as_it_is() -> None:
    batch = Batch((np.zeros(3),), 3, 24)
    assert on_host(batch) is batch
