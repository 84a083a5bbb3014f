"""The promises of a sink, the traits that it may declare, and how a broken promise is reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PROMISES = {
    "structure": "every element has the containers of the batch: the same keys, fields and nesting",
    "dtypes": "every leaf has the dtype that the source made",
    "values": "every value is bit for bit what the source made, and every leaf keeps its shape",
    "once": "a pass has every record of the source exactly once",
    "order": "the records come in the order of the source",
    "early break": "after a pass that was left early, the next one is whole",
    "second "
    "epoch": "a second pass has every record again, in an order of its own where the source is shuffled",
    "epochs": "with epochs=2 a pass has every record twice, those of the first epoch before those of the second",
    "unknown length": "a source of which nobody knows how long it is comes whole and in order",
    "padded": "records that vary in shape come padded to the largest one of their batch",
    "kept": "an element that somebody keeps never changes",
    "leases": "when the pass is over and its elements are gone, all memory has been given back",
    "errors": "an error of the source is raised from the iteration, after all that was made before it",
    "fast "
    "consumer": "each element comes as soon as its batch is made, to a consumer that always waits for it",
    "slow consumer": "nothing is lost, repeated or changed while the consumer takes its time",
    "stop": "a consumer that waits is told FeedStopped when another thread stops the runner",
    "nothing "
    "left": "no thread, process or file descriptor is left when the runner has been stopped",
    "no hang": "every call returns or raises",
}


@dataclass(frozen=True)
class SinkTraits:
    """What a sink declares beforehand; everything else must be as in the plain loop."""

    lists_become_tuples: bool = False
    namedtuples_become_tuples: bool = False
    partial_batch: bool = True  # False: the last batch may not be smaller than the others
    # Dtypes of leaves that the sink can hold; "bytes" is one, too, and uint8, int64 and float32 are
    # always tested.
    dtypes: Sequence[str] = ("uint8", "int64", "float32", "float16", "bool")
    # what a dtype becomes, as in {"int64": "int32"}
    casts: Mapping[str, str] = field(default_factory=dict)
    # what the framework raises instead of ProducerError and FeedStopped
    errors: tuple[type[BaseException], ...] = ()
    again: bool = True  # False: what `open` returns is iterated over once
    # True: the iteration after one that was left early has the rest of it, as in the plain loop
    goes_on: bool = False
    padded: bool = True  # False: the sink cannot hold records that vary in shape
    ahead: int = 0  # batches that must be made beyond the one that is delivered


@dataclass(frozen=True)
class Finding:
    """One promise that was not kept: with which producers, and what happened instead."""

    promise: str
    producers: str
    happened: str

    def __str__(self) -> str:
        return f"{self.promise} ({self.producers})\n  promised: {PROMISES[self.promise]}\n  happened: {self.happened}"


class SinkBroken(AssertionError):
    """A sink breaks its promises: `broken` names them, and the text says what happened instead."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        self.broken = tuple(dict.fromkeys(f.promise for f in findings))
        super().__init__(
            f"the sink breaks {', '.join(self.broken)}:\n\n" + "\n\n".join(map(str, findings))
        )
