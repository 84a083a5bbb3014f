"""The figures of a plan: how they are written, where each is from (hardware.toml has those of
accelerators), and what must hold between them."""

from __future__ import annotations

import difflib
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from fastfeed.benchmark.workloads import seconds_from
from fastfeed.core.machine import cores
from fastfeed.errors import OptionError
from fastfeed.options.option_values import parse_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROFILED = "measured"
TOLERANCE = 0.05  # of figures that people round
MAX_DATASET_NBYTES = 1e15  # more than that is a slip unless the data set's size is given, too
WIDTHS = (1, 2, 4, 8)  # bytes of a number
SHARES = ("lock", "native", "wait")
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}

# By name: the unit of a figure, and its meaning. Words are separated by |.
KNOWN = {
    "samples": ("n", "samples of the data set, such as 1.28M"),
    "sample": ("B", "bytes of a sample as the step receives it, such as 150KB"),
    "stored": ("B", "bytes of one sample in storage, such as 21KB"),
    "dataset": ("B", "bytes of the data set in storage, such as 300GB"),
    "source": ("s", "time of one producer for a sample, such as 5ms"),
    "lock": ("%", "its share with the interpreter lock (Python bytecode), such as 20%"),
    "native": ("%", "its share in native code (OpenCV, numpy)"),
    "wait": ("%", "its share of waiting (network, disk)"),
    "threads": ("n", "producers that a trainer has, to see what they cost"),
    "processes": ("n", "its worker processes, each with `threads`"),
    "batch": ("n", "samples of a step on one accelerator"),
    "minibatch": ("n", "samples of a step on all accelerators"),
    "step": ("steps", "time of a step: 8ms, or at several batches 32:164ms,64:292ms"),
    "flops": ("", "floating point operations of a training step for a sample: 22.8G"),
    "parameters": ("n", "parameters of the model, such as 25.6M"),
    "parameter_bytes": ("n", "bytes of a parameter: 4 for float32, 2 for bfloat16"),
    "weights": ("B", "bytes of all parameters, such as 102MB"),
    "optimizer": ("sgd|momentum|adam", "sgd, momentum or adam"),
    "activations": ("B", "bytes that the step keeps of a sample until it goes back"),
    "epochs": ("", "passes over the data set"),
    "steps": ("n", "steps of the run"),
    "took": ("s", "measured time of a run, to see what it implies"),
    "accelerator": ("kind", "its kind, such as H100, A100 or TPUv5e"),
    "accelerators": ("n", "their number"),
    "accelerator_memory": ("B", "memory of one, such as 16GB"),
    "peak": ("", "floating point operations a second of one, such as 10.6T"),
    "efficiency": ("%", "share of the peak that the step reaches"),
    "price": ("$", "dollars an hour for one accelerator and its share of the machine"),
    "per_machine": ("n", "accelerators in a machine"),
    "cores": ("n", "cores of a machine"),
    "ram": ("B", "memory of a machine, such as 64GB"),
    "disk": ("B", "free disk of a machine, such as 1TB"),
    "trainer": ("B", "memory of a trainer without its feed"),
    "pool": ("n", "records of the shuffle pool"),
    "cache": ("no|ram|disk", "where cache= keeps samples: no, ram or disk"),
    "captured": ("B", "arrays that the source holds, such as 47MB"),
    "network": ("B/s", "a machine's connection to the storage, such as 10Gbit/s"),
    "storage": ("B/s", "reading speed of the storage for one machine, such as 500MB/s"),
    "interconnect": ("B/s", "a worker's connection to the others, such as 10Gbit/s"),
    "checkpoint_every": ("n", "steps between checkpoints"),
    "checkpoints": ("n", "checkpoints that are kept"),
}
_COUNT = "a number > 0, such as 1024, 25.6M or 14 million"
SUCH_AS = {
    "": _COUNT,
    "n": f"{_COUNT}, without a fraction",
    "B": "bytes, such as 512MB or 300GB",
    "s": "a time, such as 300us, 8ms, 0.3s, 54min or 2h",
    "$": "dollars, such as 1.46",
    "%": "a share of 0 to 100%, such as 30% or 0.3",
    "B/s": "a rate, such as 10Gbit/s or 500MB/s",
    "steps": "a time such as 8ms, or one for each of several batches: 32:164ms,64:292ms",
}
IN_MACHINE = 8  # accelerators of a machine, as clouds rent them
OPTIMIZER_SLOTS = {"sgd": 0, "momentum": 1, "adam": 2}  # Kingma and Ba 2014: two moments
# Convolution outputs by multiply-adds of ResNet-50: 11.1 M by 4.1 G (Radosavovic et al. 2020); each
# is kept before and after its normalization, as float32. A training step has 6 FLOPs for each.
ACTIVATION_NBYTES = 11.1e6 / 4.1e9 / 6 * 2 * 4
# By name: a value, its source, and the figures of which one makes it matter (none: always).
DEFAULTS: dict[str, tuple[object, str, tuple[str, ...]]] = {
    "parameter_bytes": (4, "assumed: float32", ("parameters",)),
    "optimizer": ("momentum", "assumed: one slot for each parameter", ("parameters", "weights")),
    "efficiency": (0.4, "assumed: as the H100; accelerator= knows others", ("flops",)),
    "checkpoint_every": (1000, "assumed", ("parameters", "weights")),
    "cache": ("no", "the default of FeedRunner", ()),
    "trainer": (500e6, "TensorFlow 2.21 on a CPU after the first steps", ("source",)),
}
# Products that are 1, by the exponent of each factor.
PRODUCTS: tuple[Mapping[str, int], ...] = (
    {"minibatch": 1, "batch": -1, "accelerators": -1},
    {"dataset": 1, "samples": -1, "stored": -1},
    {"weights": 1, "parameters": -1, "parameter_bytes": -1},
    {"steps": 1, "minibatch": 1, "epochs": -1, "samples": -1},
)


