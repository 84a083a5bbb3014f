"""The patches, in the order in which they are tried if nothing is predicted of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

from fastfeed.diagnose.patches.datasets import (
    CacheAfterMap,
    FittedInput,
    GeneratorDataset,
    ParallelMaps,
)
from fastfeed.diagnose.patches.fed_loop import FedLoop
from fastfeed.diagnose.patches.fed_queue import FedQueue
from fastfeed.diagnose.patches.float_data import FedData, YieldedData
from fastfeed.diagnose.patches.generator_body import GeneratorBody
from fastfeed.diagnose.patches.generator_call import GeneratorCall
from fastfeed.diagnose.patches.graph_queue import QueueThreads
from fastfeed.diagnose.patches.handmade_queue import HandmadeQueue
from fastfeed.diagnose.patches.image_operations import ImageOperations
from fastfeed.diagnose.patches.loader import LoaderRunner, LoaderStart, LoaderWorkers
from fastfeed.diagnose.patches.passive_threads import passive_threads
from fastfeed.diagnose.patches.producers import PoolThreads, RunnerOptions, StartedProducers
from fastfeed.diagnose.patches.proposal import Patch, PatchCase, Proposal
from fastfeed.diagnose.patches.python_maps import PythonMaps
from fastfeed.diagnose.patches.rarer import RarerPauses
from fastfeed.diagnose.patches.serial_loop import SerialLoop
from fastfeed.diagnose.patches.source_file import Edit, edited
from fastfeed.errors import OptionError

PATCHES: tuple[Patch, ...] = (
    LoaderRunner(),
    LoaderWorkers(),
    LoaderStart(),
    RunnerOptions(),
    ImageOperations(),
    FittedInput(),
    GeneratorDataset(),
    ParallelMaps(),
    CacheAfterMap(),
    PythonMaps(),
    QueueThreads(),
    GeneratorBody(),
    GeneratorCall(),
    FedQueue(),
    HandmadeQueue(),
    SerialLoop(),
    FedLoop(),
    StartedProducers(),
    PoolThreads(),
    FedData(),
    YieldedData(),
    RarerPauses(),
)


def proposals_of(case: PatchCase) -> Iterator[Proposal]:
    """Yield the changes that fit a case and whose text is Python, each once: the first of each
    patch, then the second ones, and so on, the most promising first. One of which nothing is
    predicted may gain as much as any."""
    found: dict[tuple[Edit, ...], Proposal] = {}
    ranks: dict[tuple[Edit, ...], int] = {}  # among the proposals of the same patch
    room = passive_threads(case)
    for patch in PATCHES:
        for rank, one in enumerate(_proposals_or_none(case, patch)):
            forms = [form for form in (one, *one.instead) if _is_python(case, form)]
            if forms:
                forms = [replace(form, room=room if form.makes else None) for form in forms]
                whole = replace(forms[0], instead=tuple(forms[1:]))
                found.setdefault(forms[0].edits, whole)
                ranks.setdefault(forms[0].edits, rank)
    known = [one.advice.predicted_speedup for one in found.values() if one.advice]
    most = max(known, default=1.0)

    def promise(one: Proposal) -> tuple[int, float]:
        return ranks[one.edits], -(one.advice.predicted_speedup if one.advice else most)

    yield from sorted(found.values(), key=promise)


def _proposals_or_none(case: PatchCase, patch: Patch) -> list[Proposal]:
    """Return the changes of a patch. A text that it cannot read keeps no other one from its try."""
    try:
        return list(patch.proposals(case))
    except Exception as error:
        case.note_failure(patch, error)
        return []


def _is_python(case: PatchCase, form: Proposal) -> bool:
    """Return True if the files can be compiled with a change."""
    try:
        for edits in ((*form.edits, *form.shows), form.shows_before, form.alone):
            for name in {one.file for one in edits}:
                text = edited(case.files[name].text, (one for one in edits if one.file == name))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    compile(text, name, "exec", dont_inherit=True)
    except (SyntaxError, OptionError):
        return False
    return True
