"""A diagnosis on the terminal: one headline, where a step's time goes, the causes, what to do
next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment as Piece
from rich.style import Style
from rich.table import Table
from rich.text import Text

from fastfeed.diagnose.diagnosis import CODES, Diagnosis, Figures, Recommendation
from fastfeed.diagnose.report import words
from fastfeed.diagnose.report.headline import headline_of
from fastfeed.diagnose.report.process_activity import activity, training_children
from fastfeed.diagnose.report.words import (
    duration,
    factor,
    factors,
    percent,
    percents,
    rate,
)
from fastfeed.errors import clean, clean_lines

TONE_STYLES = {"unknown": "bold", "good": "bold green", "fair": "bold yellow", "bad": "bold red"}
PART_COLOURS = {
    "step": "blue",
    "wait": "red",
    "host": "magenta",
    "pause": "yellow",
    "other": "bright_black",
}
ASCII = str.maketrans(
    {"█": "#", "▓": "=", "▒": "-", "░": ".", "·": ",", "–": "-", "µ": "u", "•": "*"}
)
WIDEST = 100  # columns; longer lines are hard to read
LAST_LINES = 14  # of a traceback


def render(diagnosis: Diagnosis) -> RenderableType:
    """Return the whole report, for a console of any width, with or without colours."""
    blocks = [
        _head(diagnosis),
        _died(diagnosis.died),
        _activity(diagnosis),
        _time(diagnosis),
        _causes(diagnosis),
        _advice(diagnosis),
        _foot(diagnosis),
    ]
    spaced = [piece for block in blocks if block is not None for piece in (Text(), block)]
    return _Fitted(Group(*spaced[1:]))


class _Fitted:
    """A renderable of at most WIDEST columns, in ASCII if the console cannot show more."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fitted = options.update(width=min(options.max_width, WIDEST))
        for piece in console.render(self._content, fitted):
            if options.ascii_only:
                text = piece.text.translate(ASCII).encode("ascii", "replace").decode()
                piece = Piece(text, piece.style, piece.control)
            yield piece


class _Bar:
    """A bar as wide as the console; every part of any length has at least one cell, as far as there
    are cells."""

    def __init__(self, parts: Sequence[words.StepSegment]) -> None:
        self._parts = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for part, cells in zip(
            self._parts,
            cells_of([part.share for part in self._parts], options.max_width),
            strict=True,
        ):
            yield Piece(words.PARTS[part.kind][1] * cells, Style(color=PART_COLOURS[part.kind]))
        yield Piece.line()


def cells_of(shares: Sequence[float], width: int) -> list[int]:
    """Return how many of `width` cells each share gets: together all of them, the smallest at least
    one if there is room."""
    cells = [max(1, round(share * width)) for share in shares]
    while sum(cells) != width and max(cells) > 0:
        cells[cells.index(max(cells))] += 1 if sum(cells) < width else -1
    return cells


def _head(diagnosis: Diagnosis) -> RenderableType:
    style = TONE_STYLES[words.tone(diagnosis)]
    lines = [Text(clean(headline_of(diagnosis)), style=style)]
    if diagnosis.verdict is not None:
        meaning = CODES.get(diagnosis.verdict, "")
        lines.append(Text.assemble((diagnosis.verdict, "bold"), f": {meaning}"))
    if doubt := words.doubtful(diagnosis.doubt):
        lines.append(Text(doubt, style="yellow"))
    if diagnosis.abstained and diagnosis.abstained not in headline_of(diagnosis):
        lines.append(Text.assemble(("no verdict", "bold"), f": {clean(diagnosis.abstained)}"))
    if children := training_children(diagnosis.evidence):
        lines.append(Text(clean(children)))
    return Group(*lines)


def _activity(diagnosis: Diagnosis) -> RenderableType | None:
    lines = activity(diagnosis)
    if not lines:
        return None
    title = Text("What the process did", style="bold")
    return Group(title, *(_item("    •", Text(clean(line))) for line in lines))


def _died(died: Sequence[str]) -> RenderableType | None:
    if not died:
        return None
    return Group(
        Text("What died or is blocked", style="bold"), *(_last_lines(text) for text in died[:4])
    )


def _last_lines(text: str) -> RenderableType:
    lines = clean_lines(text).splitlines()
    left = [f"... {len(lines) - LAST_LINES} lines before"] if len(lines) > LAST_LINES else []
    return Padding(Text("\n".join(left + lines[-LAST_LINES:])), (0, 0, 0, 2))


def _time(diagnosis: Diagnosis) -> RenderableType | None:
    figures = words.told_figures(diagnosis)
    if figures is None:
        return None
    parts = words.split(figures)
    title = Text("Where a step's time goes", style="bold")
    a_step_s = figures.seconds / figures.steps if figures.steps else None
    if words.known(a_step_s):
        title.append(
            f"  {duration(a_step_s)} a step, {rate(figures.steps_per_second)} steps/s",
            style="not bold",
        )
    lines: list[RenderableType] = [title]
    if parts:
        lines += [_Bar(parts), _legend(parts)]
    return Group(*lines, _numbers(diagnosis, figures))


