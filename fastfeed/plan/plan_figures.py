"""The figures of a plan, each with its source, and what must hold between them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastfeed.errors import OptionError
from fastfeed.plan import units

GIVEN, PROFILED = "given", "measured"
TOLERANCE = 0.05  # of figures that people round


@dataclass(frozen=True)
class Figure:
    """A value and its source: given, measured, derived from others, or an assumption."""

    value: Any
    source: str


# By name: the parser of its text, and its meaning.
KNOWN: dict[str, tuple[Callable[[str, str], Any], str]] = {
    "samples": (units.count, "samples of the data set, such as 1.28M"),
    "image": (units.shape, "shape of a sample, such as 224x224x3"),
    "element_bytes": (units.count, "bytes of a number in a sample: 1 for uint8, 4 for float32"),
    "sample": (units.nbytes, "bytes of a sample as the step receives it, such as 150KB"),
    "stored": (units.nbytes, "bytes of a sample in storage, such as 21KB"),
    "dataset": (units.nbytes, "bytes of the data set in storage, such as 300GB"),
    "source": (units.seconds, "time of one producer for a sample, such as 5ms"),
    "lock": (units.share, "its share with the interpreter lock (Python bytecode), such as 20%"),
    "native": (units.share, "its share in native code (OpenCV, numpy)"),
    "wait": (units.share, "its share of waiting (network, disk)"),
    "threads": (units.count, "producers that a trainer has, to see what they cost"),
    "processes": (units.count, "its worker processes, each with `threads`"),
    "batch": (units.count, "samples of a step on one accelerator"),
    "minibatch": (units.count, "samples of a step on all accelerators"),
    "step": (units.steps, "time of a step: 8ms, or at several batches 32:164ms,64:292ms"),
    "flops": (units.count, "floating point operations of a training step for a sample: 22.8G"),
    "parameters": (units.count, "parameters of the model, such as 25.6M"),
    "parameter_bytes": (units.count, "bytes of a parameter: 4 for float32, 2 for bfloat16"),
    "weights": (units.nbytes, "bytes of all parameters, such as 102MB"),
    "optimizer": (units.word("sgd", "momentum", "adam"), "sgd, momentum or adam"),
    "activations": (units.nbytes, "bytes that the step keeps of a sample until it goes back"),
    "epochs": (units.count, "passes over the data set"),
    "steps": (units.count, "steps of the run"),
    "took": (units.seconds, "measured time of a run, to see what it implies"),
    "accelerator": (units.text, "its kind: P100, V100, A100, H100, T4 or TPUv2"),
    "accelerators": (units.count, "their number"),
    "accelerator_memory": (units.nbytes, "memory of one, such as 16GB"),
    "peak": (units.count, "floating point operations a second of one, such as 10.6T"),
    "efficiency": (units.share, "share of the peak that the step reaches"),
    "price": (units.money, "dollars an hour for one accelerator and its share of the machine"),
    "per_machine": (units.count, "accelerators in a machine"),
    "machines": (units.count, "machines with accelerators"),
    "cores": (units.count, "cores of a machine"),
    "ram": (units.nbytes, "memory of a machine, such as 64GB"),
    "disk": (units.nbytes, "free disk of a machine, such as 1TB"),
    "trainer": (units.nbytes, "memory of a trainer without its feed"),
    "pool": (units.count, "records of the shuffle pool"),
    "cache": (units.word("no", "ram", "disk"), "where cache= keeps samples: no, ram or disk"),
    "captured": (units.nbytes, "arrays that the source holds, such as 47MB"),
    "network": (units.rate, "a machine's connection to the storage, such as 10Gbit/s"),
    "storage": (units.rate, "reading speed of the storage for one machine, such as 500MB/s"),
    "interconnect": (units.rate, "a worker's connection to the others, such as 10Gbit/s"),
    "speedup": (units.count, "measured speed-up on all accelerators, to see what it implies"),
    "exchange": (units.word("allreduce", "servers"), "of gradients: allreduce or servers"),
    "servers": (units.count, "parameter servers"),
    "checkpoint_every": (units.count, "steps between checkpoints"),
    "checkpoints": (units.count, "checkpoints that are kept"),
}
# Products that are 1, by the exponent of each factor.
PRODUCTS: tuple[Mapping[str, int], ...] = (
    {"minibatch": 1, "batch": -1, "accelerators": -1},
    {"accelerators": 1, "machines": -1, "per_machine": -1},
    {"dataset": 1, "samples": -1, "stored": -1},
    {"sample": 1, "image": -1, "element_bytes": -1},
    {"weights": 1, "parameters": -1, "parameter_bytes": -1},
    {"steps": 1, "minibatch": 1, "epochs": -1, "samples": -1},
)
WHOLE = ("accelerators", "machines", "per_machine", "batch", "cores")
WIDTHS = (1, 2, 4, 8)  # bytes of a number
SHARES = ("lock", "native", "wait")


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

    def filled(self, others: Mapping[str, Figure]) -> PlanFigures:
        """Return these figures, with others where they have none, and with what follows.

        Raise OptionError for figures that contradict each other, with their names.
        """
        found = {**others, **self.known}
        while _derive(found):
            pass
        _check(found)
        return PlanFigures(found)


def figures_from(words: Iterable[str]) -> PlanFigures:
    """Return the figures in words such as "samples=1.28M".

    Raise OptionError for unknown names, for values without sense, and for figures that contradict
    each other.
    """
    found: dict[str, Figure] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not equals or name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, 1, 0.6)
            hint = f"did you mean {near[0]}=?" if near else f"the figures are {', '.join(KNOWN)}"
            raise OptionError(f"{word!r} is no figure such as samples=1.28M: {hint}")
        if name in found:
            raise OptionError(f"{name} is given twice: leave one out")
        found[name] = Figure(KNOWN[name][0](text.strip(), name), GIVEN)
    return PlanFigures({}).filled(found)


def _derive(found: dict[str, Figure]) -> bool:
    """Add a figure that follows from others; return False if there is none."""
    for product in PRODUCTS:
        missing = [name for name in product if name not in found]
        if len(missing) != 1:
            continue
        (name,) = missing
        others = {one: power for one, power in product.items() if one != name}
        value = _product(found, others) ** -product[name]
        if name in WHOLE:
            value = max(1, round(value))
        found[name] = Figure(value, "from " + " and ".join(others))
        return True
    return False


def _product(found: Mapping[str, Figure], powers: Mapping[str, int]) -> float:
    return math.prod(_number(found[name].value) ** power for name, power in powers.items())


def _number(value: Any) -> float:
    return float(math.prod(value)) if isinstance(value, tuple) else float(value)


def _check(found: Mapping[str, Figure]) -> None:
    for product in PRODUCTS:
        off = _product(found, product) if all(name in found for name in product) else 1.0
        if abs(off - 1) > TOLERANCE:
            left = [name for name, power in product.items() if power > 0]
            right = [name for name, power in product.items() if power < 0]
            raise OptionError(
                f"{_said(found, *product)} contradict each other: {' x '.join(left)} must be "
                f"{' x '.join(right)}, and is {off:.3g} times that; leave one of them out"
            )
    for name, others in (
        ("element_bytes", "sample and image"),
        ("parameter_bytes", "weights and parameters"),
    ):
        width = found[name].value if name in found else WIDTHS[0]
        if not any(abs(width / known - 1) <= TOLERANCE for known in WIDTHS):
            raise OptionError(
                f"{_said(found, name)} ({found[name].source}): must be 1, 2, 4 or 8 bytes, so "
                f"{others} contradict each other; leave one of them out"
            )
    shares = [name for name in SHARES if name in found]
    total = sum(found[name].value for name in shares)
    if total > 1 + TOLERANCE or (len(shares) == len(SHARES) and total < 1 - TOLERANCE):
        raise OptionError(
            f"{_said(found, *shares)} contradict each other: these shares of one time add up to "
            f"{total:.0%}, must be 100%"
        )
    few = "minibatch" in found and "samples" in found
    if few and found["minibatch"].value > found["samples"].value:
        raise OptionError(
            f"{_said(found, 'minibatch', 'samples')} contradict each other: a step takes more "
            "samples than there are; lower batch or accelerators, or raise samples"
        )


def _said(found: Mapping[str, Figure], *names: str) -> str:
    return ", ".join(f"{name}={units.plain(found[name].value)}" for name in names)
