"""The report in words: sections that a terminal and a page show, made of the JSON."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastfeed.diagnose.diagnosis import CODES
from fastfeed.diagnose.report.formats import doing, duration, factor, nbytes, percent, ranged, rate
from fastfeed.diagnose.report.intervention_words import lines_of

MAX_UNSEEN = 0.02  # share of the watched time that may be in no account
VISIBLE = 0.01  # difference between shares that readers see
MIN_PART = 0.0005  # share of a step that a bar shows
# The parts of a step's time in the order of a bar.
PARTS = {
    "step": "step",
    "wait": "waits for input",
    "host": "host: Python of the loop",
    "pause": "pauses",
    "other": "not known",
}
Json = Mapping[str, Any]
Row = tuple[str, ...]


class BarPart(NamedTuple):
    """A part of a step's time: its share (0 to 1) of wall time, and its time in a step."""

    kind: str
    label: str
    share: float
    each: str


class ReportItem(NamedTuple):
    """A text that hangs beside `lead`, such as "71 %".

    `name`: a code, or an option with its value. `before` and `after`: lines of code at `where`.
    """

    lead: str
    text: str
    name: str = ""
    gain: str = ""
    notes: Sequence[str] = ()
    where: str = ""
    before: str = ""
    after: str = ""

    @property
    def diff(self) -> list[tuple[str, str]]:
        """The lines of code before and after, each with "-", "+" or " "."""
        lines = difflib.ndiff(self.before.splitlines(), self.after.splitlines())
        return [(line[0], line[2:]) for line in lines if line[0] != "?"]


class GainBar(NamedTuple):
    """A measured speed-up with its interval, in the width of a bar: shares of its length."""

    label: str
    gain: str
    low: float
    high: float
    one: float  # where nothing changes
    kept: bool


class ReportTable(NamedTuple):
    """A table whose first column names the row."""

    caption: str
    head: Row
    rows: Sequence[Row]