@dataclass(frozen=True)
class Figure:
    """A value and its source; `given`: what the user wrote that it is or follows from."""

    value: Any
    source: str
    given: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanFigures:
    """The known figures of a plan, by the names of KNOWN."""

    known: Mapping[str, Figure]

    def __contains__(self, name: str) -> bool:
        return name in self.known

    def __getitem__(self, name: str) -> Any:
        return self.known[name].value

    def get(self, name: str) -> Any:
        """Return the value of a figure, or None."""
        return self.known[name].value if name in self.known else None

    def get_or(self, name: str, default: float) -> float:
        """Return a number, or the default."""
        return float(self.known[name].value) if name in self.known else default

    def have(self, *names: str) -> bool:
        """Return True if all of these are known."""
        return all(name in self.known for name in names)

    def said(self, *names: str) -> str:
        """Return what the user wrote of these figures, or of those that they follow from."""
        found = [text for name in names for text in self.known[name].given]
        return ", ".join(dict.fromkeys(found)) or ", ".join(
            f"{name}={self[name]} ({self.known[name].source})" for name in names
        )

    def filled(self, others: Mapping[str, Figure]) -> PlanFigures:
        """Return these figures, with others where they have none, and with what follows.

        Raise OptionError for figures that contradict each other, with what the user wrote of them.
        """
        known = {**others, **self.known}
        while _derive(known):
            pass
        found = PlanFigures(known)
        _check_products(found)
        _check_sizes(found)
        return found


def figures_from(words: Iterable[str]) -> PlanFigures:
    """Return the figures in words such as "samples=1.28M".

    Raise OptionError for unknown names, for values without sense, and for figures that contradict
    each other.
    """
    found: dict[str, Figure] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.strip().lstrip("-").replace("-", "_").lower()
        if not equals or name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, 1, 0.6)
            hint = f"did you mean {near[0]}=?" if near else f"the figures are {', '.join(KNOWN)}"
            raise OptionError(f"{word!r} is no figure such as samples=1.28M: {hint}")
        if name in found:
            raise OptionError(f"{name} is given twice: leave one out")
        text = text.strip()
        found[name] = Figure(parsed(text, KNOWN[name][0], name=name), "given", (f"{name}={text}",))
    return PlanFigures(found).filled({})


def parsed(text: str, unit: str, *, name: str) -> Any:
    """Return the value in a text such as 25.6M, 300GB, 8ms, 30% or 10Gbit/s.

    Raise OptionError, with the name, for anything else.
    """
    if "|" in unit:
        if text.lower() not in unit.split("|"):
            raise OptionError(f"{name}={text}: must be one of {unit.replace('|', ', ')}")
        return text.lower()
    try:
        value = PARSERS[unit](text)
        least = value if isinstance(value, int | float) and unit != "%" else 1.0
        if not 0 < least < math.inf or (unit == "n" and value % 1):
            raise ValueError(text)
    except ValueError as error:
        raise OptionError(f"{name}={text}: must be {SUCH_AS[unit]}") from error
    return round(value) if unit == "n" else value


