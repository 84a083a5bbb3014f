"""The commands; the only module that prints and returns exit codes."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit

from fastfeed import __version__
from fastfeed.errors import DOCS_NOTE, SHOWS_NOTES, FeedError, OptionError, page_of

CHECK_FAILED = 1  # exit code of a requested check that does not pass
BY_USER = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT)
PROVING = ("prove", "budget", "apply_diff", "also_rarer", "prove_env")
NOT_PROVING = ("trace", "evidence", "anonymous", "no_experiments", "stop", "live")
FILE_PATH = click.Path(dir_okay=False, path_type=Path)
FOLDER_PATH = click.Path(file_okay=False, path_type=Path)
batch_size = click.option(
    "--batch-size", default=32, type=click.IntRange(1), help="Records per batch."
)
data = click.option("--data", default=None, help="For MNIST: the file mnist.npz, or its folder.")


class Command(click.Command):
    """A command that reports an error that the user can correct as one message, with exit code
    2."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except FeedError as error:
            page = f" {DOCS_NOTE.format(page_of(type(error)))}" if SHOWS_NOTES else ""
            raise click.UsageError(f"{error}{page}") from error


class Commands(click.Group):
    """Commands of this kind."""

    command_class = Command


def given_by_user(options: Iterable[str]) -> set[str]:
    """Return the names of the options that the user wrote."""
    context = click.get_current_context()
    return {name for name in options if context.get_parameter_source(name) in BY_USER}


def show_versions(context: click.Context, *given: Any) -> None:
    """Print what a bug report needs, and exit."""
    _, wanted = given
    if wanted and not context.resilient_parsing:
        from fastfeed.jobs.doctor import versions

        click.echo("\n".join([f"fastfeed, version {__version__}", *versions()]))
        context.exit()


@click.group(cls=Commands, context_settings={"show_default": True})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_versions,
    help="Show the versions of fastfeed and of what it works with, for a bug report, and exit.",
)
def main() -> None:
    """Feed any Python iterator into any training loop at hardware speed."""


@main.command(context_settings={"show_default": True})  # it is `fastfeed-bench` as well
@click.version_option(__version__, prog_name="fastfeed-bench")
@click.option(
    "--threads",
    default="1,4,8",
    help="Numbers of producer threads to measure; with --processes, threads in each process.",
)
@click.option(
    "--processes",
    default="0",
    help="Numbers of worker processes to measure, such as 0,1,2, each with every number of "
    "--threads; 0: producer threads in the trainer.",
)
@click.option(
    "--remote",
    default=None,
    help="Make --processes remote producers: local, auto or the address of a Ray cluster.",
)
@click.option(
    "--auto",
    is_flag=True,
    help='Measure workers="auto", too, which chooses its producers for 20 s before each run.',
)
@click.option(
    "--workload",
    default="sleep:50ms",
    help="Cost of a batch: sleep:50ms, python:10ms (holds the interpreter lock), opencv:10ms "
    "(releases it), photos:DIR (decode, crop, flip) or your own package.module:callable.",
)
@click.option(
    "--consumer",
    default="mnist",
    help="Consumer of the batches: mnist (a TF1 session), mnist-keras, resnet50 (Keras), sim:20ms "
    "(a simulated accelerator) or none.",
)
@click.option(
    "--augment",
    default=None,
    help="With photos:DIR, augmentation to measure on each executor of --augment-on: standard "
    "(decode, random resized crop, flip) or your own package.module:spec.",
)
@click.option(
    "--augment-on",
    default="producers",
    help="Executors of --augment, separated by commas: producers, dali-cpu, dali-gpu.",
)
@batch_size
@click.option(
    "--seconds",
    default=3.0,
    type=click.FloatRange(0.1),
    help="Duration of one run.",
)
@click.option(
    "--steps",
    default=None,
    type=click.IntRange(1),
    help="Length of one run in steps; replaces --seconds.",
)
@click.option(
    "--repeats",
    default=3,
    type=click.IntRange(1),
    help="Number of runs of every setting, interleaved.",
)
@data
@click.option("--output", default=None, type=FOLDER_PATH, help="Folder to write JSON and plots to.")
@click.option(
    "--assert-au",
    default=None,
    type=click.FloatRange(0, 100, min_open=True),
    help="Exit with 1 unless the best setting reaches this accelerator utilization: the share of "
    "the time, in per cent, in which the step is busy.",
)
def bench(**options: Any) -> None:
    """Measure input starvation of a training step.

    Each number of producer threads and worker processes is measured, and the results are compared
    with a prediction.
    """
    from fastfeed.benchmark.bench_command import measure

    if not measure(options, given_by_user(options)):
        raise Exit(CHECK_FAILED)


