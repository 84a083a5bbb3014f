"""One run of a script in a copy of its folder, watched by hooks alone: `main`, in a process of its
own."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastfeed.core.machine import cores
from fastfeed.core.unix import die_with
from fastfeed.diagnose.evidence import Evidence
from fastfeed.diagnose.evidence_file import Recording
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.prove.batch_log import BatchLog, watch_batches
from fastfeed.diagnose.prove.call_sites import CallSites
from fastfeed.diagnose.prove.digests import Digests
from fastfeed.diagnose.prove.lone_batches import lone_items, watch_streams
from fastfeed.diagnose.prove.own_files import Bounds, OwnFiles
from fastfeed.diagnose.prove.seeds import SHIFT, set_seeds
from fastfeed.diagnose.prove.short_epochs import ShortEpochs
from fastfeed.diagnose.prove.write_guard import ask_before_writes
from fastfeed.diagnose.run.collector import EvidenceCollector
from fastfeed.diagnose.run.launch import Launch
from fastfeed.diagnose.run.lifecycle import Lifecycle, WatchPlan
from fastfeed.diagnose.run.publisher import Publisher
from fastfeed.diagnose.run.script import Script
from fastfeed.probes.interpreter import CAN_TRACE_LINES
from fastfeed.probes.machine_log import Machine
from fastfeed.steps.timeline import Loop, Timeline

DIAGNOSE, RATE = "diagnose", "rate"  # what a run is for
# The batches of the script; with other random numbers; and with another order, too.
BATCHES, RESEEDED, REORDERED = "batches", "reseeded", "reordered"
LONE = "lone"  # each made without those before it
SEEN = ("exact", "modelled")  # kinds of waits that are known
EVIDENCE, CALLS, RESULT = "evidence.json.gz", "calls.json", "run.json"  # files that it writes
EDITABLE = "__editable__"  # begin of the names of finders that setuptools installs


def main() -> None:
    """Run a script as the settings in argv say, and write what was seen into their folder."""
    settings: dict[str, Any] = json.loads(sys.argv[1])
    words, purpose, out = sys.argv[2:], settings["purpose"], Path(settings["folder"])
    die_with(settings["parent"])
    ask_before_writes(OwnFiles(Bounds(*settings["bounds"])), settings["guard"])
    import_from_copy(settings["moved"])
    plan = WatchPlan(
        settings["seconds"], settings["warmup"], experiments=purpose == DIAGNOSE, stop=True
    )
    turns = purpose == DIAGNOSE and not CAN_TRACE_LINES
    sites, script = CallSites(), Script(words, turns=turns)
    log = HookLog(Timeline())
    if purpose in (BATCHES, RESEEDED, REORDERED, LONE):
        log = BatchLog(settings["most_batches"])
    if purpose == DIAGNOSE:
        collector = EvidenceCollector()
        publisher: Any = Publisher(
            lambda *_: _write(out / CALLS, [list(sites.found), sorted(_loaded(script))]),
            evidence=out / EVIDENCE,
        )
        sites.install(log)
    else:
        publisher = _Results(out / RESULT, log, edited=[*settings["edited"]], script=script)
        collector = _Hooks()
    if isinstance(log, BatchLog):
        watch_batches(log)
        unseeded = set_seeds(log, shift=0 if purpose in (BATCHES, LONE) else SHIFT)
        lone = functools.partial(lone_items, unseeded=unseeded)
        watch_streams(log, log.items, wrap=lone if purpose == LONE else iter)
        if settings["epoch"]:
            log.short = ShortEpochs(settings["epoch"], reordered=purpose == REORDERED)
            log.short.install(log)
    launch = Launch(script, plan=plan, publisher=publisher, collector=collector, log=log)
    sys.exit(launch.run(script.run))


class _Hooks(EvidenceCollector):
    """Collector of what hooks see, without samples."""

    def __init__(self) -> None:
        """Make no sampler."""

    def watch(self, log: HookLog) -> None:
        """Nothing is sampled."""

    def measure(self) -> None:
        """Nothing is sampled."""

    def search(self, now_s: float) -> None:
        """Nothing is sampled."""

    def stop(self) -> None:
        """Nothing is sampled."""

    def sees_loop(self) -> bool:
        """Return False: hooks see loops by themselves."""
        return False

    def only_takes(self, loop: Loop) -> bool:
        """Return False: it is unknown."""
        return False

    def evidence(self, life: Lifecycle) -> Evidence:
        """Return the main loop."""
        loop = life.loop or life.seen_loop
        end_s = loop.steps[-1].end_s if loop is not None and loop.steps else life.start_s
        return Evidence(loop, (), (), Machine(cores()), life.start_s, end_s)


class _Results:
    """Publisher of the steps and batches of a run."""

    def __init__(self, path: Path, log: HookLog, *, edited: list[str], script: Script) -> None:
        self._path = path
        self._log = log
        self._edited = edited
        self._script = script

    def report(self, recording: Recording, *, rank: int | None = None) -> None:
        """Write what was seen; of several ranks, the first does."""
        if rank:
            return
        seen = recording.evidence
        steps = seen.loop.steps if seen.loop is not None else []
        steps = [step for step in steps if step.begin_s >= seen.start_s]
        ends = [step.end_s - seen.start_s for step in steps]
        waits = [step.wait_s for step in steps if seen.loop is not None and seen.loop.waits in SEEN]
        waiting = sum(waits) / sum(step.end_s - step.begin_s for step in steps) if waits else None
        died = [one.text for one in recording.died]
        batches, items = Digests(), Digests()
        if isinstance(self._log, BatchLog):
            batches, items = self._log.digests_of(seen.loop), self._log.items
        known = {os.path.realpath(one) for one in _loaded(self._script)}
        unused = [one for one in self._edited if os.path.realpath(one) not in known]
        found = {"ends": ends, "waiting": waiting, "died": died, "unused": unused}
        _write(self._path, found | {"batches": batches.as_json(), "items": items.as_json()})


def _loaded(script: Script) -> set[str]:
    """Return the files of the script and of the modules that it has imported."""
    files = {str(getattr(one, "__file__", None) or "") for one in list(sys.modules.values())}
    files |= {script.words[0]} if script.how == "file" else set()
    return {os.path.abspath(one) for one in files if one}


def import_from_copy(moved: Mapping[str, str]) -> None:
    """Let this process import from the copies of folders what it would import from these, also
    where they are installed in place. What the copies lack, such as a virtual environment, stays.
    """

    def other(path: Any) -> Any:
        for root, target in moved.items():
            if isinstance(path, str) and (path == root or path.startswith(root + os.sep)):
                copy = target + path[len(root) :]
                return copy if os.path.exists(copy) or not os.path.exists(path) else path
        return path

    sys.path[:] = map(other, sys.path)
    for name, module in list(sys.modules.items()):
        if name.startswith(EDITABLE) and isinstance(getattr(module, "MAPPING", None), dict):
            module.MAPPING.update({key: other(path) for key, path in module.MAPPING.items()})


def _write(path: Path, values: Any) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(values))
    os.replace(part, path)
