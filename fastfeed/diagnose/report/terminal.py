"""A diagnosis on the terminal: the headline, and the sections of the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fastfeed.diagnose.diagnosis import Diagnosis
from fastfeed.diagnose.report import sections
from fastfeed.diagnose.report.formats import percent
from fastfeed.errors import clean, clean_lines

TONE_STYLES = {"unknown": "bold", "good": "bold green", "fair": "bold yellow", "bad": "bold red"}
TITLE_STYLES = {"dead": "bold red", "risky": "bold yellow"}
CODE_STYLES = {"-": "red", "+": "green", " ": ""}
PART_STYLES = {
    "step": "blue",
    "wait": "red",
    "host": "magenta",
    "pause": "yellow",
    "other": "bright_black",
}
ASCII = str.maketrans({"█": "#", "–": "-", "µ": "u", "•": "*", "×": "x"})
BAR_CELLS = 40  # of a whole step
GAIN_CELLS = 9  # before the bar of a gain
WIDEST = 100  # columns; longer lines are hard to read
LAST_LINES = 14  # of a traceback
MAX_SHOWN_TEXTS = 4


def render(diagnosis: Diagnosis) -> RenderableType:
    """Return the whole report, for a console of any width, with or without colours."""
    # It imports numpy, which must not happen before the script that is diagnosed.
    from fastfeed.diagnose.report.json import json_of

    told = json_of(diagnosis)
    blocks: list[RenderableType] = [
        Text(clean(told["headline"]), style=TONE_STYLES[sections.tone_of(told)]),
        *(Text(clean(note), style="yellow") for note in sections.notes_of(told)),
    ]
    for section in sections.sections_of(told):
        if not section.page:
            blocks += [Text(), *_section(section)]
    return _Fitted(Group(*blocks, Text(), Text(clean(sections.foot_of(told)), overflow="fold")))


class _Fitted:
    """A renderable of at most WIDEST columns, but for its diff, in ASCII if the console cannot show
    more."""

    def __init__(self, content: RenderableType) -> None:
        self._content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fitted = options.update(width=min(options.max_width, WIDEST))
        for line in Segment.split_lines(console.render(self._content, fitted)):
            while line and not line[-1].text.rstrip(" "):
                line.pop()  # blanks that fill the line, which a file would keep
            if line:
                line[-1] = Segment(line[-1].text.rstrip(" "), line[-1].style)
            for piece in line:
                if options.ascii_only:
                    text = piece.text.translate(ASCII).encode("ascii", "replace").decode()
                    piece = Segment(text, piece.style, piece.control)
                yield piece
            yield Segment.line()


def _section(section: sections.ReportSection) -> Iterator[RenderableType]:
    yield Text(section.title, style=TITLE_STYLES.get(section.style, "bold"))
    if section.bar:
        yield _bar(section.bar)
    if section.facts:
        yield Columns([Text(clean(" ".join(fact)), "dim") for fact in section.facts], (0, 3))
    yield from (Text(clean(text), overflow="fold") for text in section.texts)
    if section.diff:
        # its lines are not folded; print it with `crop=False`
        yield Text(f"\n{clean_lines(section.diff).rstrip()}\n", no_wrap=True, overflow="ignore")
    if section.gains:
        yield from _gains(section.gains)
    yield from map(_last_lines, section.pieces[:MAX_SHOWN_TEXTS])
    yield from map(_item, section.items)
    yield from map(_table, section.tables)


def _bar(parts: Sequence[sections.BarPart]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    for part in parts:
        cells = (Text(cell, justify="right") for cell in (part.each, percent(part.share)))
        fill = "█" * max(1, round(BAR_CELLS * part.share))
        table.add_row(part.label, *cells, Text(fill, PART_STYLES[part.kind]))
    return table


def _gains(gains: Sequence[sections.GainBar]) -> Iterator[Text]:
    """Yield each change, and below it the interval of its speed-up: all on one scale, on which "|"
    is no change."""
    same = " " * round(BAR_CELLS * gains[0].one)
    yield Text(f"{'':{GAIN_CELLS}}{same}| as it is", "dim")
    for one in gains:
        low, high = (round(BAR_CELLS * share) for share in (one.low, one.high))
        cells = [" "] * max(1, low) + ["█"] * max(1, high - low)
        cells += [" "] * max(0, len(same) + 1 - len(cells))
        cells[len(same)] = "|"
        yield Text(clean(one.label), overflow="fold")
        style = "green" if one.kept else "dim"
        yield Text.assemble(f"{one.gain:>{GAIN_CELLS - 2}}  ", ("".join(cells), style))


def _last_lines(text: str) -> RenderableType:
    lines = clean_lines(text).splitlines()
    left = [f"... {len(lines) - LAST_LINES} lines before"] if len(lines) > LAST_LINES else []
    return Padding(Text("\n".join(left + lines[-LAST_LINES:])), (0, 0, 0, 2))


def _item(item: sections.ReportItem) -> RenderableType:
    """Return a text that hangs beside its bullet, with its notes and its code."""
    first = Text.assemble((clean(item.name), "bold cyan"), "  " if item.name else "")
    first.append(clean(item.text))
    first.append(f"  {item.gain}".replace(" ", "\u00a0") if item.gain else "", style="bold")
    lines = [first, *(Text(clean(f"• {note}")) for note in item.notes)]
    lines += [Text(clean(item.where), style="dim")] if item.where else []
    lines += [Text(clean(f"{sign} {line}"), CODE_STYLES[sign]) for sign, line in item.diff]
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(f"{item.lead:>5}"), Group(*lines))
    return table


def _table(table: sections.ReportTable) -> RenderableType:
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for name in table.head:
        shown.add_column(name, overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(clean(cell)) for cell in row))
    return shown
