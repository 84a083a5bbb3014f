"""The command `fastfeed plan`: its figures, its profile, and what it prints and writes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from fastfeed.benchmark.bench_command import progress_bar, show, write_results
from fastfeed.errors import OptionError
from fastfeed.live.drawing import Terminal
from fastfeed.plan.plan_figures import figures_from
from fastfeed.plan.planner import make_plan
from fastfeed.plan.profiled import SourceProfile, profile_source

PROFILE_OPTIONS = ("train", "batch_size", "data")


def plan(words: Sequence[str], options: dict[str, Any], *, given: Collection[str]) -> None:
    """Print the plan for figures such as "samples=1.28M" and for the profile of --workload.

    `given`: the names of the options that the user wrote. Raise OptionError for figures that cannot
    be, or that contradict each other.
    """
    from fastfeed.plan.plan_plot import plan_plots
    from fastfeed.plan.plan_report import plan_json, plan_tables

    figures = figures_from(words)  # reports mistakes before anything is measured
    ignored = [f"--{name.replace('_', '-')}" for name in PROFILE_OPTIONS if name in given]
    if ignored and options["workload"] is None:
        raise OptionError(f"{', '.join(ignored)} alone would be ignored: give --workload, too")
    output = options["output"]
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    profile = None if options["workload"] is None else _profile(options)
    found = make_plan(figures, profile)
    console = Terminal()
    show(console, plan_tables(found))
    for warning in found.warnings:
        console.print(f"warning: {warning}", style="yellow", soft_wrap=True, highlight=False)
    for hint in found.missing:
        console.print(f"give {hint}", style="dim", soft_wrap=True, highlight=False)
    write_results(console, found, output=output, writers=(plan_json, plan_plots))


def _profile(options: dict[str, Any]) -> SourceProfile:
    from fastfeed.benchmark.consumers import consumer_from, takes_any_batch
    from fastfeed.benchmark.workloads import workload_from

    source = workload_from(
        options["workload"],
        batch_size=options["batch_size"],
        data=options["data"],
        real=not takes_any_batch(options["train"]),
    )
    consumer = consumer_from(options["train"])
    with progress_bar() as report:
        return profile_source(source, consumer, progress=report)
