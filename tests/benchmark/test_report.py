"""Output of the benchmark: tables, picture and advice, from invented figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from fastfeed.benchmark.measure import ProducerCost, StepCost, Window, profile_of
from fastfeed.benchmark.report import tables_of, write_plots
from fastfeed.benchmark.summary import advise
from fastfeed.benchmark.sweep import Setting, Sweep, SweepPlan
from fastfeed.model.prediction import predict
from fastfeed.model.workload import Producers, fed_by

Rates = dict[int | Producers, float]
WAITS = ProducerCost(0.05, 0.0, 0.0, 0.0)
PYTHON = ProducerCost(0.01, 0.01, 0.0097, 0.0)


def sweep_of(*, rates: Rates, step_s: float, producer: ProducerCost, wait: float) -> Sweep:
    """A sweep with these steps/s; a number alone counts threads in the trainer."""
    step = StepCost(step_s)
    profile = profile_of(producer, step, cores=2)
    found = {n if isinstance(n, Producers) else Producers(n): rate for n, rate in rates.items()}
    threads, processes = (
        tuple(dict.fromkeys(getattr(p, name) for p in found)) for name in ("threads", "processes")
    )
    plan = SweepPlan(threads, 32, 1.0, None, 1, processes)
    settings = []
    for producers, rate in found.items():
        window = Window(int(rate), 1.0, wait, 0.0, 0.0, 1.0, 10**8, 0.1, None, None)
        predicted = predict(fed_by(profile, producers), producers)
        settings.append(Setting("fastfeed", producers, (window,), predicted))
    return Sweep("w", "d", "c", plan, step, producer, profile, tuple(settings))


@pytest.mark.parametrize(
    ("processes", "threads", "curves"),
    [
        ((0,), (1, 4), ["threads in the trainer"]),
        ((0, 1, 2), (1, 4), ["threads in the trainer", "1 process", "2 processes"]),
        ((0, 1, 2), (4,), ["threads in the trainer", "processes"]),
    ],
)
def test_the_picture_has_a_curve_for_each_process_count(
    processes: tuple[int, ...], threads: tuple[int, ...], curves: list[str], tmp_path: Path
) -> None:
    rates: Rates = {Producers(t, p): 20.0 for p in processes for t in threads}
    write_plots(sweep_of(rates=rates, step_s=0.01, producer=WAITS, wait=0.5), tmp_path)
    drawn = (tmp_path / "bench.svg").read_text()
    kinds = ("threads in the trainer", "1 process", "2 processes", "processes")
    assert [c for c in kinds if f"<!-- {c} -->" in drawn] == curves


def test_the_processes_have_a_column_where_there_are_any() -> None:
    for processes, column in (((0,), False), ((0, 2), True)):
        rates: Rates = {Producers(4, p): 20.0 for p in processes}
        for table in tables_of(sweep_of(rates=rates, step_s=0.01, producer=WAITS, wait=0.5)):
            assert ("processes" in [c.header for c in table.columns]) == column
            assert Console(width=200).measure(table).maximum <= 80


def test_advice_says_when_enough_is_enough() -> None:
    sweep = sweep_of(rates={1: 20.0, 8: 99.0}, step_s=0.01, producer=WAITS, wait=0.02)
    assert advise(sweep) == "8 threads: starvation 2%; more gains nothing, the step is the limit."


def test_advice_counts_the_threads_that_are_missing() -> None:
    sweep = sweep_of(rates={1: 20.0, 2: 40.0}, step_s=0.01, producer=WAITS, wait=0.6)
    assert "6 threads are predicted" in advise(sweep) and "limit is: the step" in advise(sweep)


def test_advice_names_the_interpreter_lock() -> None:
    sweep = sweep_of(rates={1: 60.0, 4: 50.0}, step_s=0.001, producer=PYTHON, wait=0.5)
    assert "hold the interpreter lock for 97%" in advise(sweep)
    assert (
        f"try --processes 0,1,{sweep.profile.cores}: every process has a lock of its own"
        in advise(sweep)
    )


def test_advice_counts_the_processes_that_are_missing() -> None:
    rates: Rates = {1: 60.0, Producers(1, 1): 95.0}
    sweep = sweep_of(rates=rates, step_s=0.001, producer=PYTHON, wait=0.9)
    assert "2 processes x 1 thread are predicted" in advise(
        sweep
    ) and "(2.1 times as many)" in advise(sweep)


def test_advice_prefers_threads_where_processes_gain_little() -> None:
    rates: Rates = {4: 97.0, Producers(4, 1): 99.0}
    assert advise(sweep_of(rates=rates, step_s=0.01, producer=WAITS, wait=0.02)).startswith(
        "4 threads: starvation 2%"
    )


def test_advice_tries_processes_where_the_lock_of_waiting_producers_is_full() -> None:
    sweep = sweep_of(
        rates={16: 196.0}, step_s=0.001, producer=ProducerCost(0.05, 0.005, 0.005, 0.0), wait=0.8
    )
    assert "limit is: the interpreter lock; try --processes" in advise(sweep)