def _legend(parts: Iterable[words.StepSegment]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for part in parts:
        fill = Text(words.PARTS[part.kind][1], style=PART_COLOURS[part.kind])
        cells = [
            Text(duration(part.seconds), justify="right"),
            Text(percent(part.share), justify="right"),
        ]
        table.add_row(Text.assemble(fill, " ", part.label), *cells)
    return table


def _numbers(diagnosis: Diagnosis, figures: Figures) -> Text:
    """Return the figures, each on one line: without room, the next one goes below."""
    starved = percents(figures.starvation_range)
    shown = [
        f"starvation {percent(figures.starvation)}" + (f" ({starved})" if starved else ""),
        f"lost to input {percent(diagnosis.lost_to_input)}",
        f"AU {percent(figures.utilisation)}",
        f"wait p50 {duration(figures.wait_p50_s)}, p99 {duration(figures.wait_p99_s)}",
    ]
    return Text("   ".join(one.replace(" ", "\u00a0") for one in shown), style="dim")


def _causes(diagnosis: Diagnosis) -> RenderableType | None:
    if diagnosis.verdict is None or not diagnosis.causes:
        return None
    lines: list[RenderableType] = [Text("Causes, by their share of the time", style="bold")]
    for cause in diagnosis.causes:
        meaning = "" if cause.code == diagnosis.verdict else f"  {CODES.get(cause.code, '')}"
        lines.append(
            _item(f"{percent(cause.share):>5}", Text.assemble((clean(cause.code), "bold"), meaning))
        )
        lines += [_item("    •", Text(clean(sentence)), indent=2) for sentence in cause.evidence]
    return Group(*lines)


def _item(bullet: str, text: Text, *, indent: int = 0) -> Table:
    """Return a text that hangs beside its bullet."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(" " * indent + bullet), text)
    return table


def _advice(diagnosis: Diagnosis) -> RenderableType | None:
    titles = {
        "Next steps, with the speed-up of the whole loop that is predicted": (
            diagnosis.recommendations
        ),
        "May cost: changes that may as well make the loop slower": diagnosis.may_cost,
    }
    lines: list[RenderableType] = []
    if diagnosis.verdict is not None and diagnosis.no_change:
        lines.append(Text(clean(f"{diagnosis.no_change}.")))
    for title, changes in titles.items():
        lines += [Text(title, style="bold")] * bool(changes)
        for number, one in enumerate(changes, 1):
            lines.append(_item(f"{number:>4}.", Text("\n").join(_recommendation(one))))
    return Group(*lines) if lines else None


def _recommendation(one: Recommendation) -> Iterator[Text]:
    gain = factors(one.interval)
    first = Text(clean(one.change))
    if one.knob:
        first.append("  ").append(f"{clean(one.knob)}={clean(one.value)}", style="bold cyan")
    first.append("  ").append(f"{factor(one.predicted_speedup)}", style="bold green")
    yield first.append(f"\u00a0({gain.replace(' ', chr(160))})" if gain else "")
    if one.why:
        yield Text(clean(one.why), style="dim")
    if one.code:
        yield Text(clean(f"{one.where}  {one.code}" if one.where else one.code), style="cyan")


def _foot(diagnosis: Diagnosis) -> RenderableType:
    seen, ceiling, figures = diagnosis.evidence, diagnosis.ceiling, words.told_figures(diagnosis)
    lines = []
    if figures is not None and words.known(diagnosis.speedup_if_input_free):
        span = factors(diagnosis.speedup_range)
        free = f"If input cost nothing: {factor(diagnosis.speedup_if_input_free)}" + (
            f" ({span})" if span else ""
        )
        if ceiling is not None:
            free += f", a step of {duration(ceiling.step_s)}, {clean(ceiling.how)}"
        lines.append(free)
    if part := words.unseen(diagnosis.accounts):
        lines.append(part)
    if rough := words.roughness(diagnosis.reproduction):
        lines.append(rough)
    if seen.loop is not None and seen.loop.note:
        lines.append(f"Note: {clean(seen.loop.note)}")
    if seen.missing:
        lines.append("Not measured: " + "; ".join(map(clean, seen.missing)))
    watched = f"Watched: {duration(max(0.0, seen.end_s - seen.start_s))}"
    watched += f" after {duration(seen.warmup_s)} of warm-up" if seen.warmup_s > 0 else ""
    watched += f", {figures.steps:,} steps" if figures is not None else ""
    where = f" ({clean(seen.loop.where)})" if seen.loop is not None and seen.loop.where else ""
    watched += f" of {clean(seen.loop.name)}{where}" if seen.loop is not None else ""
    lines.append(f"{watched}; watching cost {percent(diagnosis.overhead)} of a step")
    return Group(*(Text(line, overflow="fold") for line in lines))