def _number(text: str) -> float:
    words = text.lower().replace("million", "m").replace("billion", "g").replace("_", "")
    words = re.sub(r"\s*flops?(/s)?$", "", words)
    try:
        return float(words)
    except ValueError:
        return float(parse_bytes(re.sub("b$", "g", words) + "B"))


def _rate(text: str) -> float:
    match = re.fullmatch(r"(.*?)(bit/s|bps|B/s)", text)
    if match is None:
        raise ValueError(text)
    return parse_bytes(f"{match[1]}B") / (1 if match[2] == "B/s" else 8)


def _share(text: str) -> float:
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


def _steps(text: str) -> tuple[tuple[float, float], ...]:
    """Return batches and seconds, sorted; batch 0 in 8ms: that of the plan."""
    parts = [part.rpartition(":") for part in text.split(",")]
    found = sorted(
        (
            float(parsed(size, "n", name="step")) if size else 0.0,
            float(parsed(time.strip(), "s", name="step")),
        )
        for size, _, time in parts
    )
    if len({size for size, _ in found}) < len(found) or (len(found) > 1 and not found[0][0]):
        raise ValueError(text)
    return tuple(found)


PARSERS: dict[str, Callable[[str], Any]] = {
    "": _number,
    "n": _number,
    "B": lambda text: float(parse_bytes(text)),
    "s": lambda text: seconds_from(text, "s"),
    "$": lambda text: float(text.removeprefix("$")),
    "%": _share,
    "B/s": _rate,
    "steps": _steps,
    "kind": str,
}


def said(value: Any, unit: str) -> str:
    """Return a value with its unit, in three digits."""
    if unit == "steps":
        return ", ".join(f"{size:g}: {said(s, 's')}" if size else said(s, "s") for size, s in value)
    if not isinstance(value, int | float):
        return str(value)
    if unit == "s":
        for size, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
            if value >= size * (2 if size > 1 else 1):
                return f"{value / size:.3g} {name}"
        return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} us"
    if unit in ("$", "%"):
        return f"${value:,.2f}" if unit == "$" else f"{value:.1%}"
    unit = "" if unit == "n" else unit
    if unit in ("B", "B/s", "FLOP/s") or value >= 1e6:
        prefix, size = next(
            ((p, s) for p, s in PREFIXES.items() if abs(value) < 999.5 * s), ("E", PREFIXES["E"])
        )
        return f"{value / size:.3g} {prefix}{unit}".strip()
    number = f"{value:.3g}" if 0 < value < 1000 else f"{value:,.0f}"
    return f"{number} {unit}".strip()


def _derive(known: dict[str, Figure]) -> bool:
    """Add a figure that follows from others; return False if there is none."""
    for product in PRODUCTS:
        missing = [name for name in product if name not in known]
        if len(missing) != 1:
            continue
        (name,) = missing
        others = {one: power for one, power in product.items() if one != name}
        value: float = _product(PlanFigures(known), others) ** -product[name]
        if name == "batch":
            value = max(1, round(value))
        given = dict.fromkeys(text for one in others for text in known[one].given)
        known[name] = Figure(value, "from " + " and ".join(others), tuple(given))
        return True
    return False


def _product(figures: PlanFigures, powers: Mapping[str, int]) -> float:
    return math.prod(float(figures[name]) ** power for name, power in powers.items())


def _check_products(figures: PlanFigures) -> None:
    for product in PRODUCTS:
        off = _product(figures, product) if figures.have(*product) else 1.0
        if abs(off - 1) > TOLERANCE:
            left = [name for name, power in product.items() if power > 0]
            right = [name for name, power in product.items() if power < 0]
            raise OptionError(
                f"{figures.said(*product)} contradict each other: {' x '.join(left)} must be "
                f"{' x '.join(right)}, and is {off:.3g} times that; leave one of them out"
            )


