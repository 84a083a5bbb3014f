"""The promises of a sink, the traits that it declares, and reports of broken promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PROMISES = {
    "structure": "every element has the containers of the batch: the same keys, fields and nesting",
    "dtypes": "every leaf has the dtype that the source produced",
    "values": "every value is bit for bit that of the source, and every leaf keeps its shape",
    "once": "an iteration has every record of the source exactly once",
    "order": "the records come in the order of the source",
    "early break": "after an early break, the next iteration is complete",
    "second epoch": (
        "a second iteration has every record again, in another order if the source is shuffled"
    ),
    "epochs": "with epochs=2 an iteration has every record once per epoch, epoch by epoch",
    "unknown length": "a source of unknown length is delivered completely and in order",
    "padded": "records that vary in shape are padded to the largest one of their batch",
    "kept": "an element that the consumer keeps never changes",
    "leases": "after the iteration, when its elements are gone, all memory is given back",
    "errors": "an error of the source is raised by the iteration, after all earlier batches",
    "fast consumer": "a consumer that waits gets each element as soon as its batch is made",
    "slow consumer": "a slow consumer loses no element, and gets none twice or changed",
    "stop": "a waiting consumer gets FeedStopped when another thread stops the runner",
    "nothing left": "a stopped runner leaves no thread, process or file descriptor behind",
    "no hang": "every call returns or raises",
}


@dataclass(frozen=True)
class SinkTraits:
    """Declared traits of a sink; everything else must be as in the plain loop.

    `lists_become_tuples`, `namedtuples_become_tuples`: the containers of its elements. Without
    `partial_batch` the last batch may not be smaller than the others. `dtypes`: those of leaves
    that it supports; uint8, int64 and float32 are always used, and "bytes" is one, too. `casts`:
    the resulting dtype of each that it converts, as in {"int64": "int32"}. `errors`: what the
    framework raises instead of ProducerError and FeedStopped. Without `again` the result of `open`
    can be iterated only once. `goes_on`: after an early break the next iteration continues with the
    rest. Without `padded` it does not support records that vary in shape. `ahead`: batches that
    must be made beyond the one that is handed out.
    """

    lists_become_tuples: bool = False
    namedtuples_become_tuples: bool = False
    partial_batch: bool = True  # False: the last batch may not be smaller than the others
    # Dtypes of leaves that the sink supports; "bytes" is one, too. uint8, int64 and float32 are
    # always used.
    dtypes: Sequence[str] = ("uint8", "int64", "float32", "float16", "bool")
    # resulting dtype of a dtype that the sink converts, as in {"int64": "int32"}
    casts: Mapping[str, str] = field(default_factory=dict)
    # what the framework raises instead of ProducerError and FeedStopped
    errors: tuple[type[BaseException], ...] = ()
    again: bool = True  # False: the result of `open` can be iterated only once
    # True: after an early break the next iteration continues with the rest, as in the plain loop
    goes_on: bool = False
    padded: bool = True  # False: the sink does not support records that vary in shape
    ahead: int = 0  # batches that must be made beyond the one that is handed out


@dataclass(frozen=True)
class Finding:
    """One broken promise: the kind of producers, and what happened instead."""

    promise: str
    producers: str
    happened: str

    def __str__(self) -> str:
        return (
            f"{self.promise} ({self.producers})\n  promised: {PROMISES[self.promise]}\n"
            f"  happened: {self.happened}"
        )


class SinkBroken(AssertionError):
    """A sink breaks promises: `broken` names them, and the text says what happened instead."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        self.broken = tuple(dict.fromkeys(f.promise for f in findings))
        super().__init__(
            f"the sink breaks {', '.join(self.broken)}:\n\n" + "\n\n".join(map(str, findings))
        )
