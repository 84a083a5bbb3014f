"""Cost of handing batches to a framework, and losses on the way.

    python -m bench.sinks [--quick] [--only Keras] [--output build/sinks]

"Handing over": worker processes hand out slots without filling them, so that the figure is the way
of a batch of any size into the training process ("fastfeed", the plain loop) and on into
TensorFlow. "from_generator" reads a generator of ready arrays: at addresses that TensorFlow takes
without a copy ("aligned"), and as numpy allocates them. "over a counter":
Dataset.counter().map(...) with a Python function that takes the same arrays. "An empty Python
function": the same map as runner.dataset(), of a function that does nothing: what TensorFlow's own
call costs.

"From two processes": every batch is written by its worker. "Python": a batch costs 5 ms of Python.
"Keras": the time of a step of fit(), whose batches cost three fifths of that in Python; one core is
left for it.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from bench.command import measure, options, parsed
from bench.results import OURS, Row
from bench.rounds import Cell
from bench.sinks_fit import FITS, fit_step_s
from bench.sinks_loops import loops
from bench.sinks_session import CASES, session_rates
from bench.workloads import Python, Ready, Work, from_json, rounds_for, to_json

SIZES: dict[str, tuple[int, ...]] = {
    "100 KB": (100, 1000),
    "9.6 MB": (64, 224, 224, 3),
    "38.5 MB": (256, 224, 224, 3),
}
HAND, RATE, PYTHON, KERAS = (
    "Handing over {}",
    "{} from two processes",
    "5 ms of Python a batch",
    "Keras fit",
)
LOOPS, SESSION = "9.6 MB into PyTorch and JAX", "A session of TensorFlow 1, {}"
EMPTY = "map of an empty Python function"
LOOP_OF = 50  # elements for each call of a tf.function
PYTHON_S = 0.005
Step = Callable[[], int]  # takes some elements, and says how many


def cells_for(given: argparse.Namespace) -> list[Cell]:
    run = {"measure": "sinks", "warm_s": given.warm_s, "seconds": given.seconds}
    cells = []
    for size, shape in SIZES.items():
        work = to_json(Ready(shape))
        for name in WAYS:
            spec = {**run, "way": name, "work": work, "filled": False}
            cells.append(Cell(Row(HAND.format(size), name, 0, "µs"), {**spec, "invert": True}, 1e6))
        for name in (n for n in WAYS if n.startswith((OURS, "runner", EMPTY))):
            spec = {**run, "way": name, "work": work, "filled": True}
            cells.append(
                Cell(Row(RATE.format(size), name, 2, "GB/s"), spec, Ready(shape).nbytes / 1e9)
            )
    work = to_json(Python((32, 28, 28), rounds=rounds_for(PYTHON_S)))
    for name in (OURS, "runner.dataset()", "from_generator"):
        spec = {**run, "way": name, "work": work, "filled": True}
        cells.append(
            Cell(Row(PYTHON, name, 0 if name == "from_generator" else 2, "batches/s"), spec)
        )
    for name in FITS:
        cells.append(Cell(Row(KERAS, name, 0, "ms a step"), {**run, "fit": name}, 1e3))
    rounds = {"measure": "sinks", "rounds": 3 if given.quick else 9}
    cells.append(Cell(Row(LOOPS, "", 2, "GB/s"), rounds, timeout_s=200.0))
    for case in CASES:
        cells.append(
            Cell(
                Row(SESSION.format(case), "", 2, "records/s"),
                {**rounds, "case": case},
                timeout_s=300.0,
            )
        )
    return cells


def sinks(cell: dict[str, Any]) -> dict[str, float]:
    """Elements per second of one way in, or seconds of one step of fit(), or the medians of several
    ways in `ways`."""
    if "case" in cell:
        return {"value": 0, **session_rates(cell["case"], seconds=0.5, rounds=cell["rounds"])}
    if "rounds" in cell:
        return {"value": 0, "ways": loops(rounds=cell["rounds"])}
    if "fit" in cell:
        return {"value": fit_step_s(cell)}
    with WAYS[cell["way"]](from_json(cell["work"]), cell["filled"]) as step:
        _rate(step, cell["warm_s"])
        rate = _rate(step, cell["seconds"])
    return {"value": 1 / rate if cell.get("invert") else rate}


def _rate(step: Step, seconds: float) -> float:
    count, start = 0, time.perf_counter()
    while (now := time.perf_counter()) - start < seconds or not count:
        count += step()
    return count / (now - start)


@contextmanager
def _running(work: Work, filled: bool, **given: Any) -> Iterator[Any]:
    from fastfeed import FeedRunner

    def source(worker: Any) -> Iterator[tuple[np.ndarray, ...]]:
        like = work.like()
        for index in itertools.count(worker.index, worker.count):
            out = worker.empty(like)
            if filled:
                work.fill(index, out)
            yield out

    with FeedRunner(source, **({"processes": 2} | given)) as runner:
        yield runner


def _each(iterator: Any) -> Step:
    def step() -> int:
        next(iterator)
        return 1

    return step


def _in_function(data: Any) -> Step:
    import tensorflow as tf

    iterator = iter(data)

    @tf.function
    def run() -> Any:
        rows = tf.constant(0)
        for _ in tf.range(LOOP_OF):
            rows += tf.shape(next(iterator)[0])[0]
        return rows

    def step() -> int:
        run()
        return LOOP_OF

    return step


@contextmanager
def loop(work: Work, filled: bool) -> Iterator[Step]:
    with _running(work, filled) as runner:
        yield _each(iter(runner))


def dataset(*, function: bool = False, **given: Any) -> Any:
    @contextmanager
    def opened(work: Work, filled: bool) -> Iterator[Step]:
        with _running(work, filled) as runner:
            data = runner.dataset(**given)
            yield _in_function(data) if function else _each(iter(data))

    return opened


@contextmanager
def generator_over_loop(work: Work, filled: bool) -> Iterator[Step]:
    import tensorflow as tf

    with _running(work, filled) as runner:
        yield _each(
            iter(
                _quiet(
                    tf.data.Dataset.from_generator(
                        lambda: runner, output_signature=_signature(work)
                    )
                )
            )
        )


def arrays_of(work: Work, aligned: bool) -> Iterator[tuple[np.ndarray, ...]]:
    """The same few batches for ever; those of work that costs something are made anew each time."""
    from fastfeed.core.collate import aligned_arrays

    if not isinstance(work, Ready):
        yield from work.stream(0, 1)
    batches = [work.batch(number) for number in range(3)]
    if aligned:
        copies = [tuple(aligned_arrays([(a.shape, a.dtype) for a in batch])) for batch in batches]
        for batch, copy in zip(batches, copies, strict=True):
            for array, twin in zip(batch, copy, strict=True):
                twin[:] = array
        batches = copies
    yield from itertools.cycle(batches)


def generator(aligned: bool) -> Any:
    @contextmanager
    def opened(work: Work, filled: bool) -> Iterator[Step]:
        import tensorflow as tf

        made = tf.data.Dataset.from_generator(
            lambda: arrays_of(work, aligned), output_signature=_signature(work)
        )
        yield _each(iter(_quiet(made)))

    return opened


def counter(dlpack: bool) -> Any:
    @contextmanager
    def opened(work: Work, filled: bool) -> Iterator[Step]:
        import tensorflow as tf

        batches, signature = arrays_of(work, aligned=True), _signature(work)

        def taken() -> Any:
            batch = next(batches)
            return (
                [tf.experimental.dlpack.from_dlpack(a.__dlpack__()) for a in batch]
                if dlpack
                else list(batch)
            )

        def following(_: Any) -> Any:
            call = tf.py_function if dlpack else tf.numpy_function
            leaves = call(taken, [], [spec.dtype for spec in signature])
            for leaf, spec in zip(leaves, signature, strict=True):
                leaf.set_shape(spec.shape)
            return tuple(leaves)

        yield _each(iter(_quiet(tf.data.Dataset.counter().map(following))))

    return opened


@contextmanager
def nothing(work: Work, filled: bool) -> Iterator[Step]:
    import tensorflow as tf

    yield _each(iter(_quiet(tf.data.Dataset.range(2**60))))


@contextmanager
def empty_call(work: Work, filled: bool) -> Iterator[Step]:
    """The map that runner.dataset() is, with a function that returns arrays that lie ready."""
    import tensorflow as tf

    ready, signature = next(arrays_of(work, aligned=True)), _signature(work)
    dtypes = [spec.dtype for spec in signature]

    def following(_: Any) -> Any:
        return tf.numpy_function(lambda: list(ready), [], dtypes)

    variant = tf.raw_ops.MapDataset(
        input_dataset=tf.data.experimental.to_variant(tf.data.Dataset.range(2**60)),
        other_arguments=[],
        f=tf.function(
            following, input_signature=[tf.TensorSpec((), tf.int64)]
        ).get_concrete_function(),
        output_types=dtypes,
        output_shapes=[spec.shape for spec in signature],
        use_inter_op_parallelism=False,
        preserve_cardinality=False,
    )
    yield _each(iter(_quiet(tf.data.experimental.from_variant(variant, signature))))


def _signature(work: Work) -> Any:
    import tensorflow as tf

    return tuple(tf.TensorSpec(a.shape, a.dtype) for a in work.like())


def _quiet(data: Any) -> Any:
    """Without the prefetch that TensorFlow adds, as our own dataset."""
    import tensorflow as tf

    settings = tf.data.Options()
    settings.experimental_optimization.inject_prefetch = False
    return data.with_options(settings)


WAYS: dict[str, Any] = {
    OURS: loop,
    "runner.dataset()": dataset(),
    "runner.dataset(), in a tf.function": dataset(function=True),
    "runner.dataset(prefetch=2)": dataset(prefetch=2),
    "from_generator over the loop": generator_over_loop,
    "from_generator, aligned": generator(aligned=True),
    "from_generator": generator(aligned=False),
    "numpy_function over a counter": counter(dlpack=False),
    "dlpack over a counter": counter(dlpack=True),
    EMPTY: empty_call,
    "Dataset.range, no Python": nothing,
}


def finish(rows: list[Row]) -> list[Row]:
    """Add the cost above the plain loop to transports, and the share of a cached step to fit()."""
    rows = [one for row in rows for one in (_spread_out(row) if not row.peer else [row])]
    loop = {row.table: row.median for row in rows if row.peer == OURS}
    cached = next((row.median for row in rows if row.peer == "a cached batch"), None)
    return [_with_note(row, loop.get(row.table), cached) for row in rows]


def _spread_out(row: Row) -> list[Row]:
    """A row for each way of a measurement of several, in turn: a median of its rounds from each
    run."""
    names = list(row.more[0]["ways"]) if row.more else []
    found = []
    for name in names:
        each = [more["ways"][name] for more in row.more]
        share = float(np.median([way["share"] for way in each]))
        own = replace(
            row,
            peer=OURS if name == "loop" else name,
            values=[way["median"] for way in each],
            more=[],
        )
        found.append(
            replace(
                own, also="" if name == "loop" else f"{share:.2f} of the loop's in the same round"
            )
        )
    return found or [row]


def _with_note(row: Row, loop: float | None, cached: float | None) -> Row:
    if row.median and row.table == KERAS and cached:
        return replace(row, also=f"{row.median / cached:.2f} of the step on a cached batch")
    if row.median and loop and row.unit == "µs" and row.peer.startswith("runner"):
        return replace(row, also=f"{row.median - loop:.0f} µs above the loop")
    return row


def main() -> None:
    given = parsed(options("sinks", __doc__.splitlines()[0]))
    measure("sinks", cells_for(given), given, finish=finish)


if __name__ == "__main__":
    main()