@main.command()
@click.argument("figures", nargs=-1, metavar="[FIGURE=VALUE]...")
@click.option(
    "--workload", default=None, help="Source to profile, in the words of `fastfeed bench`."
)
@click.option(
    "--train",
    default="mnist",
    help="Step to profile with it: a --consumer of `fastfeed bench`.",
)
@batch_size
@data
@click.option("--output", default=None, type=FOLDER_PATH, help="Folder to write plan.json to.")
def plan(figures: tuple[str, ...], **options: Any) -> None:
    """Plan a training: producers, memory, bandwidth, time and money.

    From figures such as samples=1.28M sample=150KB batch=64 step=300ms, from a short profile of
    --workload and --train, or both. Without arguments, explain it and list the figures.
    """
    from fastfeed.plan.plan_command import plan as make

    make(figures, options, given=given_by_user(options))


@main.command()
@click.argument("before", type=FILE_PATH)
@click.argument("after", type=FILE_PATH)
@click.option(
    "--fail-if-slower",
    is_flag=True,
    help="Exit with 1 if AFTER is slower, as a whole or in any setting.",
)
def compare(before: Path, after: Path, *, fail_if_slower: bool) -> None:
    """Compare two results: is AFTER faster?

    BEFORE and AFTER are results of `bench --output` or of `diagnose --json`.
    """
    from fastfeed.benchmark.compare import compare as compared
    from fastfeed.benchmark.compare import lines_of

    found = compared(before, after)
    for line in lines_of(found):
        click.echo(line)
    if fail_if_slower and found.slower:
        raise Exit(CHECK_FAILED)


