"""The command `fastfeed bench`: what its options mean together, and what it prints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from fastfeed.benchmark.sweep import Sweep, SweepPlan, parse_counts
from fastfeed.errors import MissingExtra, OptionError
from fastfeed.jobs.drawing import Terminal
from fastfeed.options import refuse_too_many

Writers = tuple[Callable[..., Path], Callable[..., list[Path]]]  # of JSON and of plots


def measure(options: dict[str, Any], given: Collection[str]) -> bool:
    """Measure what the options say, print and write it. Return False if a requested check fails.

    `given`: the names of the options that the user wrote. Raise OptionError for options that cannot
    be, or that others would make useless.
    """
    from fastfeed.benchmark.report import tables_of, write_json, write_plots
    from fastfeed.benchmark.summary import advise, auto_sentence, check_au

    _refuse_useless(options, given)
    output, least_au, console = options["output"], options["assert_au"], Terminal()
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    sweep = _sweep(options)
    show(console, tables_of(sweep))
    write_results(console, sweep, output=output, writers=(write_json, write_plots))
    console.print(advise(sweep), style="bold", soft_wrap=True, highlight=False)
    if sweep.auto is not None:
        console.print(auto_sentence(sweep), soft_wrap=True, highlight=False)
    if least_au is None:
        return True
    passed, text = check_au(sweep, least_au)
    console.print(text, soft_wrap=True, highlight=False)
    return passed


def _refuse_useless(options: dict[str, Any], given: Collection[str]) -> None:
    """Raise OptionError for options that others make useless."""
    if {"seconds", "steps"} <= set(given):
        raise OptionError(
            "--seconds beside --steps would be ignored: --steps says how long a run is"
        )
    if options["augment"] is not None and "data" in given:
        raise OptionError(
            "--data beside --augment would be ignored: --augment reads the photographs of "
            "--workload photos:DIR"
        )
    if "augment_on" in given and options["augment"] is None:
        raise OptionError(
            "--augment-on alone would be ignored: it says where --augment runs, such as --augment "
            "standard --workload photos:DIR"
        )
    if options["assert_au"] is not None and options["consumer"] == "none":
        raise OptionError(
            "--assert-au needs a step to keep busy: --consumer none has none, take --consumer "
            "sim:20ms"
        )


def _sweep(options: dict[str, Any]) -> Sweep:
    from fastfeed.benchmark.consumers import consumer_from, takes_any_batch
    from fastfeed.benchmark.sweep import run_sweep
    from fastfeed.benchmark.workloads import augmented, workload_from

    plan, size = _plan(options), options["batch_size"]  # frameworks last: report mistakes at once
    if options["augment"] is not None:
        workload = augmented(
            options["workload"],
            options["augment"],
            executors=options["augment_on"],
            batch_size=size,
        )
    else:
        real = not takes_any_batch(options["consumer"])
        workload = workload_from(
            options["workload"], batch_size=size, data=options["data"], real=real
        )
    consumer = consumer_from(options["consumer"])
    with progress_bar() as report:
        return run_sweep(workload, consumer, plan=plan, progress=report)


def _plan(options: dict[str, Any]) -> SweepPlan:
    plan = SweepPlan(
        parse_counts(options["threads"], "--threads", least=1, such_as="1,4,8"),
        processes=parse_counts(options["processes"], "--processes", least=0, such_as="0,1,2"),
        **{
            name: options[name]
            for name in ("batch_size", "seconds", "steps", "repeats", "remote", "auto")
        },
    )
    for producers in plan.grid:
        refuse_too_many(producers.threads, 0 if producers.remote else producers.processes)
    return plan


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """Show a progress bar; yields a function of a text and the finished share (0 to 1)."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Terminal(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda text, share: bar.update(task, description=text, completed=share)


def show(console: Console, tables: list[Any]) -> None:
    """Print tables, with an empty line after each."""
    for table in tables:
        console.print(table)
        console.print()


def write_results(console: Console, found: Any, *, output: Path | None, writers: Writers) -> None:
    """Write JSON and plots to the folder `output`, if there is one, and name the files."""
    if output is None:
        return
    write_json, write_plots = writers
    written = [write_json(found, output)]
    try:
        written += write_plots(found, output)
    except MissingExtra as error:
        console.print(f"no plots: {error}", style="yellow", soft_wrap=True)
    console.print("written: " + ", ".join(map(str, written)), soft_wrap=True)
