"""The commands: the only place that prints and returns exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from fastfeed import __version__
from fastfeed.errors import FeedError, MissingExtra, OptionError

BAD_INPUT = 2  # exit code of everything that the user can correct; click's own is the same
FAILED = 1  # exit code of a requirement that is not met
PATH = click.Path(dir_okay=False, path_type=Path)


@click.group()
@click.version_option(__version__, prog_name="fastfeed")
def main() -> None:
    """Any Python iterator, fed at hardware speed into any training loop."""


@main.command()
@click.option(
    "--threads",
    default="1,4,8",
    show_default=True,
    help="Producer threads to measure, such as 1,4,8; with --processes, that many in each process.",
)
@click.option(
    "--processes",
    default="0",
    show_default=True,
    help="Worker processes to measure, such as 0,1,2, each with every count of --threads; 0: threads in the trainer.",
)
@click.option(
    "--workload",
    default="sleep:50ms",
    show_default=True,
    help="The cost of a batch: sleep:50ms, python:10ms (holds the interpreter lock), opencv:10ms (releases it), "
    "photos:DIR (decode, crop, flip) or your own package.module:callable.",
)
@click.option(
    "--consumer",
    default="mnist",
    show_default=True,
    help="The consumer of the batches: mnist (a TF1 session), mnist-keras, resnet50 (Keras too), sim:20ms (an "
    "accelerator) or none.",
)
@click.option(
    "--augment",
    default=None,
    help="With photos:DIR: standard (decode, random resized crop, flip), strong (colours, blur, erasing too) or your "
    "own package.module:spec, by each executor of --augment-on.",
)
@click.option(
    "--augment-on",
    default="producers",
    show_default=True,
    help="Executors of the augmentation: some of producers, dali-cpu, dali-gpu.",
)
@click.option(
    "--batch-size", default=32, show_default=True, type=click.IntRange(1), help="Records per batch."
)
@click.option(
    "--seconds",
    default=3.0,
    show_default=True,
    type=click.FloatRange(0.1),
    help="Length of one run.",
)
@click.option(
    "--steps",
    default=None,
    type=click.IntRange(1),
    help="Length of one run in steps, instead of seconds.",
)
@click.option(
    "--repeats",
    default=3,
    show_default=True,
    type=click.IntRange(1),
    help="Runs of every setting, in turn.",
)
@click.option(
    "--baseline",
    is_flag=True,
    help="Also run the hand-written idiom, in turn with fastfeed, for --processes 0: it has threads only.",
)
@click.option("--data", default=None, help="MNIST: the file mnist.npz or its folder.")
@click.option(
    "--output",
    default=None,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for JSON and pictures.",
)
@click.option(
    "--assert-au",
    default=None,
    type=click.FloatRange(0, 100, min_open=True),
    help="Exit with 1 unless the best requested setting keeps the step busy for this percentage of the time.",
)
def bench(**options: Any) -> None:
    """Measure how long a training step starves for input, against the number of producer threads
    and processes."""
    # before TensorFlow is loaded: its start-up messages are not part of the report
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    augmented = options.pop("augment")
    executors = options.pop("augment_on")
    with _failures():
        if augmented is None:
            _bench(**options)
        else:
            _bench_augment(augmented, executors, **options)


def _bench(*, output: Path | None, assert_au: float | None, **options: Any) -> None:
    from fastfeed.benchmark.build_gate import check_au, check_step
    from fastfeed.benchmark.plot import write_plots
    from fastfeed.benchmark.report import tables_of, write_json
    from fastfeed.benchmark.summary import advise

    if assert_au is not None:
        check_step(options["consumer"])

    console = Console()
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    sweep = _sweep(options, Console(stderr=True))
    for table in tables_of(sweep):
        console.print(table)
        console.print()
    if output is not None:
        written = [
            write_json(sweep, output),
            *_plots(sweep, output, console=console, write=write_plots),
        ]
        console.print("written: " + ", ".join(str(path) for path in written), soft_wrap=True)
    console.print(advise(sweep), style="bold", soft_wrap=True, highlight=False)
    if assert_au is not None:
        gate = check_au(sweep, assert_au)
        click.echo(gate.text)
        sys.exit(0 if gate.passed else FAILED)


def _sweep(options: dict[str, Any], console: Console) -> Any:
    from fastfeed.benchmark.consumers import consumer_from
    from fastfeed.benchmark.sweep import run_sweep
    from fastfeed.benchmark.workloads import workload_from

    plan = _plan(options)  # what loads a framework comes last: mistakes are reported at once
    workload = workload_from(
        options["workload"], batch_size=options["batch_size"], data=options["data"]
    )
    consumer = consumer_from(options["consumer"])
    with _progress(console) as report:
        return run_sweep(workload, consumer, plan=plan, progress=report)


def _bench_augment(
    text: str, executors: str, *, output: Path | None, assert_au: float | None, **options: Any
) -> None:
    from fastfeed.benchmark.augments import compare_executors, executors_from, spec_from
    from fastfeed.benchmark.augments_report import advise, table_of, write_json, write_plots
    from fastfeed.benchmark.consumers import consumer_from

    for name, given in (
        ("--assert-au", assert_au is not None),
        ("--baseline", options["baseline"]),
    ):
        if given:
            raise OptionError(
                f"{name} varies the producers, which --augment does itself: leave it out"
            )
    chosen = {
        "spec": spec_from(text),
        "executors": executors_from(executors),
        "plan": _plan(options),
    }
    console = Console()
    with _progress(Console(stderr=True)) as report:
        consumer = consumer_from(options["consumer"])
        found = compare_executors(options["workload"], consumer, **chosen, progress=report)
    console.print(table_of(found))
    console.print()
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        written = [
            write_json(found, output),
            *_plots(found, output, console=console, write=write_plots),
        ]
        console.print("written: " + ", ".join(str(path) for path in written), soft_wrap=True)
    console.print(advise(found), style="bold", soft_wrap=True, highlight=False)


def _plan(options: dict[str, Any]) -> Any:
    from fastfeed.benchmark.sweep import SweepPlan, parse_counts

    threads = parse_counts(options["threads"], "--threads", least=1, such_as="1,4,8")
    processes = parse_counts(options["processes"], "--processes", least=0, such_as="0,1,2")
    rest = {name: options[name] for name in ("seconds", "steps", "repeats", "baseline")}
    return SweepPlan(threads, options["batch_size"], processes=processes, **rest)


@contextmanager
def _progress(console: Console) -> Any:
    """Show a progress bar; yield a function of a text and the share that is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield _reporter(bar, bar.add_task("starting", total=1.0))


