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
from fastfeed.live.drawing import Terminal
from fastfeed.runner.unfit_options import refuse_too_many

# options that another one makes useless, and why
IGNORED_BESIDE = {
    ("seconds", "steps"): "--steps says how long a run is",
    ("assert_au", "augment"): "--augment compares several executors",
    ("baseline", "augment"): "--augment compares several executors",
    ("data", "augment"): "--augment reads the photographs of --workload photos:DIR",
}
Writers = tuple[Callable[..., Path], Callable[..., list[Path]]]  # of JSON and of plots


def measure(options: dict[str, Any], given: Collection[str]) -> bool:
    """Measure what the options say, print and write it. Return False if a requested check fails.

    `given`: the names of the options that the user wrote. Raise OptionError for options that cannot
    be, or that others would make useless.
    """
    for (useless, other), why in IGNORED_BESIDE.items():
        if useless in given and other in given:
            raise OptionError(f"{_flag(useless)} beside {_flag(other)} would be ignored: {why}")
    if "augment_on" in given and options["augment"] is None:
        raise OptionError(
            "--augment-on alone would be ignored: it says where --augment runs, such as --augment "
            "standard --workload photos:DIR"
        )
    options = dict(options)
    augment, executors = options.pop("augment"), options.pop("augment_on")
    output = options["output"]
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    if augment is not None:
        _measure_executors(augment, executors, options=options)
        return True
    return _measure_sweep(options)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _measure_sweep(options: dict[str, Any]) -> bool:
    from fastfeed.benchmark.build_gate import check_au, check_step
    from fastfeed.benchmark.plot import write_plots
    from fastfeed.benchmark.report import tables_of, write_json
    from fastfeed.benchmark.summary import advise

    least_au, output = options["assert_au"], options["output"]
    if least_au is not None:
        check_step(options["consumer"])
    sweep = _sweep(options)
    console = Terminal()
    show(console, tables_of(sweep))
    write_results(console, sweep, output=output, writers=(write_json, write_plots))
    console.print(advise(sweep), style="bold", soft_wrap=True, highlight=False)
    if least_au is None:
        return True
    check = check_au(sweep, least_au)
    console.print(check.text, soft_wrap=True, highlight=False)
    return check.passed


def _sweep(options: dict[str, Any]) -> Sweep:
    from fastfeed.benchmark.consumers import consumer_from, takes_any_batch
    from fastfeed.benchmark.sweep import run_sweep
    from fastfeed.benchmark.workloads import workload_from

    plan = _plan(options)  # import frameworks last: report mistakes at once
    workload = workload_from(
        options["workload"],
        batch_size=options["batch_size"],
        data=options["data"],
        real=not takes_any_batch(options["consumer"]),
    )
    consumer = consumer_from(options["consumer"])
    with progress_bar() as report:
        return run_sweep(workload, consumer, plan=plan, progress=report)


def _measure_executors(augment: str, executors: str, *, options: dict[str, Any]) -> None:
    from fastfeed.benchmark.augments import compare_executors, executors_from, spec_from
    from fastfeed.benchmark.augments_report import advise, table_of, write_json, write_plots
    from fastfeed.benchmark.consumers import consumer_from

    spec, chosen, plan = spec_from(augment), executors_from(executors), _plan(options)
    consumer = consumer_from(options["consumer"])
    with progress_bar() as report:
        found = compare_executors(
            options["workload"], consumer, spec=spec, executors=chosen, plan=plan, progress=report
        )
    console = Terminal()
    show(console, [table_of(found)])
    write_results(console, found, output=options["output"], writers=(write_json, write_plots))
    console.print(advise(found), style="bold", soft_wrap=True, highlight=False)


def _plan(options: dict[str, Any]) -> SweepPlan:
    threads = parse_counts(options["threads"], "--threads", least=1, such_as="1,4,8")
    processes = parse_counts(options["processes"], "--processes", least=0, such_as="0,1,2")
    names = ("seconds", "steps", "repeats", "baseline", "remote")
    others = {name: options[name] for name in names}
    plan = SweepPlan(threads, options["batch_size"], processes=processes, **others)
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
    last = ("", -1.0)
    with Progress(*columns, console=Terminal(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)

        def report(text: str, share: float) -> None:
            nonlocal last
            if (text, share) != last:
                last = (text, share)
                bar.update(task, description=text, completed=share)

        yield report


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