def _check_sizes(figures: PlanFigures) -> None:
    width = figures.get_or("parameter_bytes", WIDTHS[0])
    if not any(abs(width / known - 1) <= TOLERANCE for known in WIDTHS):
        raise OptionError(
            f"{figures.said('parameter_bytes')} contradict each other: a parameter would have "
            f"{width:.3g} bytes, must be 1, 2, 4 or 8; leave one of them out"
        )
    shares = [name for name in SHARES if name in figures]
    total = sum(figures[name] for name in shares)
    if total > 1 + TOLERANCE or (len(shares) == len(SHARES) and total < 1 - TOLERANCE):
        raise OptionError(
            f"{figures.said(*shares)} contradict each other: these shares of one time add up to "
            f"{total:.0%}, must be 100%"
        )
    if figures.have("minibatch", "samples") and figures["minibatch"] > figures["samples"]:
        raise OptionError(
            f"{figures.said('minibatch', 'samples')} contradict each other: a step takes "
            f"{said(figures['minibatch'], '')} samples, more than there are"
        )
    given = "step" in figures and figures.known["step"].source == "given"
    if given and any(b[1] < a[1] for a, b in itertools.pairwise(figures["step"])):
        raise OptionError(
            f"{figures.said('step')}: a larger batch cannot take less time than a smaller one; are "
            "the times of two batches swapped?"
        )
    derived = "dataset" in figures and figures.known["dataset"].source != "given"
    if derived and figures["dataset"] > MAX_DATASET_NBYTES:
        raise OptionError(
            f"{figures.said('dataset')}: the data set would be {said(figures['dataset'], 'B')}. "
            "stored= is the bytes of one sample; those of all samples are dataset="
        )


@cache
def accelerators() -> dict[str, dict[str, Any]]:
    """Return the accelerators of hardware.toml, by their names."""
    return tomllib.loads(Path(__file__).with_name("hardware.toml").read_text(encoding="utf-8"))


def accelerator_figures(name: str) -> dict[str, Figure]:
    """Return the figures of an accelerator, in any spelling: "tpu v3" is TPUv3.

    Raise OptionError for an unknown one.
    """
    by_key = {_key(one): one for one in accelerators()}
    key = _key(name)
    if key not in by_key:
        near = [by_key[one] for one in difflib.get_close_matches(key, by_key, 1, 0.6)]
        hint = f"did you mean {near[0]}? " if near else ""
        raise OptionError(
            f"accelerator={name} is not known. {hint}Must be one of {', '.join(accelerators())}; "
            "or give peak=, efficiency=, accelerator_memory= and price= without it"
        )
    kind = accelerators()[by_key[key]]
    return {
        "peak": Figure(kind["peak"], kind["specification"]),
        "accelerator_memory": Figure(kind["memory"], kind["specification"]),
        "efficiency": Figure(kind["efficiency"], kind["efficiency_source"]),
        "price": Figure(kind["price"], kind["price_source"]),
    }


def _key(name: str) -> str:
    key = "".join(letter for letter in name.lower() if letter.isalnum())
    return key.removeprefix("nvidia").removeprefix("google").removeprefix("cloud")


def assume(figures: PlanFigures) -> PlanFigures:
    """Return the figures with those of the named accelerator, and the defaults for the others.

    Raise OptionError for an unknown accelerator, or for contradictions.
    """
    found = {
        name: Figure(value, source)
        for name, (value, source, others) in DEFAULTS.items()
        if not others or any(other in figures for other in others)
    }
    if "accelerator" in figures:
        found |= accelerator_figures(figures["accelerator"])
    if "flops" in figures:
        kept = figures["flops"] * ACTIVATION_NBYTES
        found["activations"] = Figure(kept, "flops x 3.6 / 1000, as ResNet-50 (Radosavovic 2020)")
    given = "source" in figures and figures.known["source"].source != PROFILED
    if given and not any(part in figures for part in SHARES):
        found["native"] = Figure(1.0, "assumed: all of source= is native code")
    if "cores" not in figures:
        found["cores"] = Figure(cores(), f"{PROFILED}: this machine")
        found["ram"] = Figure(psutil.virtual_memory().total, f"{PROFILED}: this machine")
    count = figures.get_or("accelerators", figures.get_or("per_machine", 1))
    found["accelerators"] = Figure(round(count), "assumed: one, or one machine")
    most = min(IN_MACHINE, found["accelerators"].value)
    found["per_machine"] = Figure(most, "assumed: up to 8 in a machine")
    return figures.filled(found)