@main.command()
@click.argument("before", type=PATH)
@click.argument("after", type=PATH)
@click.option(
    "--fail-if-slower", is_flag=True, help="Exit with 1 if the whole or any setting is slower."
)
def compare(before: Path, after: Path, *, fail_if_slower: bool) -> None:
    """Say whether AFTER is faster than BEFORE: results of `bench --output` or of `diagnose
    --json`."""
    from fastfeed.benchmark.compare import compare as compared
    from fastfeed.benchmark.compare import lines_of

    with _failures():
        found = compared(before, after)
        for line in lines_of(found):
            click.echo(line)
        sys.exit(FAILED if fail_if_slower and found.slower else 0)


def _reporter(bar: Progress, task: Any) -> Callable[[str, float], None]:
    last = ("", -1.0)

    def report(text: str, share: float) -> None:
        nonlocal last
        if (text, share) != last:
            last = (text, share)
            bar.update(task, description=text, completed=share)

    return report


def _plots(
    found: Any, output: Path, *, console: Console, write: Callable[[Any, Path], list[Path]]
) -> list[Path]:
    try:
        return write(found, output)
    except MissingExtra as error:
        console.print(f"no picture: {error}", style="yellow")
        return []


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--seconds",
    default=20.0,
    show_default=True,
    type=click.FloatRange(1),
    help="From first step to report.",
)
@click.option(
    "--warmup",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Of these, seconds left out.",
)
@click.option("--json", default=None, type=PATH, help="Write the diagnosis as JSON.")
@click.option(
    "--html",
    default=None,
    type=PATH,
    help="Write a page with the time line and where producers spend time.",
)
@click.option("--trace", default=None, type=PATH, help="Write a trace for ui.perfetto.dev.")
@click.option(
    "--no-experiments",
    is_flag=True,
    help="Take no batches ahead to measure steps that do not wait.",
)
@click.option(
    "--stop",
    is_flag=True,
    help="End the script when the diagnosis is made, instead of letting it go on.",
)
@click.argument("script", nargs=-1, required=True, type=click.UNPROCESSED)
def diagnose(script: tuple[str, ...], **options: Any) -> None:
    """Run a training SCRIPT with its arguments, unchanged, and report why it is slow and what would
    change it.

    Put -- before the script: fastfeed diagnose --seconds 20 -- train.py --epochs 3. As with python,
    -m MODULE runs a module. The script's output and exit code are its own; the report goes to
    stderr.
    """
    with _failures():
        sys.exit(_diagnose(script, **options))


def _diagnose(
    script: tuple[str, ...],
    *,
    seconds: float,
    warmup: float,
    no_experiments: bool,
    stop: bool,
    **files: Path | None,
) -> int:
    from fastfeed.diagnose.report.terminal import render
    from fastfeed.diagnose.run.launch import run
    from fastfeed.diagnose.run.lifecycle import WatchPlan
    from fastfeed.diagnose.run.observe import DiagnosisObserver

    if warmup >= seconds:
        raise OptionError(
            f"--warmup is part of --seconds: must be less than {seconds:g}, got {warmup:g}"
        )

    def say(diagnosis: Any, written: list[Path]) -> None:
        console = Console(stderr=True)
        console.print(render(diagnosis))
        if written:
            console.print("written: " + ", ".join(map(str, written)), soft_wrap=True)

    plan = WatchPlan(seconds, warmup, experiments=not no_experiments, stop=stop)
    return run(list(script), plan=plan, observer=DiagnosisObserver(say, **files))


@main.command()
@click.argument("pid", required=False, type=click.IntRange(1))
@click.option("--once", is_flag=True, help="Print one frame and exit, as without a terminal.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the figures as one line of JSON and end."
)
def top(pid: int | None, *, once: bool, as_json: bool) -> None:
    """Show a running job: its FeedRunners, or the threads of any other Python process (through
    py-spy)."""
    with _failures():
        from fastfeed.live.top import view

        view(pid, once=once, as_json=as_json, console=Console())


@main.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
def postmortem(file: Path | None) -> None:
    """Show the last minute of a job that has died, from its black box; without FILE, from the
    newest one."""
    with _failures():
        from fastfeed.live.postmortem import read, render

        Console().print(render(read(file)))


@contextmanager
def _failures() -> Any:
    """Turn a failure that the user can correct into one message and exit code 2, without a
    traceback."""
    try:
        yield
    except FeedError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(BAD_INPUT)
