"""One run of a script in a copy of its folder, watched by hooks alone: `main`, in a process of its
own."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastfeed.core.machine import cores
from fastfeed.core.unix import die_with
from fastfeed.diagnose.evidence import Evidence
from fastfeed.diagnose.evidence_file import Recording
from fastfeed.diagnose.hooks.hook_log import HookLog
from fastfeed.diagnose.hooks.imports import ImportHooks
from fastfeed.diagnose.hooks.patches import Undo, patch
from fastfeed.diagnose.prove.call_sites import CallSites
from fastfeed.diagnose.prove.digests import Digests
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
EVIDENCE, CALLS, RESULT = "evidence.json.gz", "calls.json", "run.json"  # files that it writes
EDITABLE = "__editable__"  # begin of the names of finders that setuptools installs
IN_GRAPH = ("modelled", "hidden")  # waits of steps that take their batches from a graph
MOST_HELD_S = 0.005  # for which each batch of a producer thread is held up
KERAS_ADAPTERS = {
    "keras.src.trainers.data_adapters.py_dataset_adapter": "PyDatasetAdapter",
    "keras.src.trainers.data_adapters.generator_data_adapter": "GeneratorDataAdapter",
    "keras.src.trainers.data_adapters.tf_dataset_adapter": "TFDatasetAdapter",
}


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
    if purpose in (BATCHES, RESEEDED, REORDERED):
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
        _watch_batches(log)
        set_seeds(log, shift=0 if purpose == BATCHES else SHIFT)
        if settings["epoch"]:
            log.short = ShortEpochs(settings["epoch"], reordered=purpose == REORDERED)
            log.short.install(log)
    launch = Launch(script, plan=plan, publisher=publisher, collector=collector, log=log)
    sys.exit(launch.run(script.run))


class BatchLog(HookLog):
    """Log that takes the checksums of the first `most` batches of each loop, and of those that
    Keras and sessions get, or that the script's copy shows."""

    def __init__(self, most: int) -> None:
        super().__init__(Timeline())
        self._most = most
        self.losses: list[float] = []
        self.short: ShortEpochs | None = None
        self.fitted, self.shown, self.fed, self.queued = (Digests(most) for _ in range(4))
        self._loops: dict[int, Digests] = {}

    def fetch(self, loop: Loop, get: Callable[[], Any], *, begin_s: float) -> Any:
        digests = self._loops.setdefault(id(loop), Digests(self._most))
        try:
            found = super().fetch(loop, get, begin_s=begin_s)
        except StopIteration:
            digests.end_epoch()
            raise
        digests.add(found)
        return found

    def digests_of(self, loop: Loop | None) -> Digests:
        """Return the checksums of the batches that train in a loop.

        What is fed to steps that take their batches from the graph is none of them.
        """
        own = self._loops.get(id(loop), Digests())
        fed = () if loop is not None and loop.waits in IN_GRAPH else (self.fed,)
        known = (self.fitted, self.shown, own, *fed, self.queued)
        found = next((one for one in known if one.leaves), Digests())
        found.losses = self.losses[: self._most]
        if self.short is not None:
            found.shortened, found.shuffled = self.short.shortened, self.short.shuffled
        # The script has ended; what feeds a queue or tf.data is ahead of what was taken.
        main = threading.current_thread() is threading.main_thread()
        found.ended = main and found not in (self.queued, self.fitted)
        return found


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
        ends = [step.end_s - seen.start_s for step in steps if step.begin_s >= seen.start_s]
        died = [one.text for one in recording.died]
        batches = self._log.digests_of(seen.loop) if isinstance(self._log, BatchLog) else Digests()
        known = {os.path.realpath(one) for one in _loaded(self._script)}
        unused = [one for one in self._edited if os.path.realpath(one) not in known]
        found = {"ends": ends, "died": died, "unused": unused, "batches": batches.as_json()}
        _write(self._path, found)


def _loaded(script: Script) -> set[str]:
    """Return the files of the script and of the modules that it has imported."""
    files = {str(getattr(one, "__file__", None) or "") for one in list(sys.modules.values())}
    files |= {script.words[0]} if script.how == "file" else set()
    return {os.path.abspath(one) for one in files if one}


