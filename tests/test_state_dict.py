"""A runner's state in the forms in which programs of torch keep it."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, Shuffle

OPTIONS: list[dict[str, Any]] = [{}, {"shuffle": True}, {"shuffle": Shuffle(12, 6)}, {"shard": (1, 2)}, {"threads": 3}]


def through_torch(state: Any) -> Any:
    """With weights_only, as torch.load does by itself: nothing but plain values may be in it."""
    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    torch.save({"feed": state}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)["feed"]


WAYS: dict[str, Callable[[Any], Any]] = {
    "json": lambda state: json.loads(json.dumps(state)),
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
    "torch": through_torch,
}


def runner_of(**options: Any) -> FeedRunner:
    return FeedRunner(range(48), transform=np.atleast_1d, batch_size=4, seed=5, **options)


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in np.ravel(batch)]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_state_dicts_go_where_others_go(way: str, options: dict[str, Any]) -> None:
    with runner_of(**options) as runner:
        whole = ids(runner)
    with runner_of(**options) as runner:
        first = ids(islice(runner, 2))
        state = runner.state_dict()
    with runner_of(**options) as runner:
        runner.load_state_dict(WAYS[way](state))
        assert first + ids(runner) == whole


def test_they_are_the_state_itself() -> None:
    with runner_of() as runner:
        assert runner.state_dict() == runner.state()
        assert json.loads(json.dumps(runner.state_dict())) == runner.state_dict()


def test_a_checkpoint_of_torch_sees_a_stateful_object() -> None:
    pytest.importorskip("torch")
    stateful = pytest.importorskip("torch.distributed.checkpoint.stateful")
    with runner_of() as runner:
        assert isinstance(runner, stateful.Stateful)