@dataclass(frozen=True)
class ReportSection:
    """A part of the report. `facts`: numbers with their names; `pieces`: texts of several lines;
    `diff`: a text that is shown whole; `timeline`: the timeline of the JSON. `style`: "dead",
    "risky" or "". `page`: only there."""

    title: str
    facts: Sequence[tuple[str, str]] = ()
    bar: Sequence[BarPart] = ()
    texts: Sequence[str] = ()
    pieces: Sequence[str] = ()
    diff: str = ""
    items: Sequence[ReportItem] = ()
    tables: Sequence[ReportTable] = ()
    timeline: Json | None = None
    gains: Sequence[GainBar] = ()
    style: str = ""
    page: bool = False

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to show."""
        shown = (self.bar, self.facts, self.gains, self.texts, self.pieces, self.items, self.tables)
        return not any((*shown, self.diff)) and self.timeline is None


def tone_of(told: Json) -> str:
    """Return how bad it is: "unknown" (no verdict), "good" (the step is the limit), "bad" (input
    is) or "fair" (everything else)."""
    verdict = told["verdict"] or "unknown"
    tones = {"input": "bad", "feed": "bad", "unknown": "unknown"}
    return "good" if verdict == "step.bound" else tones.get(verdict.partition(".")[0], "fair")


def notes_of(told: Json) -> list[str]:
    """Return what belongs to the headline: doubt, and the children that train."""
    doubt, children = told["doubt"], told["children"]
    found = []
    if doubt and doubt["between"]:
        found.append(
            f"The verdict is between {' and '.join(doubt['between'])}: {percent(doubt['sure'])} of "
            "the judgements agree with the first. A longer watch (--seconds) tells more."
        )
    if children:
        speeds = [f"{one['name']} {rate(one['steps_per_second'])}" for one in children[:8]]
        more = [f"{len(children) - 8} more"] if len(children) > 8 else []
        total = rate(sum(one["steps_per_second"] for one in children))
        train = "process trains" if len(children) == 1 else "processes train"
        found.append(
            f"{len(children)} child {train}, {total} steps/s together: "
            f"{', '.join(speeds + more)}. The figures are those of one of them, of median speed."
        )
    return found


def sections_of(told: Json) -> list[ReportSection]:
    """Return the sections that have something to show, in their order."""
    line = told["timeline"] if told["timeline"]["steps"]["steps"] else None
    found = (
        *_proof(told),
        ReportSection("What died or is blocked", pieces=told["died"][:20], style="dead"),
        ReportSection("What the process did", items=_bullets(told["activity"])),
        _time(told),
        _causes(told),
        *_next_steps(told),
        _interventions(told),
        ReportSection("Numbers of producers that were tried", items=_bullets(_tuning(told))),
        ReportSection("Steps and waits over time", timeline=line, page=True),
        *_details(told),
        ReportSection("What was not measured", items=_bullets(told["not_measured"])),
    )
    return [section for section in found if not section.is_empty]


def foot_of(told: Json) -> str:
    """Return what was watched, and what that cost."""
    watched, loop, figures = told["watched"], told["loop"], told["figures"]
    text = f"Watched: {duration(max(0.0, watched['seconds']))}"
    text += f" after {duration(watched['warmup_s'])} of warm-up" if watched["warmup_s"] else ""
    text += f", {figures['steps']:,} steps" if figures and not _hides_waits(told) else ""
    where = f" ({loop['where']})" if loop and loop["where"] else ""
    text += f" of {loop['name']}{where}" if loop else ""
    cpu, cost = duration(watched["overhead_cpu_s"]), told["overhead"]
    most = percent(cost and max(VISIBLE / 10, cost))
    text += f". Watching cost at most {most} of a step ({cpu} of CPU time)"
    took = watched["experiments_s"]
    if not took:
        return f"{text}."
    tried = f"experiments fetched batches ahead or slowed the loop for {duration(took)}"
    return f"{text}; {tried}."


def _bullets(texts: Sequence[str]) -> list[ReportItem]:
    return [ReportItem("•", text) for text in texts]


def _hides_waits(told: Json) -> bool:
    """Return True if the figures, without a verdict, would read as if there were no waits."""
    loop = told["loop"]
    return told["verdict"] is None and loop is not None and loop["waits"] == "hidden"


def _proof(told: Json) -> Iterator[ReportSection]:
    """Yield what was proven, what was tried for it, and what could not be."""
    proof = told["proof"]
    if proof is None:
        return
    took = f"It took {duration(proof['seconds'])}."
    gains = _gains([one for one in proof["tried"] if one["speedup"] is not None])
    texts = [proof["sentence"], took]
    noise = sum(one["share"] or 0.0 for one in told["causes"] if one["code"] == "external.noise")
    ran = [one for one in proof["tried"] if one["interval"] is not None]
    by_cores = any(one["code"] == "input.cpu" for one in told["causes"])
    if not proof["diff"] and noise > VISIBLE:
        texts.append(f"Other programs took {percent(noise)} of the time: a proof needs the cores.")
    elif by_cores and ran and all(one["interval"][1] < 1.0 for one in ran):
        texts.append(
            "Each change that ran is slower, and the input fills the cores that the step needs. "
            "Less work for each batch helps, or results that are kept, or more cores."
        )
    yield ReportSection("Proven", gains=gains, texts=texts, diff=proof["diff"])
    items = []
    for one in proof["tried"]:
        predicted = _gain(one["predicted"], one["predicted_interval"])
        said = f"predicted {predicted}" if predicted else ""
        same = ": ".join(filter(None, (one["batches"], one["differs"])))
        said_once = dict.fromkeys((one["why"], same, one["loss"], said))
        notes = [note for note in said_once if note]
        gain = _gain(one["speedup"], one["interval"])
        items.append(ReportItem("kept" if one["kept"] else "", one["title"], "", gain, notes))
    yield ReportSection("What was tried", items=items, style="tried")
    yield ReportSection("What could not be tried", items=_bullets(proof["untried"]))


def _gain(speedup: float | None, interval: Sequence[float] | None) -> str:
    if speedup is None or interval is None:
        return ""
    return ranged(factor, speedup, ends=interval)


def _gains(tried: Sequence[Json]) -> list[GainBar]:
    """Return the speed-ups as bars of one scale, which no interval of a disturbed run stretches."""
    top = max([1.0, *(min(one["interval"][1], 2 * one["speedup"]) for one in tried)])
    return [
        GainBar(
            one["title"],
            factor(one["speedup"]),
            low=min(1.0, max(0.0, one["interval"][0] / top)),
            high=min(1.0, one["interval"][1] / top),
            one=1 / top,
            kept=one["kept"],
        )
        for one in tried
    ]


def _time(told: Json) -> ReportSection:
    title, figures = "Where a step's time goes", told["figures"]
    if figures is None or _hides_waits(told):
        return ReportSection(title)
    speeds, free = figures["steps_per_second_range"], told["speedup_if_input_free"]
    facts = [
        ("steps a second", ranged(rate, told["steps_per_second"], ends=speeds)),
        ("starvation", ranged(percent, told["starvation"], ends=figures["starvation_range"])),
        ("lost to input", percent(told["lost_to_input"] if free is not None else None)),
        ("if input cost nothing", ranged(factor, free, ends=told["speedup_range"])),
        ("wait p50", duration(figures["wait_p50_s"])),
        ("wait p99", duration(figures["wait_p99_s"])),
        ("accelerator use (AU)", percent(figures["utilisation"])),
    ]
    return ReportSection(title, facts, _bar(figures), list(_remarks(told)))


def _bar(figures: Json) -> list[BarPart]:
    """Return where a step's time goes; the shares add up to 1."""
    shares = {kind: figures["shares"].get(kind) or 0.0 for kind in PARTS}
    total = sum(shares.values())
    if not total:
        return []
    shares["other"] += 1 - total if total < 0.995 else 0.0
    a_step_s = figures["seconds"] / max(1, figures["steps"])
    parts = [(kind, one / max(total, 1.0)) for kind, one in shares.items() if one > MIN_PART]
    return [BarPart(k, PARTS[k], share, duration(share * a_step_s)) for k, share in parts]