def _check_words(script: tuple[str, ...]) -> None:
    """Raise NoSuchOption for an option that does not exist, and warn of some behind the script."""
    known = [name for one in click.get_current_context().command.params for name in one.opts]
    if script[:1] and script[0].startswith("--"):
        near = difflib.get_close_matches(script[0].partition("=")[0], known, 2)
        raise click.NoSuchOption(script[0], possibilities=near)
    behind = [word for word in script[1:] if word.partition("=")[0] in known]
    if behind and "--" not in sys.argv:
        text = f"{behind[0]} is passed to the script: options of fastfeed stand before it"
        click.echo(text, err=True)


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--seconds",
    default=20.0,
    type=click.FloatRange(1),
    help="Time from the first step to the report, in seconds.",
)
@click.option(
    "--warmup",
    default=2.0,
    type=click.FloatRange(0),
    help="Part of --seconds that is left out of the measurement.",
)
@click.option(
    "--json", default=None, type=FILE_PATH, help="Write the diagnosis to this file as JSON."
)
@click.option(
    "--html",
    default=None,
    type=FILE_PATH,
    help="Write a page with the timeline, and where the producers spend their time.",
)
@click.option(
    "--trace", default=None, type=FILE_PATH, help="Write a trace to view at ui.perfetto.dev."
)
@click.option(
    "--evidence",
    default=None,
    type=FILE_PATH,
    help="Write all observations to this file, for --replay and bug reports.",
)
@click.option(
    "--anonymous",
    is_flag=True,
    help="Leave paths, arguments and names of your own out of the file of --evidence.",
)
@click.option(
    "--replay",
    default=None,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Judge the observations in this file of --evidence again, without a SCRIPT.",
)
@click.option(
    "--pid",
    default=None,
    type=click.IntRange(1),
    help="Watch this process, which runs already, from outside for --seconds, without a SCRIPT.",
)
@click.option(
    "--no-experiments",
    is_flag=True,
    help="Measure nothing that slows the running job: no batches are prefetched, no cores "
    "occupied, and neither the interpreter lock, the loop nor its workers held up.",
)
@click.option(
    "--stop",
    is_flag=True,
    help="End the script after the diagnosis, instead of letting it continue.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Then try numbers of producers of the script's FeedRunner while it runs, and leave the "
    "best.",
)
@click.option(
    "--prove",
    is_flag=True,
    help="Write the changes as patches, run the script with and without them in turn, in copies of "
    "its folder, and report those that gain.",
)
@click.option(
    "--budget",
    default=300.0,
    type=click.FloatRange(30),
    help="Time for the whole of --prove, in seconds.",
)
@click.option(
    "--apply",
    "apply_diff",
    is_flag=True,
    help="Write what --prove has proven to the working tree, if that is a clean git tree.",
)
@click.option(
    "--also-rarer",
    is_flag=True,
    help="Let --prove try evaluations, checkpoints and logs that come less often.",
)
@click.option(
    "--prove-env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Environment variable of each run of --prove; {run} in VALUE is the run's own folder.",
)
@click.argument("script", nargs=-1, type=click.UNPROCESSED)
def diagnose(script: tuple[str, ...], **options: Any) -> None:
    """Explain why a training SCRIPT is slow.

    Run the script with its arguments, unchanged. The report names the causes, and the changes that
    would make it faster.

    Put -- before the script: fastfeed diagnose --seconds 20 -- train.py --epochs 3. As with python,
    -m MODULE runs a module. The script keeps its own output and exit code; the report goes to
    stderr.
    """
    _check_words(script)
    replay, pid = options.pop("replay"), options.pop("pid")
    proving = {name: options.pop(name) for name in PROVING}
    given = sum(map(bool, (script, replay, pid)))
    if given != 1:
        raise OptionError(
            "diagnose needs either a SCRIPT, as in fastfeed diagnose -- train.py, or --pid PID, or "
            f"--replay FILE, got {'more than one of them' if given else 'none of them'}"
        )
    if options["anonymous"] and options["evidence"] is None:
        raise OptionError("--anonymous is about the file of --evidence: give --evidence FILE, too")
    useless = sorted(given_by_user(NOT_PROVING)) if proving["prove"] else []
    if useless:
        name = "--" + useless[0].replace("_", "-")
        raise OptionError(f"{name} is no option of --prove: leave it out, or leave out --prove")
    unused = given_by_user(PROVING) if not (proving["prove"] and script) else ()
    if unused:
        raise OptionError(
            "--prove, and its options --budget, --apply, --also-rarer and --prove-env, need a "
            "SCRIPT to run: fastfeed diagnose --prove -- train.py"
        )
    from fastfeed.core.unix import ON_LINUX

    if not ON_LINUX:
        raise OptionError(
            "fastfeed diagnose requires Linux, whose /proc shows what threads and processes wait "
            "for. Elsewhere fastfeed.watch(loader) measures the steps and their waits"
        )
    from fastfeed.diagnose.run import command

    if replay:
        command.replay(replay, **options)
    elif pid:
        command.attach(pid, **options)
    elif proving.pop("prove"):
        from fastfeed.diagnose.prove import prove_command

        raise Exit(prove_command.run(script, **proving, **options))
    else:
        raise Exit(command.diagnose(script, **options))


@main.command()
@click.argument("pid", required=False, type=click.IntRange(1))
@click.option(
    "--once", is_flag=True, help="Print one frame and exit; the default if output is no terminal."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the figures as one line of JSON and exit."
)
def top(pid: int | None, *, once: bool, as_json: bool) -> None:
    """Show a running job while it runs.

    It is read from the job's black box. Without PID, show the only job of this user on this
    machine; if there are several, list them.
    """
    from fastfeed.jobs.top import view

    view(pid, once=once, as_json=as_json)


@main.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
def postmortem(file: Path | None) -> None:
    """Show the last minute of a job that died.

    It is read from the job's black box; without FILE, from the newest one.
    """
    from fastfeed.jobs.blackbox import read
    from fastfeed.jobs.drawing import Terminal
    from fastfeed.jobs.job_view import render

    Terminal().print(render(read(file), Terminal().width))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(*, as_json: bool) -> None:
    """Show what this machine offers, what is missing, and the command that brings it."""
    from fastfeed.jobs.doctor import examine, json_of, table_of
    from fastfeed.jobs.drawing import Terminal

    found = examine()
    if as_json:
        click.echo(json_of(found))
    else:
        Terminal().print(table_of(found))
