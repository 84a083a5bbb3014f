"""Demands for resources, and the bounds that follow."""

import pytest

from fastfeed.model.bounds import (
    LIMIT_CORES,
    LIMIT_DISK,
    LIMIT_LOCK,
    LIMIT_PRODUCERS,
    LIMIT_STEP,
    bounds,
)
from fastfeed.model.workload import Producers
from tests.model.feeds import workload

COSTS = {"wait": 0.04, "disk": 0.02, "lock": 0.01, "native": 0.03, "handover": 0.005}


@pytest.mark.parametrize(
    ("producers", "expected"),
    [
        (
            Producers(2),
            {
                LIMIT_PRODUCERS: 2 / 0.1,
                LIMIT_STEP: 1 / 0.015,
                LIMIT_CORES: 2 / 0.045,
                LIMIT_LOCK: 1 / 0.015,
            },
        ),
        (
            Producers(1, 4),
            {
                LIMIT_PRODUCERS: 4 / 0.1,
                LIMIT_STEP: 1 / 0.015,
                LIMIT_CORES: 2 / 0.045,
                LIMIT_LOCK: 4 / 0.01,
            },
        ),
        (
            Producers(0),
            {LIMIT_PRODUCERS: float("inf"), LIMIT_STEP: 1 / 0.115, LIMIT_DISK: 1 / 0.02},
        ),
    ],
    ids=str,
)
def test_each_resource_serves_what_its_time_allows(
    producers: Producers, expected: dict[str, float]
) -> None:
    found = bounds(workload(COSTS, {"accelerator": 0.01}, cores=2, disks=1.0), producers)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