def _remarks(told: Json) -> Iterator[str]:
    """Yield how the figures belong together, and how rough they are."""
    lost, waits, ceiling = told["lost_to_input"], told["starvation"], told["ceiling"]
    known = told["speedup_if_input_free"] is not None and waits is not None
    if known and lost > waits + VISIBLE:
        yield (
            f"Lost to input, {percent(lost)}: waits take {percent(waits)} of the time, and what "
            f"slows the steps while input is made takes {percent(lost - waits)}."
        )
    elif known and lost < waits - VISIBLE:
        yield f"Steps wait for {percent(waits)} of the time; free input saves {percent(lost)}."
    if (feed := told["feed"]) and feed["waits"]:
        yield f"Waits for input: {percent(waits)}, of which {doing(feed['waits'])}."
    if ceiling and ceiling["step_s"] is not None:
        step = ranged(duration, ceiling["step_s"], ends=(ceiling["low_s"], ceiling["high_s"]))
        yield f"A step whose input is at hand takes {step}: {ceiling['how']}."
    unseen = sum(one["share"] for one in told["accounts"] if one["name"] == "unseen")
    if unseen > MAX_UNSEEN:
        yield (
            f"{percent(unseen)} of the watched time lies before, after or beside the steps that "
            "count."
        )
    if gap := told["device_gap"]:
        yield (
            f"A fetch left the device without work for {duration(gap['median_s'])} (p99 "
            f"{duration(gap['p99_s'])}), {percent(gap['share'])} of the time, by its own clock. "
            "The host's clock also counts waits in which the device still computes."
        )
    if told["loop"] and told["loop"]["note"]:
        yield f"Note: {told['loop']['note']}"


def _causes(told: Json) -> ReportSection:
    causes = told["causes"] if told["verdict"] is not None else []
    items = [
        ReportItem(
            percent(one["share"]),
            CODES.get(one["code"], ""),
            one["code"],
            notes=[*one["evidence"], f"More: {one['docs']}"],
        )
        for one in causes
    ]
    inputs = [one["share"] or 0.0 for one in causes if one["code"].startswith("input.")]
    lost = told["lost_to_input"]
    texts = []
    if len(inputs) > 1 and sum(inputs) > lost + VISIBLE:
        texts.append(
            f"The shares overlap: all causes of the input together take {percent(lost)}, not "
            f"{percent(sum(inputs))}."
        )
    elif sum(one["share"] or 0.0 for one in causes) > 1 + VISIBLE:
        texts.append("The shares overlap: each is what the loop loses to that cause alone.")
    return ReportSection("Causes, by their share of the time", items=items, texts=texts)


