"""Recordings without paths, arguments and names of the user's own."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import replace

from fastfeed.diagnose.evidence import CALLED_BACK, HERE, DeadProducer, LoopPart, Task
from fastfeed.diagnose.evidence_file import Recording
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import ARRAYS_NOTE, Leaf, Loop, Mark

# Texts of fastfeed itself, which judgements read.
KEPT_TEXTS = ("tf.data: ", ARRAYS_NOTE)
KNOWN_MODULES = ("numpy", "tensorflow", "torch", "jax", "jaxlib", "list", "tuple")


def anonymised(recording: Recording) -> Recording:
    """Return the recording without the user's own paths, arguments and names.

    Code of the user keeps its lines. Names of
    libraries stay. It is judged as before, in other words.
    """
    hidden, seen = _Aliases(), recording.evidence
    noisy = tuple((hidden.of("process", name), cores) for name, cores in seen.machine.noisy)
    evidence = replace(
        seen,
        loop=None if seen.loop is None else hidden.loop(seen.loop),
        marks=tuple(map(hidden.mark, seen.marks)),
        tasks=tuple(map(hidden.task, seen.tasks)),
        machine=replace(seen.machine, noisy=noisy),
        parts=tuple(map(hidden.part, seen.parts)),
        hint=seen.hint and seen.hint._replace(place=hidden.place(seen.hint.place)),
        children=tuple(replace(one, name=hidden.of("process", one.name)) for one in seen.children),
        feed=seen.feed and replace(seen.feed, set_aside=()),
        missing=tuple(text.partition(":")[0] for text in seen.missing),
    )
    died = tuple(map(hidden.dead, recording.died))
    return Recording(evidence, "script.py" if recording.script else "", died)


class _Aliases:
    """Names in place of the user's; the same one for the same name."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}

    def of(self, kind: str, name: str) -> str:
        """Return `kind` with a number; "" stays."""
        number = 1 + sum(known == kind for known, _ in self._known)
        return name and self._known.setdefault((kind, name), f"{kind} {number}")

    def place(self, place: Place) -> Place:
        """Return a place in a file without a name."""
        if not place.users:
            return place
        function = self.of("function", f"{place.file} {place.function}").replace(" ", "_")
        return place._replace(function=function, file=self._file(place.file))

    def part(self, part: LoopPart) -> LoopPart:
        """Return a part of the loop whose places have no names."""
        inner = part.inner if part.inner is None else self.place(part.inner)
        return replace(part, place=self.place(part.place), inner=inner)

    def task(self, task: Task) -> Task:
        """Return a task without a name, and without the text of its exception."""
        stacks: Mapping[tuple[Place, ...], int] = {
            tuple(map(self.place, stack)): count for stack, count in task.stacks.items()
        }
        name = task.name if task.name == CALLED_BACK else self.of(task.role, task.name)
        node = task.node if task.node == HERE else self.of("node", task.node)
        return replace(task, name=name, stacks=stacks, exit=_last_words(task.exit), node=node)

    def dead(self, dead: DeadProducer) -> DeadProducer:
        """Return a dead producer without a name, and without the text of its exception."""
        return dead._replace(name=self.of("producer", dead.name), text=_last_words(dead.text))

    def mark(self, mark: Mark) -> Mark:
        """Return a mark with a number for its label."""
        return mark._replace(label=self.of(mark.kind, mark.label))

    def loop(self, loop: Loop) -> Loop:
        """Return a loop without names of code and of arrays."""
        file, colon, line = loop.where.rpartition(":")
        return replace(
            loop,
            name=loop.name if loop.name.startswith(KEPT_TEXTS) else f"{loop.kind} loop",
            where=self._file(file) + colon + line if loop.where else "",
            text="",
            leaves=tuple(map(self._leaf, loop.leaves)),
            note=loop.note if loop.note.startswith(KEPT_TEXTS) else "",
            producers=None,
        )

    def _leaf(self, leaf: Leaf) -> Leaf:
        known = leaf.kind.startswith(KNOWN_MODULES)
        return leaf._replace(path=self.of("leaf", leaf.path), kind=leaf.kind if known else "object")

    def _file(self, name: str) -> str:
        return self.of("file", name).replace(" ", "") + ".py"


def _last_words(text: str) -> str:
    """Return an exit code, a signal or a built-in exception; the user's own become "an error"."""
    last = text.strip().rpartition("\n")[2].partition(":")[0]
    known = not last or hasattr(builtins, last) or last.startswith(("exit code", "SIG", "gone"))
    return last if known else "an error"
