"""Source files and the advice about them, for tests of patches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fastfeed.diagnose.diagnosis import Recommendation
from fastfeed.diagnose.evidence import Evidence, LoopPart, Task
from fastfeed.diagnose.judge.judgement import judge
from fastfeed.diagnose.patches.call_site import CallSite
from fastfeed.diagnose.patches.proposal import Patch, PatchCase, Proposal, read_sources
from fastfeed.diagnose.patches.source_file import edited
from fastfeed.probes.machine_log import Machine
from fastfeed.probes.places import Place
from fastfeed.steps.timeline import Loop, Step

STEPS = [Step(n * 0.01, n * 0.01 + 0.01, 0.005) for n in range(40)]


def line_of(text: str, part: str) -> int:
    """Number of the line that contains a part."""
    return next(n for n, line in enumerate(text.split("\n"), 1) if part in line)


class Script:
    """A script in a folder, as a diagnosis saw it."""

    def __init__(self, folder: Path, text: str, *, kind: str, loop: str) -> None:
        self.path = folder / "train.py"
        self.path.write_text(text, newline="")
        self.text = text
        self.calls: list[CallSite] = []
        self.advice: list[Recommendation] = []
        self.parts: list[LoopPart] = []
        self.tasks: list[Task] = []
        line = line_of(text, loop)
        self.where = f"train.py:{line}"
        seen = text.split("\n")[line - 1].strip()
        self.loop = Loop("loop", kind, 1, where=self.where, text=seen, steps=STEPS)

    def calls_of(self, name: str, part: str, **about: object) -> Script:
        """Add a call that feeds the loop."""
        facts = tuple((key, str(value)) for key, value in about.items())
        line = line_of(self.text, part)
        self.calls.append(CallSite(name, str(self.path), line, self.where, facts))
        return self

    def advised(self, knob: str, value: str, gain: float = 2.0) -> Script:
        """Add an advice."""
        self.advice.append(Recommendation("", knob, value, gain, (gain, gain)))
        return self

    def made_at(self, *parts: str) -> Script:
        """Say which lines make the input."""
        for part in parts:
            place = Place("<module>", "train.py", line_of(self.text, part), users=True)
            self.parts.append(LoopPart("input", place, 0.3))
        return self

    def sampled(self, role: str, function: str, part: str) -> Script:
        """Say which line of a function a thread with a role was sampled in."""
        place = Place(function, "train.py", line_of(self.text, part), users=True)
        self.tasks.append(Task("thread", 1, 2, role, 1.0, stacks={(place,): 10}))
        return self

    def case(self) -> PatchCase:
        """The case of it."""
        seen = Evidence(
            self.loop, (), tuple(self.tasks), Machine(2), 0.0, 0.4, parts=tuple(self.parts)
        )
        diagnosis = replace(judge(seen), recommendations=tuple(self.advice), may_cost=())
        files = read_sources(sorted(self.path.parent.glob("*.py")))
        return PatchCase(diagnosis, files=files, calls=self.calls, script=str(self.path))

    def proposals(self, patch: Patch) -> list[Proposal]:
        """What a patch proposes."""
        return list(patch.proposals(self.case()))

    def patched(self, patch: Patch, *, titled: str = "", form: int = 0) -> str:
        """The text after the first proposal of a patch whose title contains a text."""
        found = next(one for one in self.proposals(patch) if titled in one.title)
        found = [found, *found.instead][form]
        return applied(self.text, found)


def applied(text: str, *proposals: Proposal) -> str:
    """The text after proposals. It is Python."""
    found = edited(text, [edit for one in proposals for edit in one.edits])
    compile(found, "train.py", "exec")
    return found


def added(before: str, after: str) -> list[str]:
    """The lines that are new, without blanks around them."""
    old = [line.strip() for line in before.split("\n")]
    return [line.strip() for line in after.split("\n") if line.strip() and line.strip() not in old]