def _next_steps(told: Json) -> Iterator[ReportSection]:
    why = f"{told['no_change']}." if told["verdict"] and told["no_change"] else ""
    proof = told["proof"] or {"tried": ()}
    tried = {(one["knob"], one["predicted"]) for one in proof["tried"] if one["runs"]}
    # what runs have shown of the others stands above
    advice = told["recommendations"]
    left = [one for one in advice if (one["knob"], one["predicted_speedup"]) not in tried]
    title = "Next steps, with the predicted speed-up of the whole loop"
    if proof.get("diff"):
        title = "Not tried: what was advised for the script as it was"
    yield ReportSection(
        title,
        texts=[why] if why and not proof.get("diff") else [],
        items=[
            _change(
                number, one, gain=ranged(factor, one["predicted_speedup"], ends=one["interval"])
            )
            for number, one in enumerate(left, 1)
        ],
    )
    yield ReportSection(
        "Risky: these may make the loop slower",
        items=[
            _change(number, one, gain="between {} and {}".format(*map(factor, one["interval"])))
            for number, one in enumerate(told["may_cost"], 1)
        ],
        style="risky",
    )


def _interventions(told: Json) -> ReportSection:
    cost = duration(sum(one["cost_s"] for one in told["interventions"]))
    title = f"What was tried in the running job, for {cost} in all"
    return ReportSection(title, items=_bullets(lines_of(told["interventions"])))


def _tuning(told: Json) -> list[str]:
    return [one["text"] for one in told["feed"]["tuning"]] if told["feed"] else []


def _change(number: int, one: Json, *, gain: str) -> ReportItem:
    name = f"{one['knob']}={one['value']}" if one["knob"] else ""
    code = {key: one[key] for key in ("where", "before", "after")} if one["after"] else {}
    untested = f"untested: {one['untested']}" if one["untested"] else ""
    notes = [note for note in (one["why"], untested) if note]
    return ReportItem(f"{number}.", one["change"], name, gain, notes, **code)


def _details(told: Json) -> Iterator[ReportSection]:
    """Yield what else is known; without a verdict the most of it belongs on the terminal, too."""
    page, machine, loop = told["verdict"] is not None, told["machine"], told["loop"]
    lines = ReportTable(
        "Shares of the time of the trainer's thread, and of all producers",
        ("line", "of", "share", "what its thread does"),
        [(h["place"], h["role"], percent(h["share"]), doing(h["busy"])) for h in told["hottest"]],
    )
    stages = ReportTable(
        "Threads of the trainer, and child processes",
        ("stage", "number", "cores", "what one of them does"),
        [(s["role"], str(s["tasks"]), rate(s["cores"]), doing(s["busy"])) for s in told["stages"]],
    )
    producers = told["feed"]["producers"] if told["feed"] else []
    made = ReportTable(
        "Producers of the FeedRunner",
        ("producer", "batches", "what it does"),
        [(str(n), f"{one['batches']:,}", doing(one["busy"])) for n, one in enumerate(producers)],
    )
    others = ReportTable(
        "Other processes",
        ("process", "cores"),
        [(n["process"], rate(n["cores"])) for n in machine["noisy"]],
    )
    devices = ReportTable(
        "Accelerators",
        ("name", "busy", "memory"),
        [
            (
                g["name"] + " (not used by the job)" * (g["own"] is False),
                percent(g["busy"]),
                percent(g["memory"]),
            )
            for g in machine["gpus"]
        ],
    )
    yield ReportSection("Hottest lines", tables=_filled(lines), page=page)
    yield ReportSection("Who does what", tables=_filled(stages, made), page=page)
    facts = _facts(machine | told["watched"] | told["watched"]["pools"])
    yield ReportSection("Machine", facts, tables=_filled(others, devices), page=page)
    if loop is not None:
        leaves = [
            (f["path"], f["dtype"], " × ".join(map(str, f["shape"])) or "a number", f["kind"])
            for f in loop["batch"]
        ]
        batch = ReportTable("A batch", ("leaf", "dtype", "shape", "type"), leaves)
        yield ReportSection("The loop", _facts(loop), tables=_filled(batch), page=True)


def _filled(*tables: ReportTable) -> list[ReportTable]:
    return [table for table in tables if table.rows]


def _facts(found: Json) -> list[tuple[str, str]]:
    """Return the numbers and texts of a part of the JSON, whose keys end with their units."""
    plain = {key: one for key, one in found.items() if not isinstance(one, list | dict)}
    return [_fact(key, one) for key, one in plain.items() if one != ""]


def _fact(key: str, one: Any) -> tuple[str, str]:
    for unit, form in (("_nbytes_s", nbytes), ("_nbytes", nbytes), ("_s", duration)):
        if key.endswith(unit):
            a_second = "/s" if unit == "_nbytes_s" else ""
            return key.removesuffix(unit).replace("_", " "), form(one) + a_second
    number = one is None or isinstance(one, float)
    return key.replace("_", " "), rate(one) if number else str(one)
