"""Workloads for tests of the model."""

from typing import Any

from hypothesis import strategies as st

from fastfeed.model.workload import BATCH_PARTS, STEP_PARTS, Producers, Workload, rows_of

seconds = st.one_of(st.just(0.0), st.floats(1e-5, 0.1))


def workload(
    batch: dict[str, Any] | None = None, step: dict[str, Any] | None = None, **fields: Any
) -> Workload:
    """Return a workload with these parts of a batch and of a step."""
    options = {"cores": 4, **fields}
    return Workload(
        rows_of(BATCH_PARTS, **batch or {}), rows_of(STEP_PARTS, **step or {}), **options
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw a workload with one to four different batches and steps."""
    rows = [
        [[draw(seconds) for _ in parts] for _ in range(draw(st.integers(1, 4)))]
        for parts in (BATCH_PARTS, STEP_PARTS)
    ]
    batches, steps = (
        dict(zip(p, zip(*r, strict=True), strict=True))
        for p, r in zip((BATCH_PARTS, STEP_PARTS), rows, strict=True)
    )
    return workload(
        batches,
        steps,
        cores=draw(st.integers(1, 8)),
        depth=draw(st.integers(0, 6)),
        refill=draw(st.sampled_from((0.5, 1.0))),
        ordered=draw(st.booleans()),
        early=draw(st.sampled_from((0, 2, 100))),
        step_threads=draw(st.sampled_from((1.0, 1.1, 4.0))),
        turns=draw(st.sampled_from((0.0, 1.0, 3.0))),
        disks=draw(st.sampled_from((1.0, 2.0, float("inf")))),
    )


producers = st.one_of(
    st.integers(0, 6).map(Producers),
    st.builds(Producers, st.integers(1, 3), st.integers(1, 3)),
)
