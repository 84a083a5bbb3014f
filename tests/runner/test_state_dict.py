"""The state of a runner in the forms that programs of torch save."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastfeed import FeedRunner, OptionError, Shuffle

OPTIONS: list[dict[str, Any]] = [
    {},
    {"shuffle": True},
    {"shuffle": Shuffle(12, 6)},
    {"shard": (1, 2)},
    {"threads": 3},
]


def through_torch(state: Any) -> Any:
    """Save and load with weights_only, the default of torch.load, which allows only plain
    values."""
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


def test_they_are_the_state_in_one_value() -> None:
    with runner_of() as runner:
        assert json.loads(runner.state_dict()["state"]) == runner.state()
        with pytest.raises(OptionError, match=r"pass what state_dict\(\) returned"):
            runner.load_state_dict(runner.state())


@pytest.mark.parametrize("options", [{}, {"shuffle": Shuffle(12, 6)}], ids=str)
@pytest.mark.filterwarnings(
    "ignore:.*assuming the intent is to (save|load) in a single process:UserWarning"
)
def test_a_distributed_checkpoint_takes_the_runner_itself(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """A checkpoint loads only existing keys, and the state of a new runner has fewer."""
    pytest.importorskip("torch")
    distributed = pytest.importorskip("torch.distributed.checkpoint")
    if not hasattr(distributed, "save"):
        pytest.skip("PyTorch before 2.2 saves what is its own")
    with runner_of(**options) as runner:
        whole = ids(runner)
    with runner_of(**options) as runner:
        first = ids(islice(runner, 2))
        distributed.save({"feed": runner}, checkpoint_id=tmp_path)
    with runner_of(**options) as runner:
        distributed.load({"feed": runner}, checkpoint_id=tmp_path)
        assert first + ids(runner) == whole
