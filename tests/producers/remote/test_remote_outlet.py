"""Groups of messages: small batches travel together, and none waits for a slow producer's next."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastfeed.core.batch import infer
from fastfeed.producers.remote import remote_outlet
from fastfeed.producers.remote.remote_outlet import (
    DIRECT,
    GROUP_NBYTES,
    GROUP_S,
    PACKED,
    SPEC,
    RemoteOutlet,
)
from fastfeed.producers.reorder import ProducedBatch


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(remote_outlet, "time", found)
    return found


def put(outlet: RemoteOutlet, array: Any, key: int = 0) -> None:
    spec = outlet.__dict__.setdefault("known", infer(array))
    outlet.put(ProducedBatch(spec.check(array, "here"), -1, ""), key, item=key, spec=spec)


def outlet_of() -> RemoteOutlet:
    return RemoteOutlet(ordered=True, place="here", admit=lambda _: True)


def test_batches_of_a_fast_producer_travel_together(clock: Clock) -> None:
    outlet = outlet_of()
    for key in range(5):
        put(outlet, np.full((2, 3), key), key)
        assert not outlet.due(idle=False)
    assert outlet.due(idle=True)
    clock.now += 1.1 * GROUP_S
    assert outlet.due(idle=False)
    group = outlet.take()
    assert [m.kind for m in group.messages][:2] == [SPEC, 0] and len(group.messages) == 6
    assert {m.form for m in group.messages} == {PACKED}
    assert not outlet.due(idle=True)


def test_a_batch_of_a_slow_producer_leaves_at_once(clock: Clock) -> None:
    outlet = outlet_of()
    clock.now += 2 * GROUP_S
    put(outlet, np.zeros((2, 3)))
    assert outlet.due(idle=False)
    outlet.take()
    clock.now += 2 * GROUP_S  # for room
    outlet.resume(2 * GROUP_S)
    put(outlet, np.zeros((2, 3)))
    assert not outlet.due(idle=False)
    assert outlet.row.wait_out_s == 2 * GROUP_S


def test_a_group_has_a_size(clock: Clock) -> None:
    outlet = outlet_of()
    array = np.zeros((1, 2**17))  # 1 MB
    sizes = []
    for key in range(8):
        put(outlet, array, key)
        if outlet.due(idle=False):
            sizes.append(outlet.take().block.nbytes)
    assert sizes == [GROUP_NBYTES, GROUP_NBYTES]


def test_large_batches_leave_as_they_are(clock: Clock) -> None:
    outlet = outlet_of()
    array = np.zeros((4, 2**16))
    put(outlet, array)
    assert outlet.due(idle=False)
    message = outlet.take().messages[-1]
    assert message.form == DIRECT and message.body[0] is array
