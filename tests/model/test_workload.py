"""The input of the simulation: its columns, and what cannot be."""

import math
from typing import Any

import numpy as np
import pytest

from fastfeed.errors import OptionError
from fastfeed.model.workload import (
    BATCH_PARTS,
    LIMIT_CORES,
    LIMIT_DISK,
    LIMIT_LOCK,
    LIMIT_PRODUCERS,
    LIMIT_STEP,
    STEP_PARTS,
    Producers,
    Workload,
    demands,
    rows_of,
    utilisation,
)
from tests.model.feeds import workload


def test_rows_have_every_part() -> None:
    rows = rows_of(BATCH_PARTS, wait=[0.1, 0.2], lock=0.3)
    assert rows.shape == (2, len(BATCH_PARTS))
    found = Workload(rows, rows_of(STEP_PARTS))
    assert found.batch("wait").tolist() == [0.1, 0.2]
    assert found.batch("lock").tolist() == [0.3, 0.3]
    assert found.step("lock").tolist() == [0.0]


def test_a_change_scales_parts() -> None:
    found = workload({"wait": 0.1, "disk": 0.2}, {"lock": 0.4}).scaled(
        batch={"disk": 0.5}, step={"lock": 0.0}
    )
    assert found.batches.tolist() == [[0.1, 0.1, 0.0, 0.0]]
    assert not found.steps.any()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"batches": np.zeros((0, 4))}, "batches"),
        ({"steps": np.zeros((3, 2))}, "steps"),
        ({"batches": rows_of(BATCH_PARTS, disk=-1.0)}, "disk"),
        ({"steps": rows_of(STEP_PARTS, lock=math.nan)}, "lock"),
        ({"cores": 0}, "cores"),
        ({"disks": 0.0}, "disks"),
        ({"depth": -1}, "depth"),
        ({"turns": math.nan}, "turns"),
    ],
)
def test_parts_that_cannot_be_are_named(fields: dict[str, Any], named: str) -> None:
    given_fields = {"batches": rows_of(BATCH_PARTS), "steps": rows_of(STEP_PARTS), **fields}
    with pytest.raises(OptionError, match=named):
        Workload(**given_fields)


def test_names_of_producers() -> None:
    assert str(Producers(0)) == "0 threads"
    assert str(Producers(1)) == "1 thread"
    assert str(Producers(4, 1)) == "1 process x 4 threads"
    assert str(Producers(1, 2)) == "2 processes x 1 thread"


def test_utilisation_is_compute_time_by_total_time() -> None:
    assert utilisation(10, 0.05, wall_s=1.0) == pytest.approx(0.5)
    assert utilisation(10, 0.5, wall_s=1.0) == 1.0
    assert math.isnan(utilisation(0, 0.5, wall_s=0.0))


COSTS = {"wait": 0.04, "disk": 0.02, "lock": 0.01, "native": 0.03}


@pytest.mark.parametrize(
    ("producers", "expected"),
    [
        (
            Producers(2),
            {
                LIMIT_PRODUCERS: 0.1 / 2,
                LIMIT_STEP: 0.01,
                LIMIT_CORES: 0.04 / 2,
                LIMIT_LOCK: 0.01,
            },
        ),
        (
            Producers(1, 4),
            {
                LIMIT_PRODUCERS: 0.1 / 4,
                LIMIT_STEP: 0.01,
                LIMIT_CORES: 0.04 / 2,
                LIMIT_LOCK: 0.01 / 4,
            },
        ),
        (
            Producers(0),
            {LIMIT_PRODUCERS: 0.0, LIMIT_STEP: 0.11, LIMIT_DISK: 0.02},
        ),
    ],
    ids=str,
)
def test_the_seconds_of_each_resource_by_its_capacity(
    producers: Producers, expected: dict[str, float]
) -> None:
    found = demands(workload(COSTS, {"accelerator": 0.01}, cores=2, disks=1.0), producers)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