def import_from_copy(moved: Mapping[str, str]) -> None:
    """Let this process import from the copies of folders what it would import from these, also
    where they are installed in place."""

    def other(path: Any) -> Any:
        for root, target in moved.items():
            if isinstance(path, str) and (path == root or path.startswith(root + os.sep)):
                return target + path[len(root) :]
        return path

    sys.path[:] = map(other, sys.path)
    for name, module in list(sys.modules.items()):
        if name.startswith(EDITABLE) and isinstance(getattr(module, "MAPPING", None), dict):
            module.MAPPING.update({key: other(path) for key, path in module.MAPPING.items()})


def _write(path: Path, values: Any) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(values))
    os.replace(part, path)


def _watch_batches(log: BatchLog) -> None:
    """Take the checksums of batches that no iterator in Python delivers, and the losses."""
    hooks = ImportHooks(log, ())
    for module in KERAS_ADAPTERS:
        hooks.add(module, functools.partial(_watch_adapter, digests=log.fitted))
    hooks.add("tensorflow.python.client.session", functools.partial(_watch_feeds, batches=log))
    hooks.add("torch._tensor", functools.partial(_watch_backward, losses=log.losses))
    hooks.add(
        "keras.src.callbacks.callback_list", functools.partial(_watch_logs, losses=log.losses)
    )
    hooks.add("fastfeed.producers.builder", hold_up_producers)
    hooks.start()


def hold_up_producers(module: Any, log: HookLog) -> Undo:
    """Hold up each batch of producer threads at random: what depends on which of them comes first,
    such as a random generator that they share, then shows."""
    drawn = random.Random(0)

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def build(*args: Any, **kwargs: Any) -> Any:
            time.sleep(MOST_HELD_S * drawn.random())
            return original(*args, **kwargs)

        return build

    return patch(module.BatchBuilder, "build", wrap=wrap)


def _watch_adapter(module: Any, log: HookLog, *, digests: Digests) -> Undo:
    """Pass the batches of Keras on TensorFlow through Python, one at a time."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def get_tf_dataset(self: Any) -> Any:
            tf: Any = sys.modules["tensorflow"]
            found = original(self)

            def seen(*batch: Any) -> Any:
                leaves = tf.nest.flatten(batch)
                with tf.control_dependencies([tf.numpy_function(_adding(digests), leaves, [])]):
                    return tf.nest.map_structure(tf.identity, batch)

            return found.map(seen)

        return get_tf_dataset

    return patch(getattr(module, KERAS_ADAPTERS[module.__name__]), "get_tf_dataset", wrap=wrap)


def _adding(digests: Digests) -> Callable[..., None]:
    return lambda *leaves: digests.add(leaves)


def _watch_feeds(module: Any, log: HookLog, *, batches: BatchLog) -> Undo:
    """Take the checksums of what the script feeds to sessions: to steps in its main thread, to
    queues in others."""
    main, lock = threading.get_ident(), threading.Lock()

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def run(self: Any, fetches: Any, feed_dict: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(feed_dict, dict) and feed_dict:
                with lock:
                    fed = batches.fed if threading.get_ident() == main else batches.queued
                    fed.add(list(feed_dict.values()))
            return original(self, fetches, feed_dict, *args, **kwargs)

        return run

    return patch(module.BaseSession, "run", wrap=wrap)


def _watch_backward(module: Any, log: HookLog, *, losses: list[float]) -> Undo:
    """Note the losses of torch."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
            with contextlib.suppress(Exception):  # no scalar
                losses.append(float(self))
            return original(self, *args, **kwargs)

        return backward

    return patch(module.Tensor, "backward", wrap=wrap)


def _watch_logs(module: Any, log: HookLog, *, losses: list[float]) -> Undo:
    """Note the losses of Keras, which are means since the begin of the epoch."""

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def on_train_batch_end(self: Any, batch: Any, logs: Any = None) -> Any:
            with contextlib.suppress(Exception):  # none without metrics
                losses.append(float((logs or {})["loss"]))
            return original(self, batch, logs)

        return on_train_batch_end

    return patch(module.CallbackList, "on_train_batch_end", wrap=wrap)
